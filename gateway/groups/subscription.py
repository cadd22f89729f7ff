"""What a consumer's metadata says of its subscription: the one thing in there that is looked at. All else is the members' own business."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error

#: The protocol type of those whose metadata has this layout; Connect and others have their own.
CONSUMER = "consumer"

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that these members subscribe to; None where one of them does not say it in Kafka's layout."""
    try:
        return frozenset(topic for one in metadata for topic in _topics(one))
    except (ValueError, error):
        return None


def _topics(metadata: bytes) -> set[str]:
    """ConsumerProtocolSubscription: every version begins as version 0 does, with the version and the topics."""
    version, count = _VERSION_AND_COUNT.unpack_from(metadata)
    # A topic takes at least the two bytes of its length.
    if version < 0 or not 0 <= count <= (len(metadata) - _VERSION_AND_COUNT.size) // _LENGTH.size:
        raise ValueError("no subscription")
    topics, position = set(), _VERSION_AND_COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if not 0 <= length <= len(metadata) - position:
            raise ValueError("no subscription")
        topics.add(str(metadata[position : position + length], "utf-8"))
        position += length
    return topics
