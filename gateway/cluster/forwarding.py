"""What a gateway asks of the controller, which alone changes the state of the whole cluster.

Requests of clients are forwarded as Kafka's ForwardingManager does. A request that was certainly
not executed fails with NOT_CONTROLLER, after which clients refresh their metadata and retry. One
that may have been executed fails with REQUEST_TIMED_OUT, as in Kafka, and is not repeated: a second
CreateTopics would report that the topic exists.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from gateway import logs
from gateway.cluster.calls import CallFailed, CallRefused, Calls, CallUnanswered
from gateway.coroutines import Clock, shield_with_timeout, sleep
from gateway.protocol.errors import ErrorCode, KafkaError

_log = logs.get_logger(__name__)

#: Methods of the controller.
FORWARD, CREATE_TOPIC, ALLOCATE_PRODUCER_IDS = "forward", "create-topic", "allocate-producer-ids"

#: Bytes of a request that is forwarded. The rest of `calls.MAX_PAYLOAD_BYTES`, 192 KiB, is for the
#: names in `ForwardedRequest`.
MAX_REQUEST_BYTES = 4 << 20

#: Seconds between two attempts to reach a controller while one is being elected.
RETRY_SECONDS = 0.1

#: Maximum seconds for a request. Clients wait 30 s for a reply.
REQUEST_SECONDS = 20.0

#: Maximum seconds for what other requests need of the controller: a missing topic, producer ids.
CALL_SECONDS = 5.0

#: Maximum seconds until the changes of a request are visible here. The reply is sent anyway then.
REPLAY_SECONDS = 5.0


class ForwardedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request of a client, with what the controller needs to act for it.

    `node_id` is the gateway that the client asked, `peer` the client's "host:port". `kind`, `name`
    and `tenant` are those of its principal. `frame` is header and body as received.
    """

    node_id: int
    peer: str
    host: str
    listener: str
    kind: str
    name: str
    tenant: str | None
    frame: bytes


class ForwardedReply(msgspec.Struct, frozen=True, array_like=True):
    """The encoded body of the reply, the metadata log's revision, and the error codes in the body
    with their number.
    """

    body: bytes
    revision: int
    errors: dict[int, int]


class NewTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that a gateway creates by itself."""

    name: str
    partitions: int
    configs: Mapping[str, str]


class TopicOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The metadata log's revision, and the error if the topic could not be created."""

    revision: int
    code: int
    message: str


class ControllerAccess(Protocol):
    """The controller as seen by one gateway.

    `is_local` says whether this gateway is the controller. The methods are for gateways that are
    not; what they return has been replayed here. They raise KafkaError.
    """

    @property
    def is_local(self) -> bool: ...

    async def forward(self, request: ForwardedRequest, seconds: float) -> ForwardedReply:
        """Let the controller execute a request, within `seconds`."""
        ...

    async def create_topic(self, topic: NewTopic) -> None:
        """Create a topic if it does not exist.

        Without an answer of the controller, the error is LEADER_NOT_AVAILABLE.
        """
        ...

    async def allocate_producer_ids(self) -> range:
        """Reserve a block of producer ids.

        Without an answer of the controller, the error is COORDINATOR_LOAD_IN_PROGRESS
        (RPCProducerIdManager).
        """
        ...


class LocalController:
    """The controller access of a gateway that is alone, or otherwise always the controller."""

    is_local = True

    async def forward(self, request: ForwardedRequest, seconds: float) -> ForwardedReply:
        raise RuntimeError("this gateway is the controller")

    async def create_topic(self, topic: NewTopic) -> None:
        raise RuntimeError("this gateway is the controller")

    async def allocate_producer_ids(self) -> range:
        raise RuntimeError("this gateway is the controller")


LOCAL_CONTROLLER = LocalController()


class RemoteController:
    """Access to the controller by calls.

    `controller_id` returns the controller's node id, None while there is none. `wait_for(revision)`
    returns once this gateway has replayed the metadata log to that revision.
    """

    def __init__(
        self,
        calls: Calls,
        clock: Clock,
        node_id: int,
        controller_id: Callable[[], int | None],
        wait_for: Callable[[int], Awaitable[None]],
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._node_id = node_id
        self._controller_id = controller_id
        self._wait_for = wait_for

    @property
    def is_local(self) -> bool:
        return self._controller_id() == self._node_id

    async def forward(self, request: ForwardedRequest, seconds: float) -> ForwardedReply:
        answer = await self._call(FORWARD, msgspec.msgpack.encode(request), seconds)
        reply = msgspec.msgpack.decode(answer, type=ForwardedReply)
        await self._replay(reply.revision)
        return reply

    async def create_topic(self, topic: NewTopic) -> None:
        answer = await self._call_or_raise(
            ErrorCode.LEADER_NOT_AVAILABLE, CREATE_TOPIC, msgspec.msgpack.encode(topic)
        )
        outcome = msgspec.msgpack.decode(answer, type=TopicOutcome)
        if outcome.code:
            raise KafkaError(ErrorCode(outcome.code), outcome.message)
        await self._replay(outcome.revision)

    async def allocate_producer_ids(self) -> range:
        answer = await self._call_or_raise(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALLOCATE_PRODUCER_IDS, b""
        )
        first, end = msgspec.msgpack.decode(answer, type=tuple[int, int])
        return range(first, end)

    async def _call_or_raise(self, code: ErrorCode, method: str, payload: bytes) -> bytes:
        """Call the controller for a request of another API. Any failure has this code."""
        try:
            return await self._call(method, payload, CALL_SECONDS)
        except KafkaError as failure:
            raise KafkaError(code, failure.message) from failure

    async def _call(self, method: str, payload: bytes, seconds: float) -> bytes:
        """Call the controller, and wait while there is none."""
        until = self._clock.seconds() + seconds
        while True:
            node_id, reason = self._controller_id(), "there is no controller"
            if node_id == self._node_id:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "this gateway is the controller now")
            left = until - self._clock.seconds()
            if node_id is not None and left > 0:
                try:
                    return await self._calls.call(node_id, method, payload, left)
                except CallRefused as refusal:
                    reason = str(refusal)
                except CallUnanswered as silence:
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT,
                        f"The controller may have executed the request: {silence}.",
                    ) from silence
                except CallFailed as failure:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {failure}."
                    ) from failure
            if self._clock.seconds() + RETRY_SECONDS >= until:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"Not executed: {reason}.")
            await sleep(self._clock, RETRY_SECONDS)

    async def _replay(self, revision: int) -> None:
        try:
            await shield_with_timeout(self._clock, REPLAY_SECONDS, self._replayed(revision))
        except TimeoutError:
            _log.warning(
                "change of the controller not visible yet",
                revision=revision,
                waited_seconds=REPLAY_SECONDS,
            )

    async def _replayed(self, revision: int) -> None:
        await self._wait_for(revision)
