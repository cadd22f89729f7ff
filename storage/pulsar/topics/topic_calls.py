"""Operations on topics that any gateway needs and only the controller performs.

A follower sends them as calls with a method name and bytes; the transport is the caller's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from storage.log import StorageError, StorageFailed, Topic, UnknownTopic
from storage.pulsar.log.offset_index import Position

T = TypeVar("T")

Call = Callable[[str, bytes], Awaitable[bytes]]
"""`call(method, payload)` sends a call to the controller and returns its answer.

Raises StorageFailed if there is no controller, or no answer in time: then the outcome is unknown.
"""


class NotController(StorageFailed):
    """This gateway is not the controller, at least not any more. The caller asks the controller,
    or retries.
    """


class TopicController(Protocol):
    """All methods raise StorageFailed. Repeating one after an unknown outcome is harmless."""

    async def reload(self, name: str) -> Topic | None:
        """Read one topic from Pulsar; None if it does not exist.

        What differs is written to the metadata log, so all gateways see it.
        """
        ...

    async def create_missing_partitions(self, name: str) -> None:
        """Create partitions of a topic that do not exist. Raises UnknownTopic."""
        ...

    async def can_trim(self, topic: str, keep: Position) -> bool:
        """`TopicTrimmer.can_trim`."""
        ...

    async def trim(self, topic: str, keep: Position) -> None:
        """`TopicTrimmer.trim`."""
        ...


class ServedTopics(TopicController, Protocol):
    """The controller's side."""

    def check_leads(self) -> None:
        """Raises NotController."""
        ...


class _NameCall(msgspec.Struct, array_like=True, frozen=True):
    name: str


class _TrimCall(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    ledger_id: int
    entry_id: int


class _TopicAnswer(msgspec.Struct, array_like=True, frozen=True):
    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]


class _Answer(msgspec.Struct, array_like=True, frozen=True):
    """The result in msgpack, or the name of an error in `_ERRORS` and its message."""

    result: bytes
    error: str = ""
    message: str = ""


_ERRORS: dict[str, type[StorageError]] = {
    "UnknownTopic": UnknownTopic,
    "NotController": NotController,
}
"""Other errors become StorageFailed."""

RELOAD = "topics.reload"
CREATE_MISSING_PARTITIONS = "topics.create_missing_partitions"
CAN_TRIM = "topics.can_trim"
TRIM = "topics.trim"
CONTROLLER_METHODS = (RELOAD, CREATE_MISSING_PARTITIONS, CAN_TRIM, TRIM)


class RemoteTopics:
    """The `TopicController` of a follower."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def reload(self, name: str) -> Topic | None:
        found = await self._ask(RELOAD, _NameCall(name), _TopicAnswer | None)
        return found and Topic(found.name, found.topic_id, found.partitions, found.configs)

    async def create_missing_partitions(self, name: str) -> None:
        await self._ask(CREATE_MISSING_PARTITIONS, _NameCall(name), None)

    async def can_trim(self, topic: str, keep: Position) -> bool:
        can_trim: bool = await self._ask(CAN_TRIM, _trim_call(topic, keep), bool)
        return can_trim

    async def trim(self, topic: str, keep: Position) -> None:
        await self._ask(TRIM, _trim_call(topic, keep), None)

    async def _ask(self, method: str, arguments: msgspec.Struct, kind: Any) -> Any:
        received = await self._call(method, msgspec.msgpack.encode(arguments))
        try:
            answer = msgspec.msgpack.decode(received, type=_Answer)
            if not answer.error:
                return msgspec.msgpack.decode(answer.result, type=kind)
        except msgspec.DecodeError as error:
            raise StorageFailed(f"{method}: invalid answer of the controller: {error}") from None
        raise _ERRORS.get(answer.error, StorageFailed)(answer.message)


async def answer_call(topics: ServedTopics, method: str, payload: bytes) -> bytes:
    """Perform a call of `RemoteTopics` and return the answer, which may be an error."""
    try:
        topics.check_leads()
        result = await _perform(topics, method, payload)
    except (StorageError, ValueError) as error:
        # ValueError: a name that is not served here, although all gateways need the same settings.
        kind = next((name for name, one in _ERRORS.items() if isinstance(error, one)), "other")
        return msgspec.msgpack.encode(_Answer(b"", kind, str(error)))
    return msgspec.msgpack.encode(_Answer(msgspec.msgpack.encode(result)))


async def _perform(topics: ServedTopics, method: str, payload: bytes) -> object:
    if method == RELOAD:
        topic = await topics.reload(_decode(method, payload, _NameCall).name)
        return topic and _TopicAnswer(
            topic.name, topic.topic_id, topic.partitions, dict(topic.configs)
        )
    if method == CREATE_MISSING_PARTITIONS:
        await topics.create_missing_partitions(_decode(method, payload, _NameCall).name)
        return None
    if method == CAN_TRIM:
        asked = _decode(method, payload, _TrimCall)
        return await topics.can_trim(asked.topic, Position(asked.ledger_id, asked.entry_id))
    if method == TRIM:
        asked = _decode(method, payload, _TrimCall)
        await topics.trim(asked.topic, Position(asked.ledger_id, asked.entry_id))
        return None
    raise StorageFailed(f"the controller has no method {method}: another version of the gateway?")


def _decode(method: str, payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise StorageFailed(f"{method}: invalid arguments: {error}") from None


def _trim_call(topic: str, keep: Position) -> _TrimCall:
    return _TrimCall(topic, keep.ledger_id, keep.entry_id)
