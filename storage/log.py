"""What a store is to the gateway: partition logs, state tables and topics, in plain values.

Nothing here knows Kafka's messages, LMDB or Pulsar. Every store passes `tests/contract/`; a new verb comes with its case there.

The rules that every store keeps:

- One writer per partition. A writer that lost its right fails with `Fenced`, and so does everything it sends later; `Store.log` begins anew.
- Offsets are given out by the caller, in order and without gaps: an append starts at `next_offset`. The store refuses anything else.
- Acknowledged means durable: `append` and `put` return when the rows survive a power cut, and never before.
- When one append fails, those queued behind it fail too (their offsets would leave a gap); once they all have, `next_offset` is the
  durable end again and the log can be used.
- Nothing is visible to `read` before it is durable.
- All methods are called from the reactor thread and none blocks it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

Buffer = bytes | bytearray | memoryview


class StorageError(Exception):
    """Something the store could not do; the base of every error that a store raises on purpose."""


class StorageFailed(StorageError):
    """The medium failed: disk full, I/O error, broker lost. Nothing of the failed call is visible, and it may be tried again."""


class NotReady(StorageFailed):
    """What the store lies on is there, and has trouble of its own that may pass: it starts, or what it needs in turn is away."""


class NotAllowed(StorageError):
    """The medium does not let this process do that with this topic: to try again helps nobody before somebody grants it. The message says what to grant."""


class Fenced(StorageError):
    """Another writer leads this partition now, or what became of an append cannot be known. Whether the failed append was stored is unknown.

    The log is finished: every later call on it fails so too. `Store.log` gives a new one, which has taken the right to write anew.
    """


class EntryTooLarge(StorageError):
    """More than the medium takes in one piece; nothing of it was stored. The message says how large it was and how large it may be."""


class LogClosed(StorageError):
    """The topic was deleted, or the store was closed."""


class OffsetOutOfRange(StorageError):
    """An offset outside `start_offset <= offset <= end_offset` was asked for, or an append did not start at `next_offset`."""


class TopicExists(StorageError):
    """`create_topic` for a name that is taken."""


class UnknownTopic(StorageError):
    """No topic of that name."""


class StoreInUse(StorageError):
    """Another process holds this store. The message says which and what to do."""


class StaleStoreLock(StoreInUse, NotReady):
    """Whoever held this store seems to be gone, and the medium has not let go of it yet."""


class StoreTooNew(StorageError):
    """The store was written by a newer version. The message names both versions."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored unit: a Kafka batch or message set, opaque to the store.

    `base_offset` and `last_offset` are the first and last offset that it takes (gaps inside it are allowed); `max_timestamp` is the greatest
    record timestamp in milliseconds, -1 where there is none; `payload` is contiguous. A store that hands out an Entry hands out a copy:
    `payload` stays valid for as long as it is held.
    """

    base_offset: int
    last_offset: int
    max_timestamp: int
    payload: Buffer

    def __repr__(self) -> str:
        """Without the payload, which is nobody's business in a log."""
        return f"Entry({self.base_offset}-{self.last_offset}, {len(self.payload)} bytes)"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's metadata. `configs` are the overrides only, as they were given. `topic_id` is 16 bytes (a Kafka Uuid)."""

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """One place where a store keeps bytes: total and usable bytes of the volume, -1 where unknown."""

    path: str
    total_bytes: int
    usable_bytes: int


class PartitionLog(Protocol):
    """The entries of one partition in offset order.

    `start_offset <= end_offset <= next_offset`: the first readable offset, the one after the last durable record (the high watermark), and
    the one that the next append must begin at (it runs ahead of `end_offset` while appends are in flight). `size` is the number of payload bytes
    that are readable. `leader_epoch` is the epoch of this writer. `can_replace`: whether `replace` is for this log; what others write to as well
    its medium compacts in a way of its own, or nobody does.
    """

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def can_replace(self) -> bool: ...

    def append(self, entries: Sequence[Entry]) -> Awaitable[int | None]:
        """Queue `entries` (contiguous, the first at `next_offset`) in the order of the calls; they are stored all or none.

        `next_offset` has moved when this call returns; the awaitable fires when they are durable. It can be cancelled: the entries are then
        stored all the same, only nobody is told. The payloads are handed over: nobody changes them afterwards.

        A log of a medium that others write to as well gives offsets out itself: its `next_offset` is only a name for what is in flight, above any
        real offset, and the awaitable gives the offset of the first record. That of any other gives None.
        Raises (through the awaitable) StorageFailed, Fenced, LogClosed, OffsetOutOfRange, EntryTooLarge.
        """
        ...

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Whole entries, beginning with the one that contains `offset` (or, where that is missing, the next one after it).

        As many as fit in `max_bytes` together, but always at least one where there is one; empty at `end_offset`.
        Raises OffsetOutOfRange, LogClosed, StorageFailed.
        """
        ...

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """As `read`, at once and from memory; None where that would touch a disk or a network. The fast road for tail reads."""
        ...

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        """The first readable entry whose `max_timestamp` is at least `timestamp` (ms); None where there is none."""
        ...

    async def latest_by_time(self) -> Entry | None:
        """The first entry that bears the greatest `max_timestamp` of all readable ones; None where there is none with a timestamp."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(the greatest epoch <= `leader_epoch` that wrote here, the offset where it ended); (-1, -1) where there is none.

        The rule is that of Kafka's LeaderEpochFileCache.endOffsetFor: an epoch greater than the current one is unknown, (-1, -1).
        """
        ...

    async def delete_before(self, offset: int) -> int:
        """Move `start_offset` up to `offset`, durably, and free what lies wholly before it; the new start offset. Never moves it down.

        An entry that straddles `offset` stays whole. Raises OffsetOutOfRange beyond `end_offset`.
        """
        ...

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """Delete from the front what retention no longer keeps; the new start offset.

        `since` (ms): entries before the first one whose `max_timestamp` reaches it go (one without a timestamp counts as old).
        `at_most_bytes`: an entry at the front goes while what remains without it is still at least this much, as in Kafka a segment does.
        """
        ...

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        """Compaction: the stored entries with `first <= base_offset` and `last_offset <= last` become `entries`, in one durable step.

        `entries` lie within the same range in offset order, overlap none that stays, and bear no later timestamp than those they replace;
        `end_offset` does not move. What lies wholly before `start_offset` by then stays deleted. Readers see the old or the new, never a
        mixture. Raises ValueError, LogClosed, StorageFailed; that where `can_replace` does not hold.
        """
        ...

    async def reclaim(self) -> None:
        """Free the space of what `replace` and `delete_before` took away, where the medium could not do so at once. Readers see no difference.

        To be called now and then; it may take long. Raises LogClosed, Fenced, StorageFailed.
        """
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` (cheap, never raising) whenever `end_offset` or `start_offset` moved, or the log was closed or fenced."""
        ...

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """Undo `watch`; nothing happens where it was not watching."""
        ...


class StateTable(Protocol):
    """A small keyed table: groups, offsets, producer snapshots, ids. Kept in memory by its owner, made durable here."""

    async def items(self) -> list[tuple[bytes, bytes]]:
        """Every row, in key order."""
        ...

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """Set (or with None delete) these rows, all or none; durable when it fires. Puts are stored in the order of the calls.

        A key has 1 to 480 bytes. Raises StorageFailed, Fenced, LogClosed, EntryTooLarge, ValueError.
        """
        ...


class Store(Protocol):
    """Topics, their logs, and tables."""

    retains_by_itself: bool
    """Whether the medium applies the retention of a topic's configs to logs that nobody has opened; `PartitionLog.retain` is then only for open ones."""

    async def open(self) -> None:
        """Take the store for this process. Raises StoreInUse, StoreTooNew, StorageFailed."""
        ...

    def when_lost(self, call: Callable[[str], None]) -> None:
        """`call` once, with the reason, if another process takes the store away: nothing can be written from then on. To be said before `open`."""
        ...

    @property
    def may_be_lost(self) -> bool:
        """Whether another process may have taken the store since it was last known to be held here.

        What the caller keeps in memory of its tables may then be out of date: see `confirm_held`.
        Costs no I/O.
        """
        ...

    async def confirm_held(self) -> None:
        """Return once the medium has confirmed that this process holds the store; at once unless
        `may_be_lost`. Raises Fenced, StorageFailed.
        """
        ...

    async def close(self) -> None:
        """Write what is queued, then release everything. Later calls raise LogClosed."""
        ...

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Every topic by name: a live, read-only view."""
        ...

    def watch_topics(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` (cheap, never raising) after `topics` changed by somebody else than this store's own calls. The logs of those that are gone are closed."""
        ...

    def canonical(self, name: str) -> str:
        """The name that a topic has in `topics`, of those that it may be called by. Raises ValueError for what can be no topic of this store.

        A name of the embedded store is what it is; Pulsar knows a topic by its full name, too.
        """
        ...

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """A group's committed offset, for a medium that shows its operators how far readers are behind. Cheap; what comes too fast is dropped."""
        ...

    async def create_topic(self, topic: Topic) -> None:
        """Durable when it returns. Raises TopicExists, StorageFailed, and ValueError where the id is not 16 bytes or there is no partition."""
        ...

    async def alter_topic(self, topic: Topic) -> None:
        """Give the topic of that name these configs and this many partitions (never fewer); its id stays. Raises UnknownTopic, ValueError, StorageFailed."""
        ...

    async def delete_topic(self, name: str) -> None:
        """The topic is gone when this returns, its logs closed; its space is freed afterwards. Raises UnknownTopic, Fenced, StorageFailed."""
        ...

    async def log(self, topic: str, partition: int) -> PartitionLog:
        """The log of one partition, opened for writing, the same object at each call. Raises UnknownTopic, Fenced, StorageFailed."""
        ...

    async def table(self, name: str) -> StateTable:
        """The table of that name, made where it is missing, the same object at each call."""
        ...

    def usage(self) -> Iterable[VolumeUsage]:
        """Where the bytes are."""
        ...
