"""Parses and encodes ConsumerProtocolSubscription and ConsumerProtocolAssignment.

A classic group reads only the subscribed topics, for offset expiration. A consumer group with
classic-protocol members reads and writes all fields (KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct, error

#: Protocol type of consumers. Kafka Connect and others use their own types and formats.
CONSUMER_PROTOCOL_TYPE = "consumer"

#: Maximum number of topics and partitions parsed for one group, about 30 ms of work. A megabyte of
#: metadata can name 300,000.
MAX_ELEMENTS = 100_000

#: Newest known version. Each version extends the previous one, so newer ones are parsed as this.
_NEWEST = 3

_INT16 = Struct(">h")
_INT32 = Struct(">i")

#: Partitions by topic name.
PartitionsByName = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscribed topics and currently owned partitions (v1; empty with eager rebalancing)."""

    topics: frozenset[str]
    owned: PartitionsByName
    rack_id: str | None = None


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All subscribed topics; None if a subscription is malformed or they exceed MAX_ELEMENTS."""
    found: set[str] = set()
    remaining = MAX_ELEMENTS
    try:
        for member_metadata in metadata:
            topics = _Reader(member_metadata, remaining).read_version().strings()
            found.update(topics)
            remaining -= len(topics)
    except (ValueError, error):
        return None
    return frozenset(found)


def parse_subscription(metadata: bytes, max_elements: int = MAX_ELEMENTS) -> Subscription:
    """Raises ValueError if malformed or beyond `max_elements` topics and partitions.

    Missing fields at the end are treated as unset.
    """
    try:
        reader = _Reader(metadata, max_elements).read_version()
        topics = frozenset(reader.strings())
        reader.data()
        owned = reader.partitions() if reader.version >= 1 and not reader.is_at_end else {}
        if reader.version >= 2 and not reader.is_at_end:
            reader.int32()
        rack_id = reader.nullable_string() if reader.version >= 3 and not reader.is_at_end else None
    except error as short:
        raise ValueError("truncated subscription") from short
    return Subscription(topics, owned, rack_id)


def parse_assignment(
    assignment: bytes, max_elements: int = MAX_ELEMENTS
) -> tuple[PartitionsByName, bytes]:
    """The partitions and the assignor's user data. Raises ValueError like `parse_subscription`."""
    if not assignment:
        return {}, b""
    try:
        reader = _Reader(assignment, max_elements).read_version()
        return reader.partitions(), b"" if reader.is_at_end else reader.data()
    except error as short:
        raise ValueError("truncated assignment") from short


def encode_assignment(partitions: PartitionsByName, metadata: bytes) -> bytes:
    """An assignment in the version of the member's metadata."""
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
    """Raises ValueError, or struct.error if the message is truncated.

    `max_elements` limits the total number of elements.
    """

    def __init__(self, message: bytes, max_elements: int) -> None:
        self._message = message
        self._remaining = max_elements
        self._position = 0
        self.version = 0

    def read_version(self) -> _Reader:
        self.version = min(self._number(_INT16), _NEWEST)
        if self.version < 0:
            raise ValueError("negative version")
        return self

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._message)

    def int32(self) -> int:
        return self._number(_INT32)

    def strings(self) -> list[str]:
        return [self._string() for _ in range(self._array_length(_INT16.size))]

    def partitions(self) -> PartitionsByName:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self._array_length(_INT16.size + _INT32.size)):
            topic = self._string()
            indexes = frozenset(self.int32() for _ in range(self._array_length(_INT32.size)))
            found[topic] = found.get(topic, frozenset()) | indexes
        return found

    def data(self) -> bytes:
        return self._bytes(max(self.int32(), 0))

    def nullable_string(self) -> str | None:
        length = self._number(_INT16)
        return None if length < 0 else str(self._bytes(length), "utf-8")

    def _string(self) -> str:
        return str(self._bytes(self._number(_INT16)), "utf-8")

    def _array_length(self, size: int) -> int:
        """Read the length of an array whose elements take at least `size` bytes each."""
        count = self.int32()
        if not 0 <= count <= (len(self._message) - self._position) // size:
            raise ValueError("array length exceeds the message")
        self._remaining -= count
        if self._remaining < 0:
            raise ValueError("too many topics and partitions")
        return count

    def _number(self, kind: Struct) -> int:
        (number,) = kind.unpack_from(self._message, self._position)
        self._position += kind.size
        return int(number)

    def _bytes(self, length: int) -> bytes:
        if not 0 <= length <= len(self._message) - self._position:
            raise ValueError("string length exceeds the message")
        self._position += length
        return self._message[self._position - length : self._position]
