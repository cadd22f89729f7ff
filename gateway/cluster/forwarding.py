"""Calls to the controller, the only gateway that changes the state of the whole cluster.

Client requests are forwarded as by Kafka's ForwardingManager. If a request was certainly not
executed, it fails with NOT_CONTROLLER: clients then refresh their metadata and retry. If it may
have been executed, it fails with REQUEST_TIMED_OUT, as in Kafka, and is not repeated: a second
CreateTopics would report that the topic exists. Only calls for producer ids are repeated.
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

#: Methods that only the controller executes.
FORWARD, CREATE_TOPIC, ALLOCATE_PRODUCER_IDS = "forward", "create-topic", "allocate-producer-ids"

#: Largest request that is forwarded, in bytes. The rest of `calls.MAX_PAYLOAD_BYTES`, 192 KiB, is
#: for the other fields of `ForwardedRequest`.
MAX_REQUEST_BYTES = 4 << 20

#: Seconds between two attempts to reach a controller while one is being elected.
RETRY_SECONDS = 0.1

#: Maximum seconds for a request. Clients wait 30 s for a reply.
REQUEST_SECONDS = 20.0

#: Timeout of calls for other requests, in seconds: creation of a missing topic, producer ids.
CALL_SECONDS = 5.0

#: Maximum seconds to wait until this gateway has replayed the changes of a request. The reply is
#: sent after that in any case.
REPLAY_SECONDS = 5.0


class ForwardedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A client's request, and what the controller needs to execute it for that client.

    `node_id` is the gateway that received the request, `peer` the client's "host:port", `host` its
    address. `kind`, `name` and `tenant` are those of its principal. `frame` is the request header
    and body as received.
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
    """The controller's reply to a ForwardedRequest.

    `body` is encoded for the client. `revision` is that of the metadata log after the request.
    `errors` is the number of occurrences of each error code in the body.
    """

    body: bytes
    revision: int
    errors: dict[int, int]


class NewTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that a gateway creates on first use, without a CreateTopics request."""

    name: str
    partitions: int
    configs: Mapping[str, str]


class TopicOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The metadata log's revision after the creation; `code` is 0 unless it failed."""

    revision: int
    code: int
    message: str


class ControllerAccess(Protocol):
    """The controller as seen by one gateway.

    `is_local` says whether this gateway is the controller. Only other gateways call the methods.
    `forward` and `create_topic` return once this gateway has replayed the change. All methods raise
    KafkaError.
    """

    @property
    def is_local(self) -> bool: ...

    async def forward(self, request: ForwardedRequest, seconds: float) -> ForwardedReply:
        """Return the controller's reply to a request. Waits for at most `seconds`."""
        ...

    async def create_topic(self, topic: NewTopic) -> None:
        """Create a topic if it does not exist.

        Raises LEADER_NOT_AVAILABLE if the call to the controller fails.
        """
        ...

    async def allocate_producer_ids(self) -> range:
        """Reserve a block of producer ids.

        Raises COORDINATOR_LOAD_IN_PROGRESS if calls to the controller fail for CALL_SECONDS, as
        Kafka's RPCProducerIdManager does at once: librdkafka 1.0 never asks again after an error.
        """
        ...


class LocalController:
    """The controller access of a gateway that is always the controller: its store is not shared."""

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
        # Ids of a call that was executed without an answer are never used.
        answer = await self._call_or_raise(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALLOCATE_PRODUCER_IDS, b"", is_repeatable=True
        )
        first, end = msgspec.msgpack.decode(answer, type=tuple[int, int])
        return range(first, end)

    async def _call_or_raise(
        self, code: ErrorCode, method: str, payload: bytes, *, is_repeatable: bool = False
    ) -> bytes:
        """Call the controller. Any failure is raised as a KafkaError with this code."""
        try:
            return await self._call(method, payload, CALL_SECONDS, is_repeatable=is_repeatable)
        except KafkaError as failure:
            raise KafkaError(code, failure.message) from failure

    async def _call(
        self, method: str, payload: bytes, seconds: float, *, is_repeatable: bool = False
    ) -> bytes:
        """Call the controller; wait for one while there is none. Raises KafkaError.

        A call that `is_repeatable` is made again after any failure.
        """
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
                    if not is_repeatable:
                        raise KafkaError(
                            ErrorCode.REQUEST_TIMED_OUT,
                            f"The controller may have executed the request: {silence}.",
                        ) from silence
                    reason = str(silence)
                except CallFailed as failure:
                    if not is_repeatable:
                        raise KafkaError(
                            ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller failed: {failure}."
                        ) from failure
                    reason = str(failure)
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
