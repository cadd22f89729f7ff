"""The storage interface: partition logs, state tables and topics, in plain values.

It does not depend on Kafka's messages, LMDB or Pulsar. Every store passes `tests/contract/`; a new
method is added together with its contract test.

Rules that every store keeps:

- One writer per partition. A writer that lost its right to write fails with `Fenced`, and so does
  everything it sends later; `Store.log` opens the partition again.
- Offsets are assigned by the caller, in order and without gaps: an append starts at `next_offset`.
  The store refuses any other offset.
- Acknowledged means durable: `append` and `put` complete only when the rows survive a power
  failure.
- When an append fails, the appends queued behind it fail too, since their offsets would leave a
  gap. After the last of them, `next_offset` is the durable end again and the log is usable.
- `read` returns durable entries only.
- All methods are called from the reactor thread and none blocks it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from storage.permissions import Permissions

Buffer = bytes | bytearray | memoryview

LOG_CLOSED = "the log is closed: its topic was deleted or the store was closed"

logger = logging.getLogger(__name__)


class StorageError(Exception):
    """Base class of all errors that a store raises deliberately."""


class StorageFailed(StorageError):
    """The medium failed: disk full, I/O error, broker unavailable. Retryable; nothing of the failed
    call is visible.
    """


class NotReady(StorageFailed):
    """The medium answers but is temporarily unable to serve, for example while it starts."""


class EntryDamaged(StorageFailed):
    """The disk cannot read a stored entry, or its checksum is wrong.

    The three numbers are those of the entry. Other entries may be readable. `may_recover` is
    whether reading it failed, so that a later read may succeed.
    """

    def __init__(
        self,
        message: str,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        *,
        may_recover: bool,
    ) -> None:
        super().__init__(message)
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.may_recover = may_recover


class NotAllowed(StorageError):
    """Permission denied by the medium. Not retryable until permission is granted; the message says
    which.
    """


class Fenced(StorageError):
    """Another writer leads this partition, or the outcome of an append is unknown.

    A failed append may or may not be stored. Every later call on the log fails the same way;
    `Store.log` returns a new log that has acquired the right to write again.
    """


class EntryTooLarge(StorageError):
    """The entry exceeds the medium's size limit; nothing was stored. The message gives size and
    limit.
    """


class LogClosed(StorageError):
    """The topic was deleted, or the store was closed."""


class OffsetOutOfRange(StorageError):
    """A read outside `start_offset <= offset <= end_offset`, or an append not at `next_offset`."""


class TopicExists(StorageError):
    """`create_topic` for a name in use."""


class UnknownTopic(StorageError):
    """No topic of that name."""


class ShardNotOpen(StorageError):
    """The shard is not open in this process: another gateway may lead it."""


class StoreInUse(StorageError):
    """Another process holds this store. The message says which one and what to do."""


class StaleStoreLock(StoreInUse, NotReady):
    """The holder of this store seems to be gone, but the medium has not released its lock yet."""


class StoreTooNew(StorageError):
    """The store was written by a newer version. The message names both versions."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One stored unit: a Kafka batch or message set, opaque to the store.

    `base_offset` and `last_offset` are its first and last offset (gaps inside are allowed).
    `max_timestamp` is the greatest record timestamp in milliseconds, -1 if there is none. `payload`
    is contiguous and never changes. Payloads that a store returns may be views of one buffer, which
    is at most 1/7 larger than all of them and kept as long as one of them.
    """

    base_offset: int
    last_offset: int
    max_timestamp: int
    payload: Buffer

    def __repr__(self) -> str:
        """Omits the payload, which must not be logged."""
        return f"Entry({self.base_offset}-{self.last_offset}, {len(self.payload)} bytes)"


_INTERFACE = 4
"""Expected INTERFACE of the compiled module; incremented when something in it changes."""

compiled: Any = None
"""The module with compiled classes for this module and `tail.py`, if it is available."""

if not TYPE_CHECKING and os.environ.get("KOPGATE_PURE_PYTHON", "") in ("", "0"):
    try:
        import storage._log as _log
    except ImportError:
        pass
    else:
        if getattr(_log, "INTERFACE", 1) == _INTERFACE:
            compiled = _log
            # The compiled version, which other compiled modules require.
            Entry = _log.Entry


class EntryRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries of a log as one value: `payload` is their payloads, joined.

    `base_offset` is that of the first one, `last_offset` that of the last one. `entries()` returns
    them separately, without reading them again.
    """

    base_offset: int
    last_offset: int
    count: int
    payload: Buffer
    entries: Callable[[], list[Entry]]

    def __repr__(self) -> str:
        """Omits the payload, which must not be logged."""
        return f"EntryRun({self.base_offset}-{self.last_offset}, {len(self.payload)} bytes)"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's metadata. `configs` holds only overrides, as given. `topic_id` is 16 bytes (a Kafka
    Uuid).
    """

    name: str
    topic_id: bytes
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """Total and usable bytes of a volume that holds store data; -1 if unknown."""

    path: str
    total_bytes: int
    usable_bytes: int


class PartitionLog(Protocol):
    """The entries of one partition in offset order.

    `start_offset <= end_offset <= next_offset`: the first readable offset, the offset after the
    last durable record (the high watermark), and the offset of the next append (ahead of
    `end_offset` while appends are in flight). `size` is the number of readable payload bytes.
    `leader_epoch` is the epoch of this writer.

    `can_replace` is whether the log supports `replace`. A log that other programs also write to
    does not: its medium compacts it, or nothing does.
    """

    status: LogStatus

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
        """Queue contiguous `entries`, the first at `next_offset`; all or none are stored.

        Entries are stored in the order of the calls. `next_offset` has advanced when this returns.
        The awaitable fires when the entries are durable; it must be awaited only once. Cancelling
        it does not cancel the append. The caller must not change the payloads afterwards.

        A log that other programs also write to assigns offsets itself: its `next_offset` only
        identifies what is in flight, above any real offset, and the awaitable gives the offset of
        the first record. For other logs it gives None.

        Raises (through the awaitable) StorageFailed, Fenced, LogClosed, OffsetOutOfRange,
        EntryTooLarge.
        """
        ...

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        """Read whole entries, from the one that contains `offset` or the next one after it.

        Returns as many as fit in `max_bytes`, but at least one if there is one; an empty list at
        `end_offset`. A store may have further limits, but also returns at least one. Raises
        OffsetOutOfRange, LogClosed, StorageFailed; EntryDamaged if the first one is damaged.
        """
        ...

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        """As `read`, synchronously from memory; None if disk or network would be needed.

        The fast path of tail reads.
        """
        ...

    def read_run(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> EntryRun | None:
        """As `read_resident`, as one value, which costs less if there are many entries.

        Without `at_least_one` the run is empty if not even the first entry fits in `max_bytes`; it
        is then not read. None also if the log has the payloads separately, or none.
        """
        ...

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        """The first readable entry with `max_timestamp >= timestamp` (ms), or None.

        Raises EntryDamaged if the disk does not return that one.
        """
        ...

    async def latest_by_time(self) -> Entry | None:
        """The first readable entry with the greatest `max_timestamp`; None if no entry has a
        timestamp. Raises EntryDamaged as `entry_for_time` does.
        """
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (the greatest epoch <= `leader_epoch` that wrote here, its end offset).

        As Kafka's LeaderEpochFileCache.endOffsetFor: (-1, -1) if there is none or if `leader_epoch`
        is greater than the current one.
        """
        ...

    async def delete_before(self, offset: int) -> int:
        """Raise `start_offset` to `offset` durably and free the entries wholly before it.

        Returns the new start offset, which is never lowered. An entry that spans `offset` stays
        whole. Raises OffsetOutOfRange if `offset` is beyond `end_offset`.
        """
        ...

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        """Delete entries from the start that retention no longer keeps; return the new start
        offset.

        `since` (ms): delete entries before the first one with `max_timestamp >= since`; an entry
        without a timestamp counts as old. `at_most_bytes`: delete the first entry while the
        remaining ones still total at least this many bytes, as Kafka does with segments.
        """
        ...

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        """Compaction: atomically and durably replace the entries within `first` to `last` by
        `entries`.

        Replaced are entries with `first <= base_offset` and `last_offset <= last`. `entries` lie
        within the same range in offset order, overlap no remaining entry, and have no later
        timestamp than those they replace. `end_offset` does not change. What was deleted before
        `start_offset` meanwhile stays deleted. Readers see the old or the new entries, never a
        mixture.

        Raises ValueError (also if `can_replace` is False), LogClosed, StorageFailed.
        """
        ...

    async def reclaim(self) -> None:
        """Free space left by `replace` and `delete_before` that could not be freed at once.

        Call it periodically; it may take long. Reads are not affected. Raises LogClosed, Fenced,
        StorageFailed.
        """
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` when `end_offset` or `start_offset` changes or the log is closed or
        fenced.

        `on_change` must be cheap and must not raise.
        """
        ...

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """Undo `watch`; no effect if `on_change` is not registered."""
        ...


class _LogStatusState:
    __slots__ = ("end_reason", "watchers")

    end_reason: StorageError | None
    watchers: list[Callable[[], None]]


if not TYPE_CHECKING and compiled:
    _LogStatusState = compiled.LogStatusState


class LogStatus(_LogStatusState):
    """Whether a log is open, and the watchers of its changes.

    Every `PartitionLog` has one. `end_reason` is set once the log is closed or fenced.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.end_reason = None
        self.watchers = []

    def watch(self, on_change: Callable[[], None]) -> None:
        self.watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        if on_change in self.watchers:
            self.watchers.remove(on_change)

    def notify(self) -> None:
        """Call all watchers; an error in one of them is logged."""
        for on_change in tuple(self.watchers):
            try:
                on_change()
            except Exception:
                logger.exception(
                    "bug: a watcher of a log raised; the log and other watchers are not affected"
                )

    def end(self, reason: StorageError) -> None:
        """Make `check_open` fail from now on; later reasons are ignored. Does not call `notify`."""
        self.end_reason = self.end_reason or reason

    def check_open(self) -> None:
        """Raise a new exception like the end reason, if there is one.

        An exception that is raised repeatedly would grow its traceback.
        """
        if self.end_reason is not None:
            raise type(self.end_reason)(str(self.end_reason))


class StateTable(Protocol):
    """A small keyed table (groups, offsets, producer snapshots, ids).

    Its owner keeps the rows in memory; the table makes them durable.
    """

    async def items(self) -> list[tuple[bytes, bytes]]:
        """All rows, in key order."""
        ...

    def watch(self, on_change: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """Call `on_change` with rows that another process changed (None: deleted) after `items`.

        Must be called before `items`. A table that only one process writes never calls it.
        `on_change` must be cheap and must not raise.
        """
        ...

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """Set these rows (None deletes), all or none; fires when they are durable.

        Puts are stored in the order of the calls. A key has 1 to 480 bytes. Raises StorageFailed,
        Fenced, LogClosed, EntryTooLarge, ValueError.
        """
        ...


class Store(Protocol):
    """Topics, their logs, and tables."""

    retains_by_itself: bool
    """Whether the medium applies the retention configs of a topic to logs that are not open.

    If so, `PartitionLog.retain` is needed for open logs only.
    """

    is_shared: bool
    """Whether several processes may have it open: then it is a `storage.cluster.SharedStore`."""

    async def open(self) -> None:
        """Acquire the store for this process. Raises StoreInUse, StoreTooNew, StorageFailed.

        A shared store is opened without acquiring anything.
        """
        ...

    def when_lost(self, call: Callable[[str], None]) -> None:
        """Register `call`, invoked once with the reason if another process takes over the store.

        Nothing can be written after that. Must be called before `open`.
        """
        ...

    @property
    def may_be_lost(self) -> bool:
        """Whether another process may have taken the store since it was last known to be held here.

        If so, the caller's copies of table rows may be out of date: see `confirm_held`. Needs no
        I/O.
        """
        ...

    async def confirm_held(self) -> None:
        """Return once the medium confirms that this process holds the store.

        Returns at once unless `may_be_lost`. Raises Fenced, StorageFailed.
        """
        ...

    async def close(self) -> None:
        """Write what is queued, then release everything. Later calls raise LogClosed."""
        ...

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name: a live, read-only view."""
        ...

    def watch_topics(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after another process changed `topics`.

        Logs of deleted topics are closed by then. `on_change` must be cheap and must not raise.
        """
        ...

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        """Call `on_deletion` after another gateway of the cluster deleted a topic for good.

        The topic cannot reappear, unlike one that another program deleted. The watchers of topics
        are called before. `on_deletion` must be cheap and must not raise.
        """
        ...

    def is_deleted(self, topic_id: bytes) -> bool:
        """Whether a gateway of the cluster deleted the topic with this id for good.

        False for topics that were deleted long ago, and in a store that is not shared: there, all
        topics that are missing from `topics` are deleted.
        """
        ...

    def canonical(self, name: str) -> str:
        """The key in `topics` for any accepted form of a topic name.

        Pulsar also accepts a topic's full name; the embedded store has one form only. Raises
        ValueError for a name that cannot be a topic of this store.
        """
        ...

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Report a group's committed offset to a medium that shows consumer lag to its operators.

        Cheap; excess reports are dropped.
        """
        ...

    async def create_topic(self, topic: Topic) -> None:
        """Create a topic durably.

        Raises TopicExists, StorageFailed, and ValueError if the id is not 16 bytes or there is no
        partition.
        """
        ...

    async def alter_topic(self, topic: Topic) -> None:
        """Set the configs and partition count of the topic with this name; the id must not change.

        The partition count cannot decrease. Raises UnknownTopic, ValueError, StorageFailed.
        """
        ...

    async def delete_topic(self, name: str) -> None:
        """Delete the topic and close its logs; space is freed afterwards.

        Raises UnknownTopic, Fenced, StorageFailed.
        """
        ...

    @property
    def shard_count(self) -> int:
        """The number of shards (`storage.shards`), known once the store is open."""
        ...

    @property
    def first_epoch(self) -> int:
        """The least leader epoch for shards that never had a leader, known once the store is open.

        It is greater than the epochs of what was stored before the store had shards.
        """
        ...

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        """Acquire a shard: fence the process that had it before, and load its state.

        From then on, `log` opens the shard's partitions with `leader_epoch`, and `shard_table` its
        tables. The epoch is greater than that of any earlier leader of the shard. No effect if the
        shard is open. A store of a single process has all shards open.

        Raises Fenced, StorageFailed.
        """
        ...

    async def close_shard(self, shard: int) -> None:
        """Give up a shard: write what is queued, close its logs and tables.

        They fail with LogClosed from then on. No effect if the shard is not open.
        """
        ...

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        """Register `call`, invoked with shard and reason if another process fences an open shard.

        The shard is no longer open then.
        """
        ...

    async def shard_table(self, shard: int, name: str) -> StateTable:
        """The table of that name in an open shard, created if missing; the same object at each
        call until the shard is closed.

        Tables of one name in different shards are independent. Raises ShardNotOpen, StorageFailed.
        """
        ...

    async def log(self, topic: str, partition: int) -> PartitionLog:
        """The log of one partition, opened for writing; the same object at each call.

        Raises UnknownTopic, ShardNotOpen, Fenced, StorageFailed.
        """
        ...

    async def table(self, name: str) -> StateTable:
        """The table of that name, created if missing; the same object at each call.

        It belongs to the store as a whole, unlike those of `shard_table`.
        """
        ...

    async def permissions(self) -> Permissions | None:
        """What the medium allows its own users; None if it has no users.

        They are kept up to date until the store is closed; the same object at each call. Raises
        NotAllowed if this process may not read them, StorageFailed.
        """
        ...

    def usage(self) -> Iterable[VolumeUsage]:
        """Usage of the volumes that hold the store's data."""
        ...
