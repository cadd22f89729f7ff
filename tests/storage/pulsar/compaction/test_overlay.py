"""Reads and searches after any sequence of replacements, compared with a plain list of entries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed

from storage.log import Entry, StorageFailed
from storage.pulsar.client.exclusive_producer import LogEnd
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.compaction import range_merge
from storage.pulsar.compaction.overlay import Overlay
from storage.pulsar.compaction.range_merge import MIN_RANGES, RangeMerger
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges
from storage.pulsar.compaction.replacement import EntryReplacer
from storage.pulsar.compaction.space_reclaim import SpaceReclaimer
from storage.pulsar.log.entries import PartitionEntries
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import PartitionRow, PartitionState, load_partitions
from tests.storage.entries import plain
from tests.storage.pulsar.fake_client import FakeClient


class MemoryTopic:
    """A partition's messages in memory, with the methods of `PartitionReader`."""

    def __init__(self, entries: list[Entry]) -> None:
        self.stored: list[StoredMessage] = []
        before, greatest = 0, -1
        for number, entry in enumerate(entries):
            greatest = max(greatest, entry.max_timestamp)
            header = Header(
                entry.base_offset, entry.last_offset, entry.max_timestamp, before, 0, greatest
            )
            self.stored.append(StoredMessage(header, Position(1, number), bytes(entry.payload)))
            before += len(entry.payload)
        self.bytes = before

    async def read(self, offset: int, end: int, max_bytes: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for one in self.stored:
            if one.header.last_offset >= offset and one.header.base_offset < end:
                max_bytes -= len(one.payload)
                if found and max_bytes < 0:
                    break
                found.append(one)
        return found

    async def at_time(self, timestamp: int, start: int, end: int) -> StoredMessage | None:
        some = [
            one
            for one in self.stored
            if one.header.last_offset >= start and one.header.base_offset < end
        ]
        return next((one for one in some if one.header.max_timestamp >= timestamp), None)

    async def latest(self, start: int, end: int) -> StoredMessage | None:
        some = [
            one
            for one in self.stored
            if one.header.last_offset >= start
            and one.header.base_offset < end
            and one.header.max_timestamp >= 0
        ]
        return max(some, key=lambda one: one.header.max_timestamp, default=None)

    async def last(self) -> StoredMessage | None:
        return self.stored[-1] if self.stored else None

    async def can_trim(self, topic: str, keep: Position) -> bool:
        return self.stored[0].position < keep

    async def trim(self, topic: str, keep: Position) -> None:
        self.stored = [one for one in self.stored if one.position >= keep]


class MemorySideTopics:
    def __init__(self) -> None:
        self.topics: dict[int, dict[str, list[Entry]]] = {}
        self.refuses = False

    async def create(self, partition: bytes, generation: int) -> None:
        self.topics.setdefault(generation, {})

    async def delete(self, partition: bytes, generation: int) -> None:
        del self.topics[generation]

    async def write(
        self, partition: bytes, generation: int, first: int, last: int, entries: list[Entry]
    ) -> ReplacedRange:
        if self.refuses:
            raise StorageFailed("no answer")
        token = f"{len(self.topics[generation])}"
        self.topics[generation][token] = list(entries)
        max_timestamp = max((one.max_timestamp for one in entries), default=-1)
        size = sum(len(one.payload) for one in entries)
        return ReplacedRange(
            first,
            last,
            0,
            0,
            size,
            generation,
            messages=len(entries),
            token=token,
            max_timestamp=max_timestamp,
        )

    async def read(self, partition: bytes, replaced: ReplacedRange) -> list[Entry]:
        entries = self.topics[replaced.generation][replaced.token]
        return [
            one
            for one in entries
            if replaced.first <= one.base_offset and one.last_offset <= replaced.last
        ]


class StalledTable:
    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.answers = True

    def put(self, rows: dict[bytes, bytes | None]) -> Deferred[None]:
        self._store(rows)
        if self.answers:
            return succeed(None)
        return fail(StorageFailed("no answer; whether it is stored is unknown"))

    def _store(self, rows: dict[bytes, bytes | None]) -> None:
        for key, value in rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


KEY = b"p" * 20


class Scene:
    """An overlay and its model, the list of readable entries."""

    def __init__(self, entries: list[Entry], garbage: int = 1 << 20) -> None:
        self.model = list(entries)
        self.end = entries[-1].last_offset + 1
        self.topic = MemoryTopic(entries)
        self.side_topics = MemorySideTopics()
        self.table = StalledTable()
        self.partition = PartitionState(self.table, KEY, PartitionRow(), ReplacedRanges())
        self.settings = FakeClient(compacted_garbage_bytes=garbage, compacted_windows=50).settings
        self.open()

    def open(self) -> None:
        entries = PartitionEntries(self.topic)
        self.overlay = Overlay(entries, self.side_topics, self.partition)
        self.replacer = EntryReplacer(
            "t", entries, self.overlay, self.side_topics, self.partition, self.settings
        )

    def replace(self, first: int, last: int, kept: list[Entry], start: int = 0) -> None:
        done(self.replacer.replace(first, last, kept, start, self.end, self.topic.bytes))
        dropped = [
            one
            for one in self.model
            if first <= one.base_offset and one.last_offset <= last and one.last_offset >= start
        ]
        left = [one for one in self.model if one not in dropped]
        self.model = sorted(
            [*left, *(one for one in kept if one.last_offset >= start)],
            key=lambda one: one.base_offset,
        )

    def reclaim(self, start: int = 0) -> None:
        """`PartitionLog.reclaim` of a log that starts at `start`."""
        end = LogEnd(self.end, self.topic.bytes, -1)
        merger = RangeMerger(
            PartitionEntries(self.topic),
            self.overlay,
            self.replacer,
            self.partition,
            self.settings,
        )
        done(
            SpaceReclaimer(
                "t", self.topic, merger, self.partition, self.topic, lambda: (start, end)
            ).reclaim()
        )

    def delete_before(self, offset: int) -> None:
        """Update the replaced ranges as a log does."""
        dropped, added = self.partition.replaced_ranges.trim_before(offset)
        self.partition.replaced_ranges = self.partition.replaced_ranges.updated(dropped, added)

    def size(self, start: int = 0) -> int:
        return (
            self.topic.bytes
            - self.partition.replaced_ranges.bytes_saved
            - done(self.overlay.bytes_before(start, self.end, self.topic.bytes))
        )

    def check(self, start: int, max_bytes: int, timestamp: int) -> None:
        readable = [one for one in self.model if one.last_offset >= start]
        assert self.size(start) == sum(len(one.payload) for one in readable)
        expected: list[Entry] = []
        for one in readable:
            if (
                expected
                and sum(len(some.payload) for some in expected) + len(one.payload) > max_bytes
            ):
                break
            expected.append(one)
        seen = done(self.overlay.read(start, self.end, max_bytes))
        assert plain(seen) == plain(expected)
        young = [one for one in readable if one.max_timestamp >= timestamp]
        found = done(self.overlay.at_time(start, self.end, timestamp))
        assert plain([found] if found else []) == plain(young[:1])
        limit = max_bytes % (self.size(start) + 1)
        position = self.topic.bytes - self.partition.replaced_ranges.bytes_saved - limit
        behind = done(self.overlay.after_bytes(start, self.end, position))
        kept = list(readable)
        while kept and sum(len(one.payload) for one in kept[1:]) >= limit:
            kept = kept[1:]
        assert plain([behind] if behind else []) == plain(kept[:1])
        greatest = max((one.max_timestamp for one in readable), default=-1)
        latest = [one for one in readable if one.max_timestamp == greatest >= 0][:1]
        found = done(self.overlay.latest(start, self.end))
        assert plain([found] if found else []) == plain(latest)


def done(coroutine: Any) -> Any:
    """The result of a coroutine that never waits."""
    deferred = Deferred.fromCoroutine(coroutine)
    results: list[Any] = []
    deferred.addBoth(results.append)
    if hasattr(results[0], "raiseException"):
        results[0].raiseException()
    return results[0]


ROWS = st.lists(
    st.tuples(st.integers(1, 5), st.integers(-1, 20), st.sampled_from([0, 1, 7, 30])),
    min_size=1,
    max_size=12,
)


def entries_from(rows: list[tuple[int, int, int]]) -> list[Entry]:
    entries: list[Entry] = []
    for records, time, size in rows:
        base = entries[-1].last_offset + 1 if entries else 0
        entries.append(Entry(base, base + records - 1, time, bytes([base % 251]) * size))
    return entries


@given(ROWS, st.data(), st.sampled_from([0, 1 << 20]))
def test_replaced_log_reads_like_list_of_entries(rows, data, garbage):
    scene = Scene(entries_from(rows), garbage)
    start = 0
    for _ in range(data.draw(st.integers(1, 6))):
        first, last = sorted(
            data.draw(st.tuples(st.integers(0, scene.end), st.integers(0, scene.end)))
        )
        dropped = [
            one for one in scene.model if first <= one.base_offset and one.last_offset <= last
        ]
        kept = data.draw(st.lists(st.sampled_from(dropped), unique_by=id)) if dropped else []
        kept = sorted(
            (Entry(one.base_offset, one.last_offset, one.max_timestamp, b"less") for one in kept),
            key=lambda one: one.base_offset,
        )
        scene.replace(first, last, kept, start)
        if data.draw(st.booleans()):
            start = max(start, data.draw(st.integers(0, scene.end)))
            scene.delete_before(start)
        if data.draw(st.booleans()):
            with pytest.MonkeyPatch.context() as context:
                context.setattr(
                    range_merge, "MIN_RANGES", data.draw(st.sampled_from([0, MIN_RANGES]))
                )
                context.setattr(
                    range_merge, "COPY_BYTES", data.draw(st.sampled_from([1, 40, 1 << 20]))
                )
                scene.reclaim(start)
        scene.check(start, data.draw(st.integers(0, 100)), data.draw(st.integers(0, 20)))


def test_replaced_ranges_are_restored_from_rows():
    scene = Scene(entries_from([(10, 5, 100)] * 5))
    scene.replace(10, 39, [Entry(12, 14, 5, b"new"), Entry(30, 31, 5, b"newer")])
    scene.replace(30, 49, [])
    before = plain(done(scene.overlay.read(0, scene.end, 1000)))
    scene.partition = load_partitions(scene.table, scene.table.rows.items())[KEY]
    scene.open()
    assert plain(done(scene.overlay.read(0, scene.end, 1000))) == before
    assert scene.size() == 103


def test_side_topic_with_mostly_garbage_is_rewritten():
    scene = Scene(entries_from([(10, 5, 100)] * 5), garbage=50)
    for n in range(4):
        scene.replace(0, 49, [Entry(5, 5, 5, b"%d" % n * 30)])
    assert list(scene.side_topics.topics) == [scene.partition.row.generation]
    assert scene.partition.row.generation > 0
    assert len(scene.side_topics.topics[scene.partition.row.generation]) <= 3
    assert plain(done(scene.overlay.read(0, scene.end, 1000))) == [(5, 5, 5, b"3" * 30)]


def test_failed_write_of_replacement_changes_nothing():
    scene = Scene(entries_from([(10, 5, 100)] * 3))
    scene.replace(0, 9, [])
    scene.side_topics.refuses = True
    before = dict(scene.table.rows)
    with pytest.raises(StorageFailed):
        scene.replace(10, 19, [Entry(12, 12, 5, b"x")])
    assert scene.table.rows == before
    assert [one.base_offset for one in done(scene.overlay.read(0, scene.end, 1000))] == [10, 20]


def test_next_put_corrects_rows_of_failed_put():
    scene = Scene(entries_from([(10, 5, 100)] * 5))
    scene.replace(20, 29, [])
    scene.table.answers = False
    with pytest.raises(StorageFailed):
        done(
            scene.replacer.replace(
                10, 29, [Entry(12, 12, 5, b"x")], 0, scene.end, scene.topic.bytes
            )
        )
    before = plain(done(scene.overlay.read(0, scene.end, 1000)))
    scene.table.answers = True
    done(scene.partition.change(reserved=100))
    scene.partition = load_partitions(scene.table, scene.table.rows.items())[KEY]
    scene.open()
    assert plain(done(scene.overlay.read(0, scene.end, 1000))) == before


def test_number_of_replaced_ranges_is_bounded():
    scene = Scene(entries_from([(1, 5, 1)] * 200))
    refused = 0
    for n in range(0, 200, 2):
        try:
            scene.replace(n, n, [])
        except StorageFailed:
            refused += 1
    assert len(scene.partition.replaced_ranges) == 50
    assert refused == 50


def test_ranges_are_merged_before_limit_is_reached():
    scene = Scene(entries_from([(1, 5, 1)] * 400))
    for n in range(0, 400, 2):
        scene.replace(n, n, [])
        if n % 30 == 0:
            scene.reclaim()
    scene.reclaim()
    assert len(scene.partition.replaced_ranges) <= 25
    scene.check(0, 1000, 5)


def test_few_ranges_are_not_merged():
    scene = Scene(entries_from([(10, 5, 100)] * 10))
    for n in range(0, 40, 10):
        scene.replace(n, n + 9, [Entry(n, n, 5, b"x" * 30)])
    scene.reclaim()
    assert MIN_RANGES > len(scene.partition.replaced_ranges) == 4


def test_only_unneeded_messages_are_trimmed():
    scene = Scene(entries_from([(10, n, 100) for n in range(10)]))
    scene.replace(10, 59, [Entry(35, 35, 3, b"left")])
    scene.reclaim()
    assert [one.header.base_offset for one in scene.topic.stored] == [60, 70, 80, 90]
    assert (scene.partition.row.trim_offset, scene.partition.row.trim_bytes) == (60, 600)
    scene.check(0, 10_000, 3)
    scene.partition = load_partitions(scene.table, scene.table.rows.items())[KEY]
    scene.open()
    scene.check(0, 10_000, 4)


def test_no_more_is_copied_than_can_be_trimmed():
    scene = Scene(entries_from([(10, 5, 100)] * 10))
    scene.replace(50, 59, [])
    scene.reclaim()
    assert len(scene.topic.stored) == 10
    assert scene.partition.replaced_ranges.size == 0
    scene.replace(60, 99, [])
    scene.reclaim()
    assert [one.header.base_offset for one in scene.topic.stored] == [90]


def test_failed_trim_is_retried():
    scene = Scene(entries_from([(10, 5, 100)] * 10))
    scene.replace(0, 49, [])
    kept = list(scene.topic.stored)
    scene.reclaim()
    scene.topic.stored = kept
    scene.reclaim()
    assert [one.header.base_offset for one in scene.topic.stored] == [50, 60, 70, 80, 90]


def test_messages_before_log_start_are_trimmed_except_last():
    scene = Scene(entries_from([(10, 5, 100)] * 10))
    scene.reclaim(scene.end)
    assert [one.header.base_offset for one in scene.topic.stored] == [90]
    assert scene.partition.row.trim_offset == 90
