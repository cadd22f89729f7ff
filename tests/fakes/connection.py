"""A client in memory with a real dispatch and session, and scripted mechanisms and handlers.

client = Client(mechanisms=[ScriptedMechanism("PLAIN", {b"token": b"welcome"})])
client.send(handshake("PLAIN", version=0), b"token")
assert client.receive() == [...]
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome
from gateway import handlers as handlers  # registers their routes
from gateway.coarse_clock import CoarseClock
from gateway.net.flow_control import ConnectionFlow, MemoryBudget
from gateway.net.framing import FrameSplitter
from gateway.protocol.dispatch import Dispatch
from gateway.protocol.session import UNLIMITED, LoginSession, SessionLifetime
from gateway.security.audit import NO_AUDIT_LOG
from gateway.security.tenants import Tenants
from gateway.settings.model import Settings
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from tests.fakes.broker import Threads
from tests.records.record_sets import batch

PEER = "192.0.2.1:5000"


class ScriptedMechanism:
    """A mechanism with scripted answers.

    `answers` maps tokens to answers. The last token completes the login; an unknown token fails it.
    An exception is raised, a Deferred is awaited.
    """

    def __init__(self, name: str, answers: dict[bytes, Any], *, lifetime_ms: int = 0) -> None:
        self.name = name
        self.answers = answers
        self.lifetime_ms = lifetime_ms
        self.seen: list[bytes] = []
        self.begun = 0

    def begin(self, host: str) -> Any:
        self.begun += 1
        return SimpleNamespace(respond=self._respond)

    async def _respond(self, token: bytes) -> SaslOutcome:
        self.seen.append(token)
        answer = self.answers.get(token, AuthenticationFailed("wrong user name or password"))
        if isinstance(answer, Deferred):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        if token != list(self.answers)[-1]:
            return SaslOutcome(answer, None)
        return SaslOutcome(answer, Principal("User", "alice"), self.lifetime_ms)


class MemoryClient:
    """A connection, and the `ReplyTransport` of its dispatch."""

    def __init__(
        self,
        mechanisms: list[ScriptedMechanism] | None = None,
        *,
        max_requests: int = 100,
        max_bytes: int = 1 << 20,
        budget: MemoryBudget | None = None,
        broker: Any = None,
        listener: str = "SASL_PLAINTEXT",
        lifetime: SessionLifetime = UNLIMITED,
        record: Callable[[Principal | None], Recorder] = lambda principal: NULL_RECORDER,
        tenants: Tenants | None = None,
    ) -> None:
        self.written: list[bytes] = []
        self.writes = 0
        self.acknowledgements = 0
        self.closed_after_ms: list[int] = []
        self.is_aborted = False
        self.is_read = True
        self.budget = budget or MemoryBudget(1 << 30, Clock())
        self.flow = ConnectionFlow(
            self.budget,
            max_bytes=max_bytes,
            max_requests=max_requests,
            pause=self._pause,
            resume=self._resume,
        )
        self.clock = Clock()
        self.session = LoginSession(
            None if mechanisms is None else {mechanism.name: mechanism for mechanism in mechanisms},
            lifetime=lifetime,
            seconds=self.clock.seconds,
            tenants=tenants,
        )
        self.settings = Settings(connection_failed_authentication_delay_ms=100)
        broker = broker or SimpleNamespace(
            settings=self.settings,
            clock=self.clock,
            now=lambda: 0,
            deadlines=CoarseClock(self.clock),
            run_for=Threads().run_for,
            audit=NO_AUDIT_LOG,
            client_quotas=SimpleNamespace(is_active=False, limits_time=False),
            quota_usage=SimpleNamespace(version=0),
            tenants=None,
        )
        traffic = record(self.session.principal if self.session.is_ready else None)
        self.dispatch = Dispatch(
            broker, self.session, self, self.flow, peer=PEER, listener=listener, traffic=traffic
        )

    def send(self, *frames: bytes) -> None:
        """Send frames, which arrive in one chunk."""
        chunk = memoryview(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        served = self.dispatch.serve_chunk(chunk)
        splitter = FrameSplitter(len(chunk))
        rest = splitter.feed(chunk[served:])
        if rest:
            self.dispatch.frames_received(rest)
        self.flow.pause_if_over_limit()

    def run_reactor(self) -> None:
        """Run the reactor until it has no more calls."""
        self.dispatch._broker.clock.advance(0)

    def receive(self) -> list[bytes]:
        """Return the frames received since the last call, without their lengths."""
        self.run_reactor()
        stream, self.written = b"".join(self.written), []
        frames = []
        while stream:
            (size,) = struct.unpack_from(">i", stream)
            frames.append(stream[4 : 4 + size])
            stream = stream[4 + size :]
        return frames

    def disconnect(self) -> None:
        """Close the socket."""
        self.dispatch.close()
        self.flow.close()

    # ReplyTransport
    def write(self, buffers: list[Any]) -> None:
        if self.is_aborted:
            return
        self.writes += 1
        self.written += [bytes(buffer) for buffer in buffers]

    def acknowledge(self) -> None:
        self.acknowledgements += 1

    def request_close(
        self, delay_ms: int = 0, last: Sequence[Any] = (), *, linger_seconds: float = 0
    ) -> None:
        self.closed_after_ms.append(delay_ms)
        self.written += [bytes(buffer) for buffer in last]

    def abort(self) -> None:
        self.is_aborted = True

    def _pause(self) -> None:
        self.is_read = False

    def _resume(self) -> None:
        self.is_read = True


def request(message: Any, correlation_id: int = 1, client_id: str | None = "test") -> bytes:
    """A request of kafka-python's codec as a frame, without its length."""
    message.with_header(correlation_id, client_id)
    return bytes(message.encode(header=True))


def produce_request(records: int = 1) -> ProduceRequest:
    """A request with one batch for partition 0 of the topic "orders"."""
    topic = ProduceRequest.TopicProduceData
    sent = topic.PartitionProduceData(index=0, records=bytes(batch(records)))
    return ProduceRequest(
        version=11,
        transactional_id=None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[topic(version=11, name="orders", partition_data=[sent])],
    )


def plain_frame(api_key: int, version: int, body: bytes = b"", correlation_id: int = 1) -> bytes:
    """A frame whose header has no tagged fields."""
    return struct.pack(">hhih", api_key, version, correlation_id, -1) + body


def versions(version: int = 0, correlation_id: int = 1) -> bytes:
    """ApiVersions. The body of versions above 4 is that of 4.

    A server that does not support the version cannot read more than its header.
    """
    if version > 4:
        frame = bytearray(versions(4, correlation_id))
        struct.pack_into(">h", frame, 2, version)
        return bytes(frame)
    return request(
        ApiVersionsRequest(
            version=version, client_software_name="test", client_software_version="1"
        ),
        correlation_id,
    )


def handshake(mechanism: str, version: int, correlation_id: int = 1) -> bytes:
    return request(SaslHandshakeRequest(version=version, mechanism=mechanism), correlation_id)


def authenticate(token: bytes, version: int = 0, correlation_id: int = 1) -> bytes:
    return request(SaslAuthenticateRequest(version=version, auth_bytes=token), correlation_id)


def events(caplog: Any) -> list[tuple[str, dict[str, Any]]]:
    """The logged events from level warning up: name and fields."""
    return [
        (record.event, dict(record.fields))
        for record in caplog.records
        if record.levelno >= logging.WARNING and hasattr(record, "event")
    ]
