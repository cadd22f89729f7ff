"""A store in memory for tests of the code above stores. It passes the contract tests of all stores.

Each awaitable has fired when the call returns, except as follows. `hold()` keeps writes in flight
until `release()`. `refuse_writes` makes them fail, as a full disk does; `is_full` refuses new
appends at once, as a full queue does. `fence` takes over a log as another writer does, `slow_logs`
and `slow_shards` delay opening logs and shards, `outside` changes topics, or rows of a table, as
another process does, `lose` and `lose_shard` take over the whole store or a shard.

What survives a restart is in a `Medium`: a second `MemoryStore` on the same one sees what the first
one wrote.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from twisted.internet.defer import Deferred

from storage.log import (
    LOG_CLOSED,
    Entry,
    EntryDamaged,
    EntryRun,
    Fenced,
    LogClosed,
    LogStatus,
    OffsetOutOfRange,
    ShardNotOpen,
    StorageFailed,
    StoreInUse,
    Topic,
    TopicExists,
    UnknownTopic,
    VolumeUsage,
)
from storage.permissions import Permissions
from storage.shards import partition_shard

#: The namespace of topics whose name has no slash.
DEFAULT_NAMESPACE = "public/default/"


@dataclass(slots=True)
class Rows:
    """What a partition log leaves on its medium.

    `damaged` are the base offsets of entries whose checksum is wrong, `failing` of those that the
    disk cannot read.
    """

    start_offset: int = 0
    end_offset: int = 0
    entries: list[Entry] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    failing: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Medium:
    """The disk of a memory store. `held_by` is the open store, if any; `permissions` are those of
    the medium's users, if it has users.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[tuple[str, int], Rows] = field(default_factory=dict)
    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    held_by: MemoryStore | None = None
    permissions: Permissions | None = None


@dataclass(slots=True)
class Write:
    """A queued write. `apply` performs it or raises."""

    apply: Callable[[], None]
    told: Deferred[None] = field(default_factory=Deferred)


def base_offset(entry: Entry) -> int:
    return entry.base_offset


def last_offset(entry: Entry) -> int:
    return entry.last_offset


def copy_of(entry: Entry) -> Entry:
    return Entry(entry.base_offset, entry.last_offset, entry.max_timestamp, bytes(entry.payload))


class StrictStatus(LogStatus):
    """An error in a watcher fails the test instead of being logged."""

    __slots__ = ()

    def notify(self) -> None:
        for on_change in tuple(self.watchers):
            on_change()


class MemoryLog:
    """A partition log on a medium."""

    def __init__(self, store: MemoryStore, rows: Rows, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.can_replace = True
        self._store = store
        self._rows = rows
        self._next_offset = rows.end_offset
        self._pending = 0
        self._failing = ""
        self.status = StrictStatus()

    @property
    def start_offset(self) -> int:
        return self._rows.start_offset

    @property
    def end_offset(self) -> int:
        return self._rows.end_offset

    @property
    def next_offset(self) -> int:
        return self._next_offset

    @property
    def size(self) -> int:
        return sum(len(entry.payload) for entry in self._rows.entries)

    def append(self, entries: Sequence[Entry]) -> Awaitable[None]:
        copies = [copy_of(entry) for entry in entries]
        try:
            self.status.check_open()
            if self._failing:
                raise StorageFailed(self._failing)
            if self._store.is_full:
                raise StorageFailed("the queue is full: the test said so")
            expected = self._next_offset
            for entry in copies:
                if entry.base_offset != expected or entry.last_offset < entry.base_offset:
                    raise OffsetOutOfRange(
                        f"an append must go on at offset {expected}, not at {entry.base_offset}"
                    )
                expected = entry.last_offset + 1
        except Exception as error:
            return failed(error)
        self._next_offset = expected
        self._pending += 1
        return self._store.write(lambda: self._apply(copies))

    def _apply(self, entries: list[Entry]) -> None:
        self._pending -= 1
        if isinstance(self.status.end_reason, Fenced) and self._store.stores_fenced:
            self._rows.entries.extend(entries)
            self._rows.end_offset = entries[-1].last_offset + 1
        try:
            self.status.check_open()
            if self._failing:
                raise StorageFailed(self._failing)
            self._store.check_medium()
            if entries:
                self._rows.entries.extend(entries)
                self._rows.end_offset = entries[-1].last_offset + 1
        except StorageFailed as error:
            self._failing = str(error)
            raise
        finally:
            if self._pending == 0:
                self._failing = ""
                self._next_offset = self._rows.end_offset
        if entries:
            self.status.notify()

    def read_resident(self, offset: int, max_bytes: int) -> list[Entry] | None:
        self.status.check_open()
        self._check_readable(offset)
        found: list[Entry] = []
        room = max_bytes
        for entry in self._rows.entries[bisect_left(self._rows.entries, offset, key=last_offset) :]:
            if found and entry.base_offset in self._rows.damaged | self._rows.failing:
                break
            self._check_damage(entry)
            room -= len(entry.payload)
            if found and room < 0:
                break
            found.append(entry)
        return found

    def read_run(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True
    ) -> EntryRun | None:
        entries = self.read_resident(offset, max_bytes)
        if not entries:
            return None
        if not at_least_one and len(entries[0].payload) > max_bytes:
            return EntryRun(offset, offset - 1, 0, b"", list)
        return EntryRun(
            entries[0].base_offset,
            entries[-1].last_offset,
            len(entries),
            b"".join(entry.payload for entry in entries),
            lambda: entries,
        )

    async def read(self, offset: int, max_bytes: int) -> list[Entry]:
        return self.read_resident(offset, max_bytes) or []

    async def entry_for_time(self, timestamp: int) -> Entry | None:
        self.status.check_open()
        found = next(
            (entry for entry in self._rows.entries if entry.max_timestamp >= timestamp), None
        )
        if found is not None:
            self._check_damage(found)
        return found

    def _check_damage(self, entry: Entry) -> None:
        rows = self._rows
        if entry.base_offset in rows.damaged | rows.failing:
            raise EntryDamaged(
                "damaged by the test",
                entry.base_offset,
                entry.last_offset,
                entry.max_timestamp,
                may_recover=entry.base_offset in rows.failing,
            )

    async def latest_by_time(self) -> Entry | None:
        self.status.check_open()
        latest = max(self._rows.entries, key=lambda entry: entry.max_timestamp, default=None)
        if latest is None or latest.max_timestamp < 0:
            return None
        self._check_damage(latest)
        return latest

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        return (
            (self.leader_epoch, self.end_offset) if leader_epoch == self.leader_epoch else (-1, -1)
        )

    async def delete_before(self, offset: int) -> int:
        self.status.check_open()
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end, {self.end_offset}")
        await self._store.write(lambda: self._move_start(offset))
        return self.start_offset

    async def retain(self, *, since: int | None, at_most_bytes: int | None) -> int:
        self.status.check_open()
        kept = self._rows.entries
        if since is not None:
            kept = kept[
                next(
                    (n for n, entry in enumerate(kept) if entry.max_timestamp >= since), len(kept)
                ) :
            ]
        if at_most_bytes is not None:
            excess = sum(len(entry.payload) for entry in kept) - at_most_bytes
            while kept and excess >= len(kept[0].payload):
                excess -= len(kept[0].payload)
                kept = kept[1:]
        if len(kept) < len(self._rows.entries):
            start = kept[0].base_offset if kept else self.end_offset
            await self._store.write(lambda: self._move_start(start))
        return self.start_offset

    def _move_start(self, offset: int) -> None:
        self.status.check_open()
        self._store.check_medium()
        if offset > self._rows.start_offset:
            self._rows.start_offset = offset
            del self._rows.entries[: bisect_left(self._rows.entries, offset, key=last_offset)]
            self.status.notify()

    async def replace(self, first: int, last: int, entries: Sequence[Entry]) -> None:
        self.status.check_open()
        check_replacement(first, last, entries)
        copies = [copy_of(entry) for entry in entries]
        await self._store.write(lambda: self._replace(first, last, copies))

    def _replace(self, first: int, last: int, entries: list[Entry]) -> None:
        self.status.check_open()
        self._store.check_medium()
        rows = self._rows.entries
        entries = [entry for entry in entries if entry.last_offset >= self.start_offset]
        begin, end = (
            bisect_left(rows, first, key=base_offset),
            bisect_right(rows, last, key=last_offset),
        )
        rows[begin : max(begin, end)] = entries

    async def reclaim(self) -> None:
        """Nothing waits to be freed."""

    def watch(self, on_change: Callable[[], None]) -> None:
        self.status.watch(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self.status.unwatch(on_change)

    def shut(self) -> None:
        self.status.end(LogClosed(LOG_CLOSED))
        self.status.notify()

    def fence(self) -> None:
        self.status.end(Fenced("another writer leads this partition"))
        self.status.notify()

    def _check_readable(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {self.start_offset} to {self.end_offset}"
            )


class MemoryTable:
    """A state table over a dict. `is_closed` is set when its shard is closed."""

    def __init__(self, store: MemoryStore, rows: dict[bytes, bytes]) -> None:
        self.is_closed = False
        self._store = store
        self._rows = rows
        self._watchers: list[Callable[[Mapping[bytes, bytes | None]], None]] = []

    async def items(self) -> list[tuple[bytes, bytes]]:
        self._store.check_open()
        if self.is_closed:
            raise LogClosed("the shard is closed")
        return sorted(self._rows.items())

    def watch(self, on_change: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        self._watchers.append(on_change)

    def outside(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Another process changes these rows."""
        self._put(rows)
        for on_change in self._watchers:
            on_change(rows)

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        if not all(1 <= len(key) <= 480 for key in rows):
            return failed(ValueError("a key has 1 to 480 bytes"))
        if self._store.closed or self.is_closed:
            return failed(LogClosed("the store or the shard is closed"))
        taken = dict(rows)
        return self._store.write(lambda: self._put(taken))

    def _put(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._store.check_medium()
        for key, value in rows.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = bytes(value)


class MemoryStore:
    """A `Store` on a `Medium`.

    With more than one shard, they are closed until `open_shard`. `refuse_writes` simulates a full
    disk. `committed` records the committed offsets of groups. With `has_namespaces`, names may have
    a tenant and a namespace before a slash; names in the default namespace are shortened to their
    last part, others are as in Pulsar. `stores_fenced` says whether the appends of a fenced log are
    stored.
    """

    retains_by_itself = False
    is_shared = False
    first_epoch = 0
    has_namespaces = False
    stores_fenced = False

    def __init__(self, medium: Medium | None = None, shard_count: int = 1) -> None:
        self.shard_count = shard_count
        self.refuse_shards: Exception | None = None
        self.slow_shards: Deferred[None] | None = None
        #: The shards that were opened, in this order, with their epochs.
        self.shards_opened: list[tuple[int, int]] = []
        self._leader_epochs: dict[int, int] = {}
        self._shard_tables: dict[tuple[int, str], MemoryTable] = {}
        self.medium = medium or Medium()
        self.refuse_writes = False
        self.is_full = False
        self.refuse_logs: Exception | None = None
        self.slow_logs: Deferred[None] | None = None
        self.logs_asked = 0
        self.closed = True
        self._held = False
        self._queue: deque[Write] = deque()
        self._logs: dict[tuple[str, int], MemoryLog] = {}
        self._tables: dict[str, MemoryTable] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.tell_lost: Callable[[str], None] = lambda reason: None
        self.tell_shard_lost: Callable[[int, str], None] = lambda shard, reason: None
        self.tell_topics: Callable[[], None] = lambda: None
        self.deleted_ids: set[bytes] = set()
        """Ids of topics that gateways of the cluster deleted for good."""
        self.tell_deletion: Callable[[Topic], None] = lambda topic: None
        self.may_be_lost = False
        self.confirming: Deferred[None] = Deferred()

    def hold(self) -> None:
        """Keep all writes in flight from now on."""
        self._held = True

    def release(self) -> None:
        """Perform the held writes in order, and hold no more."""
        self._held = False
        while self._queue:
            write = self._queue.popleft()
            try:
                write.apply()
            except Exception as error:
                write.told.errback(error)
            else:
                write.told.callback(None)

    def write(self, apply: Callable[[], None]) -> Deferred[None]:
        write = Write(apply)
        self._queue.append(write)
        if not self._held:
            self.release()
        return write.told

    def check_medium(self) -> None:
        if self.refuse_writes:
            raise StorageFailed("the medium refuses writes (set by the test)")

    def check_open(self) -> None:
        if self.closed:
            raise LogClosed("the store is closed")

    async def open(self) -> None:
        if self.medium.held_by:
            raise StoreInUse("another store has this medium open: close that one first")
        self.medium.held_by = self
        self.closed = False
        if self.shard_count == 1:
            self._leader_epochs = {0: 0}

    async def close(self) -> None:
        if self.closed:
            return
        self.release()
        self.closed = True
        self.medium.held_by = None
        for log in self._logs.values():
            log.shut()

    def when_lost(self, call: Callable[[str], None]) -> None:
        self.tell_lost = call

    async def open_shard(self, shard: int, leader_epoch: int) -> None:
        self.check_open()
        if self.slow_shards is not None:
            await self.slow_shards
        if self.refuse_shards is not None:
            raise self.refuse_shards
        self.shards_opened.append((shard, leader_epoch))
        self._leader_epochs[shard] = leader_epoch

    async def close_shard(self, shard: int) -> None:
        if shard not in self._leader_epochs:
            return
        # What is queued is written first.
        await self.write(lambda: None)
        self._drop_shard(shard, MemoryLog.shut)

    def lose_shard(self, shard: int) -> None:
        """Another process takes over an open shard."""
        self._drop_shard(shard, MemoryLog.fence)
        self.tell_shard_lost(shard, "another process has fenced the shard")

    def _drop_shard(self, shard: int, end: Callable[[MemoryLog], None]) -> None:
        self._leader_epochs.pop(shard, None)
        for key in [key for key in self._shard_tables if key[0] == shard]:
            self._shard_tables.pop(key).is_closed = True
        for topic, partition in list(self._logs):
            if self._shard_of(topic, partition) == shard:
                end(self._logs.pop((topic, partition)))

    def _shard_of(self, topic: str, partition: int) -> int:
        return partition_shard(self._topic(topic).topic_id, partition, self.shard_count)

    def _check_shard(self, shard: int) -> None:
        if shard not in self._leader_epochs:
            raise ShardNotOpen(f"shard {shard} is not open")

    def when_shard_lost(self, call: Callable[[int, str], None]) -> None:
        self.tell_shard_lost = call

    async def shard_table(self, shard: int, name: str) -> MemoryTable:
        self.check_open()
        self._check_shard(shard)
        if (shard, name) not in self._shard_tables:
            rows = self.medium.tables.setdefault(f"{name}.{shard}" if shard else name, {})
            self._shard_tables[shard, name] = MemoryTable(self, rows)
        return self._shard_tables[shard, name]

    async def confirm_held(self) -> None:
        """Wait until the test fires `confirming`."""
        if self.may_be_lost:
            await self.confirming
            self.may_be_lost = False

    def watch_topics(self, on_change: Callable[[], None]) -> None:
        self.tell_topics = on_change

    def watch_deletions(self, on_deletion: Callable[[Topic], None]) -> None:
        self.tell_deletion = on_deletion

    def is_deleted(self, topic_id: bytes) -> bool:
        return topic_id in self.deleted_ids

    def canonical(self, name: str) -> str:
        if "/" not in name:
            return name
        if name.startswith("persistent://"):
            name = name.removeprefix("persistent://").removeprefix("/")
        if not self.has_namespaces or name.count("/") != 2 or not name.isprintable():
            raise ValueError("not of the form tenant/namespace/topic")
        if name.startswith(DEFAULT_NAMESPACE):
            return name.removeprefix(DEFAULT_NAMESPACE)
        return f"persistent://{name}"

    def fence(self, topic: str, partition: int = 0) -> None:
        """Another writer takes over the partition: its log is fenced, appends in flight fail."""
        log = self._logs.pop((topic, partition))
        log.fence()

    def outside(self, topics: Iterable[Topic]) -> None:
        """Another process changes the set of topics to these."""
        wanted = {topic.name: topic for topic in topics}
        for name, topic in list(self.medium.topics.items()):
            if name not in wanted or wanted[name].topic_id != topic.topic_id:
                self._delete(name)
        self.medium.topics.update(wanted)
        self.tell_topics()

    def deleted_by_gateway(self, name: str) -> None:
        """Another gateway of the cluster deletes a topic."""
        topic = self.medium.topics[name]
        self.deleted_ids.add(topic.topic_id)
        self.outside([one for one in self.medium.topics.values() if one.name != name])
        self.tell_deletion(topic)

    def unlisted(self) -> None:
        """The list of topics is temporarily empty.

        Their contents are kept, and `outside` lists them again.
        """
        self.medium.topics.clear()
        logs, self._logs = self._logs, {}
        for log in logs.values():
            log.shut()
        self.tell_topics()

    def lose(self, reason: str) -> None:
        """Another process takes over the store."""
        self.tell_lost(reason)

    def note_committed(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.committed[group, topic, partition] = offset

    @property
    def topics(self) -> Mapping[str, Topic]:
        return MappingProxyType(self.medium.topics)

    async def create_topic(self, topic: Topic) -> None:
        self.check_open()
        check_topic(topic)
        await self.write(lambda: self._create(topic))

    def _create(self, topic: Topic) -> None:
        if topic.name in self.medium.topics:
            raise TopicExists(f"topic {topic.name} exists")
        self.check_medium()
        self.medium.topics[topic.name] = topic

    async def alter_topic(self, topic: Topic) -> None:
        self.check_open()
        await self.write(lambda: self._alter(topic))

    def _alter(self, topic: Topic) -> None:
        standing = self._topic(topic.name)
        if topic.partitions < standing.partitions or topic.topic_id != standing.topic_id:
            raise ValueError(
                f"topic {topic.name}: changed id, or fewer than {standing.partitions} partitions"
            )
        self.check_medium()
        self.medium.topics[topic.name] = topic

    async def delete_topic(self, name: str) -> None:
        self.check_open()
        await self.write(lambda: self._delete(name))

    def _delete(self, name: str) -> None:
        topic = self._topic(name)
        self.check_medium()
        del self.medium.topics[name]
        for partition in range(topic.partitions):
            self.medium.logs.pop((name, partition), None)
            log = self._logs.pop((name, partition), None)
            if log:
                log.shut()

    async def log(self, topic: str, partition: int) -> MemoryLog:
        self.check_open()
        self.logs_asked += 1
        if self.slow_logs is not None:
            await self.slow_logs
        if self.refuse_logs is not None:
            raise self.refuse_logs
        if not 0 <= partition < self._topic(topic).partitions:
            raise UnknownTopic(f"topic {topic} has no partition {partition}")
        shard = self._shard_of(topic, partition)
        self._check_shard(shard)
        key = (topic, partition)
        if key not in self._logs:
            rows = self.medium.logs.setdefault(key, Rows())
            self._logs[key] = MemoryLog(self, rows, self._leader_epochs[shard])
        return self._logs[key]

    def _topic(self, name: str) -> Topic:
        if name not in self.medium.topics:
            raise UnknownTopic(f"no topic {name}")
        return self.medium.topics[name]

    async def table(self, name: str) -> MemoryTable:
        self.check_open()
        if name not in self._tables:
            self._tables[name] = MemoryTable(self, self.medium.tables.setdefault(name, {}))
        return self._tables[name]

    async def permissions(self) -> Permissions | None:
        return self.medium.permissions

    def usage(self) -> Iterable[VolumeUsage]:
        return [VolumeUsage("memory", -1, -1)]


def check_topic(topic: Topic) -> None:
    if len(topic.topic_id) != 16 or topic.partitions < 1:
        raise ValueError(f"topic {topic.name}: needs an id of 16 bytes and at least one partition")


def check_replacement(first: int, last: int, entries: Sequence[Entry]) -> None:
    expected = first
    for entry in entries:
        if not expected <= entry.base_offset <= entry.last_offset <= last:
            raise ValueError(
                f"replacement {entry.base_offset}-{entry.last_offset} is out of order or range"
            )
        expected = entry.last_offset + 1


def failed(error: Exception) -> Deferred[None]:
    told: Deferred[None] = Deferred()
    told.errback(error)
    return told
