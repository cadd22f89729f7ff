"""Batches of plain requests are stored and cached as parts of the request, without copies."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.protocol.producer.produce import ProduceRequest as CodecRequest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from gateway.fetch.entry_loops import loops
from gateway.handlers.produce import produce_at_once
from gateway.net import transport
from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Entry, compiled
from storage.tail import ENTRY_OVERHEAD, CachedTail, TailCache
from tests.fakes.broker import open_environment
from tests.gateway.protocol.wire.implementations import use
from tests.records.record_sets import batch
from tests.storage.entries import everything, topic

Topic = CodecRequest.TopicProduceData
SentPartition = Topic.PartitionProduceData

PARTITIONS = 3


def entries_of(
    monkeypatch: pytest.MonkeyPatch, *, name: str = "orders", value: bytes = bytes(500)
) -> tuple[int, list[Entry]]:
    """The size of a plain request with a batch for each partition, and the entries that its
    handler appends.
    """
    use("cython", monkeypatch)
    env = open_environment()
    env.topic(name, PARTITIONS)
    found: list[Entry] = []
    for index in range(PARTITIONS):
        log: Any = env.partition(name, index).log
        append = log.append

        def appended(entries: Any, append: Any = append) -> Any:
            found.extend(entries)
            return append(entries)

        log.append = appended
    parts = [
        SentPartition(index=index, records=bytes(batch([(b"%d" % index, value)])))
        for index in range(PARTITIONS)
    ]
    asked = CodecRequest(
        version=11,
        acks=-1,
        timeout_ms=1000,
        topic_data=[Topic(version=11, name=name, partition_data=parts)],
    )
    frame = bytearray(asked.encode(version=11))
    assert produce_at_once(frame, 0, env.caller(11)) is not None
    assert len(found) == PARTITIONS
    return len(frame), found


def test_request_is_counted_once_while_a_part_of_it_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, entries = entries_of(monkeypatch)
    tail, log_tails = TailCache(100_000), [CachedTail() for _ in entries]
    for number, entry in enumerate(entries):
        tail.add(log_tails[number], entry)
        assert tail._held == size + (number + 1) * ENTRY_OVERHEAD
    assert [log_tail.read(0, 10_000) for log_tail in log_tails] == [[entry] for entry in entries]
    other = CachedTail()
    # As many as evict the first two parts, but not the third one.
    fits = tail._limit - tail._held + 2 * ENTRY_OVERHEAD
    tail.add(other, Entry(0, 0, -1, bytes(fits - ENTRY_OVERHEAD)))
    assert [log_tail.read(0, 1) is None for log_tail in log_tails] == [True, True, False]
    assert tail._held == tail._limit
    tail.add(other, Entry(1, 1, -1, b""))
    assert log_tails[2].read(0, 1) is None
    assert tail._held == fits + ENTRY_OVERHEAD


def test_request_that_is_hardly_batches_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _, entries = entries_of(monkeypatch, name="n" * 200, value=b"v")
    tail, log_tail = TailCache(100_000), CachedTail()
    tail.add(log_tail, entries[0])
    (found,) = log_tail.read(0, 1) or []
    assert type(found.payload) is bytes
    assert tail._held == len(found.payload) + ENTRY_OVERHEAD


def test_small_part_of_a_request_is_read_as_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    _, entries = entries_of(monkeypatch)
    assert [type(one.payload) for one in entries] == [bytes] * PARTITIONS


def test_cleared_and_freed_caches_release_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    _, entries = entries_of(monkeypatch, value=bytes(5000))
    frame: Any = entries[0].payload
    frame = cast(memoryview, frame).obj
    tail, log_tail = TailCache(100_000), CachedTail()
    for entry in entries:
        tail.add(log_tail, Entry(*(entry.__reduce__()[1])))
        tail.add(log_tail, entry)
    log_tail.clear()
    del entries, entry, tail
    gc.collect()
    # Fails while a part of the request exists.
    frame.clear()


@pytest.mark.parametrize("sync_appends", [True, False])
@ensureDeferred
async def test_parts_of_a_request_are_stored(
    tmp_path: Path, sync_appends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, entries = entries_of(monkeypatch, value=bytes(5000))
    monkeypatch.undo()

    async def opened() -> LmdbStore:
        settings = LmdbSettings(tail_bytes=0, sync_appends=sync_appends)
        store = LmdbStore(tmp_path, reactor=cast(Any, reactor), settings=settings)
        await store.open()
        return store

    store = await opened()
    await store.create_topic(topic(partitions=PARTITIONS))
    logs = [await store.log("orders", index) for index in range(PARTITIONS)]
    # The first append of a store is written by the writer thread, later ones by the flusher.
    for log, entry in zip(logs, entries, strict=True):
        await log.append((entry,))
    expected = [bytes(entry.payload) for entry in entries]
    assert [bytes(one.payload) for log in logs for one in await everything(log)] == expected
    await store.close()
    store = await opened()
    logs = [await store.log("orders", index) for index in range(PARTITIONS)]
    assert [bytes(one.payload) for log in logs for one in await everything(log)] == expected
    await store.close()


def test_large_part_of_a_request_is_sent_as_the_entry_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, entries = entries_of(monkeypatch, value=bytes(5000))
    records, size = loops.whole_batches(entries, 0, 100_000, with_zstd=True)
    assert [type(one) for one in records] == [Entry] * PARTITIONS
    payloads = [bytes(entry.payload) for entry in entries]
    assert [bytes(one) for one in records] == payloads
    assert [len(one) for one in records] == [len(payload) for payload in payloads]
    assert size == sum(map(len, payloads))


def test_buffer_of_an_entry_is_read_only_and_keeps_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, entries = entries_of(monkeypatch, value=bytes(5000))
    frame: Any = entries[0].payload
    frame = cast(memoryview, frame).obj
    view = memoryview(cast(Any, entries.pop()))
    entries.clear()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(BufferError):
        frame.clear()
    assert len(view) > 5000
    view.release()
    gc.collect()
    frame.clear()


def test_entry_that_waits_to_be_sent_does_not_keep_a_larger_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, entries = entries_of(monkeypatch, value=bytes(5000))
    waiting = [transport._own(entry) for entry in entries]
    assert waiting == [bytes(entry.payload) for entry in entries]
    assert {type(one) for one in waiting} == {bytes}


@pytest.mark.parametrize("payload", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_entry_is_the_buffer_of_its_payload_and_always_true(payload: Any) -> None:
    if compiled is None:
        pytest.skip("only compiled entries are buffers")
    entry: Any = Entry(0, 0, -1, payload)
    assert (bytes(entry), len(entry), bool(entry)) == (bytes(payload), len(payload), True)


def test_buffers_of_an_entry_leave_no_reference_behind() -> None:
    if compiled is None:
        pytest.skip("only compiled entries are buffers")
    payload = bytes(5000)
    entry: Any = Entry(0, 0, -1, payload)
    before = sys.getrefcount(payload), sys.getrefcount(None)
    for _ in range(1000):
        memoryview(entry).release()
    assert sys.getrefcount(payload) == before[0]
    # None is counted up to Python 3.11. Other code holds it as well.
    assert abs(sys.getrefcount(None) - before[1]) < 500
