"""Rows of topics in the metadata log, from which all gateways of a cluster know the topics.

Only the controller asks Pulsar which topics there are, and writes what it learns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import msgspec

from storage.log import Topic
from storage.pulsar.topics.topic_listing import PulsarTopic

T = TypeVar("T")
Rows = Mapping[bytes, bytes | None]
"""Changed rows by key; None for a deleted row."""

SECTION = b"topics\0"
"""Prefix of the keys of topics in the metadata log."""

MAX_NAME_BYTES = 400
"""Longest name that is a key itself. The log allows keys of 512 bytes, with the prefix."""


class LoggedTopic(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A `PulsarTopic`. Later versions append fields; an older one ignores and drops them."""

    name: str
    topic_id: bytes
    partitions: int
    configs: dict[str, str]
    full_name: str
    is_partitioned: bool
    entry_format: str | None = None
    retention: str | None = None
    is_being_deleted: bool = False


class DeletedTopic(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A topic that a gateway deleted, by which others find the rows that it left behind.

    Later deletions have greater numbers.
    """

    name: str
    topic_id: bytes
    partitions: int
    number: int


_decoder = msgspec.msgpack.Decoder(LoggedTopic)
_deletion_decoder = msgspec.msgpack.Decoder(DeletedTopic)


def encode_topic(found: PulsarTopic) -> bytes:
    topic = found.topic
    return msgspec.msgpack.encode(
        LoggedTopic(
            topic.name,
            topic.topic_id,
            topic.partitions,
            dict(topic.configs),
            found.full_name,
            found.is_partitioned,
            found.entry_format,
            found.retention,
            found.is_being_deleted,
        )
    )


def decode_topic(row: bytes) -> PulsarTopic:
    """Raises ValueError for a row that is not a topic's."""
    read = _decoder.decode(row)
    return PulsarTopic(
        Topic(read.name, read.topic_id, read.partitions, read.configs),
        read.full_name,
        read.is_partitioned,
        read.entry_format,
        read.retention,
        read.is_being_deleted,
    )


def topic_key(name: str) -> bytes:
    """The key of the topic's row: its name; a long name is shortened, and its hash appended."""
    key = name.encode()
    if len(key) <= MAX_NAME_BYTES:
        return key
    # No name contains a zero byte.
    return key[: MAX_NAME_BYTES - 33] + b"\0" + hashlib.sha256(key).digest()


def deletion_key(topic_id: bytes) -> bytes:
    """The key of a `DeletedTopic`. No name of a topic begins with a zero byte."""
    return b"\0" + topic_id


def is_deletion(key: bytes) -> bool:
    return key.startswith(b"\0")


def encode_deletion(deleted: DeletedTopic) -> bytes:
    return msgspec.msgpack.encode(deleted)


def decode_deletion(row: bytes) -> DeletedTopic:
    """Raises ValueError for a row that is not a deleted topic's."""
    return _deletion_decoder.decode(row)


class ReplayedRows(Protocol):
    """The part of a `storage.cluster.MetadataLog` that is used here, for any keys."""

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """The replayed rows: a live view."""
        ...

    def watch(self, call: Callable[[Rows], None]) -> None:
        """Register `call` for changes of `rows`, after the change and in log order.

        Puts of this process are included, before the put's awaitable fires.
        """
        ...

    def put(self, rows: Rows) -> Awaitable[None]:
        """Set these rows, all or none, after all earlier puts; fires when they are durable.

        Cancelling the awaitable does not cancel the put. Raises Fenced if this process is not the
        writer, and StorageFailed, after which the outcome is unknown until `rows` shows it.
        """
        ...


class SectionRows:
    """The rows of one section of a log, without the section's prefix."""

    def __init__(self, log: ReplayedRows, section: bytes = SECTION) -> None:
        self._log = log
        self._section = section

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        """A copy, made by reading the whole log."""
        return self._without_prefix(self._log.rows)

    def watch(self, call: Callable[[Rows], None]) -> None:
        def changed(rows: Rows) -> None:
            own = self._without_prefix(rows)
            if own:
                call(own)

        self._log.watch(changed)

    def put(self, rows: Rows) -> Awaitable[None]:
        return self._log.put({self._section + key: row for key, row in rows.items()})

    def _without_prefix(self, rows: Mapping[bytes, T]) -> dict[bytes, T]:
        section, begin = self._section, len(self._section)
        return {key[begin:]: row for key, row in rows.items() if key.startswith(section)}
