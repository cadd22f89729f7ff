"""What members of the classic protocol say to each other of topics, in ConsumerProtocolSubscription and ConsumerProtocolAssignment.

To a classic group only the topics are of interest, for the offsets that it keeps; all else is its members' own business. A consumer group with
classic members reads and writes all of it (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct, error

#: The protocol type of those whose metadata has this layout; Connect and others have their own.
CONSUMER_PROTOCOL_TYPE = "consumer"

#: Topics and partitions that are read of what the members of one group say, one counting as often as it is named: some 30 ms' worth. A megabyte of
#: metadata can name 300,000, and a group has many members.
MAX_ELEMENTS = 100_000

#: The newest version that is known. Every version begins as the one before it, so a newer one is read as this.
_NEWEST = 3

_INT16 = Struct(">h")
_INT32 = Struct(">i")

#: By topic name.
PartitionsByName = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member reads, and what it has while it joins (v1; those that give everything back before they join have nothing)."""

    topics: frozenset[str]
    owned: PartitionsByName
    rack_id: str | None = None


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that these members subscribe to; None where one of them does not say it in Kafka's layout, or they name more than MAX_NAMED."""
    found: set[str] = set()
    room = MAX_ELEMENTS
    try:
        for one in metadata:
            topics = _Reader(one, room).begin().strings()
            found.update(topics)
            room -= len(topics)
    except (ValueError, error):
        return None
    return frozenset(found)


def parse_subscription(metadata: bytes, most: int = MAX_ELEMENTS) -> Subscription:
    """Raises ValueError for what is not in Kafka's layout, or names more than `most` topics and partitions. What a client left out at the end counts
    as not said."""
    try:
        reader = _Reader(metadata, most).begin()
        topics = frozenset(reader.strings())
        reader.data()
        owned = reader.partitions() if reader.version >= 1 and not reader.is_at_end else {}
        if reader.version >= 2 and not reader.is_at_end:
            reader.int32()
        rack_id = reader.nullable_string() if reader.version >= 3 and not reader.is_at_end else None
    except error as short:
        raise ValueError("the subscription is cut short") from short
    return Subscription(topics, owned, rack_id)


def parse_assignment(assignment: bytes, most: int = MAX_ELEMENTS) -> tuple[PartitionsByName, bytes]:
    """The partitions, and what an assignor of their own put beside them. Raises ValueError as `parse_subscription`."""
    if not assignment:
        return {}, b""
    try:
        reader = _Reader(assignment, most).begin()
        return reader.partitions(), b"" if reader.is_at_end else reader.data()
    except error as short:
        raise ValueError("the assignment is cut short") from short


def encode_assignment(partitions: PartitionsByName, metadata: bytes) -> bytes:
    """An assignment in the version of its member's metadata."""
    parts = [metadata[: _INT16.size], _INT32.pack(len(partitions))]
    for topic, indexes in sorted(partitions.items()):
        name = topic.encode()
        parts += [
            _INT16.pack(len(name)),
            name,
            _INT32.pack(len(indexes)),
            *(_INT32.pack(index) for index in sorted(indexes)),
        ]
    return b"".join((*parts, _INT32.pack(-1)))


class _Reader:
    """Raises ValueError, or struct.error where there is too little. `most` is how many elements there may be in all."""

    def __init__(self, message: bytes, most: int) -> None:
        self._message = message
        self._room = most
        self._position = 0
        self.version = 0

    def begin(self) -> _Reader:
        self.version = min(self._number(_INT16), _NEWEST)
        if self.version < 0:
            raise ValueError("a version below 0")
        return self

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._message)

    def int32(self) -> int:
        return self._number(_INT32)

    def strings(self) -> list[str]:
        return [self._string() for _ in range(self._account_size(_INT16.size))]

    def partitions(self) -> PartitionsByName:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self._account_size(_INT16.size + _INT32.size)):
            topic = self._string()
            indexes = frozenset(self.int32() for _ in range(self._account_size(_INT32.size)))
            found[topic] = found.get(topic, frozenset()) | indexes
        return found

    def data(self) -> bytes:
        return self._bytes(max(self.int32(), 0))

    def nullable_string(self) -> str | None:
        length = self._number(_INT16)
        return None if length < 0 else str(self._bytes(length), "utf-8")

    def _string(self) -> str:
        return str(self._bytes(self._number(_INT16)), "utf-8")

    def _account_size(self, size: int) -> int:
        """How many elements come, of at least that size each."""
        count = self.int32()
        if not 0 <= count <= (len(self._message) - self._position) // size:
            raise ValueError("more elements than there is room for")
        self._room -= count
        if self._room < 0:
            raise ValueError("it names too many topics and partitions")
        return count

    def _number(self, kind: Struct) -> int:
        (number,) = kind.unpack_from(self._message, self._position)
        self._position += kind.size
        return int(number)

    def _bytes(self, length: int) -> bytes:
        if not 0 <= length <= len(self._message) - self._position:
            raise ValueError("longer than the message")
        self._position += length
        return self._message[self._position - length : self._position]
