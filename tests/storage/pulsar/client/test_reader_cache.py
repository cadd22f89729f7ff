"""The reader cache: reuse, limit, and closing."""

from __future__ import annotations

import threading

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import CancelledError, Deferred

from storage.log import LogClosed
from storage.pulsar.client.topic_readers import OpenReader, ReaderSource
from tests.storage.pulsar.partition_topics import numbered, offsets

pytestmark = pytest.mark.peer

ALL = 1 << 30


@ensureDeferred
async def test_consumers_at_different_offsets_use_separate_readers(partition, side):
    partition.write(numbered(0, 20))
    reader = side.reader(partition)
    await reader.read(0, 20, 0)
    await reader.read(10, 20, 0)
    opened = side.client.readers
    for step in range(1, 10):
        assert offsets(await reader.read(step, 20, 0)) == [step]
        assert offsets(await reader.read(10 + step, 20, 0)) == [10 + step]
    assert side.client.readers == opened


@ensureDeferred
async def test_consumers_at_the_same_offset_use_separate_readers(partition, side):
    partition.write(numbered(0, 20))
    reader = side.reader(partition)
    for step in range(20):
        both = [Deferred.fromCoroutine(reader.read(step, 20, 0)) for _ in range(2)]
        assert [offsets(await one) for one in both] == [[step], [step]]
    # One each for the first and the last message, and one for reading.
    assert side.client.readers <= 2 * 3


@ensureDeferred
async def test_least_recently_used_reader_is_closed(partition, open_side):
    partition.write(numbered(0, 100))
    side = await open_side(readers=3, reader_queue_messages=64)
    reader = side.reader(partition)
    for begin in (0, 20, 40, 60):
        await reader.read(begin, 100, 0)
        assert len(side.cache) <= 3
    opened = side.client.readers
    assert offsets(
        await reader.read(61, 100, 0)
        + await reader.read(41, 100, 0)
        + await reader.read(21, 100, 0)
    ) == [61, 41, 21]
    assert side.client.readers == opened
    assert offsets(await reader.read(1, 100, 0)) == [1]
    assert side.client.readers > opened


@ensureDeferred
async def test_reader_of_cancelled_read_returns_to_cache(partition, side):
    partition.write(numbered(0, 100, size=1000))
    reader = side.reader(partition)
    await reader.read(0, 100, 0)
    given_up = Deferred.fromCoroutine(reader.read(1, 100, ALL))
    given_up.cancel()
    with pytest.raises(CancelledError):
        await given_up
    # Queued in the same threads behind the running read.
    while not len(side.cache):
        await side.client.run(lambda: None)
    assert offsets(await reader.read(2, 100, 0)) == [2]
    assert len(side.cache) <= 2


@ensureDeferred
async def test_cancelled_queued_read_is_not_started(partition, open_side):
    side = await open_side(threads=1)
    may_go_on = threading.Event()
    begun = []
    busy = side.client.run(may_go_on.wait)
    given_up = side.cache.use(
        OpenReader(ReaderSource(side.client, partition.topic), None), lambda: begun.append(True)
    )
    given_up.cancel()
    with pytest.raises(CancelledError):
        await given_up
    may_go_on.set()
    await busy
    await side.client.run(lambda: None)
    assert begun == []


@ensureDeferred
async def test_closed_partition_loses_its_readers_only(
    pulsar, reading_settings, writer, partition, side
):
    other = type(partition)(pulsar, reading_settings, writer)
    readers = []
    for one in (partition, other):
        one.write(numbered(0, 9))
        readers.append(side.reader(one))
        await readers[-1].read(0, 9, 0)
    await readers[0].close()
    assert len(side.cache) == 1
    opened = side.client.readers
    assert offsets(await readers[1].read(1, 9, 0)) == [1]
    assert side.client.readers == opened


@ensureDeferred
async def test_close_closes_all_readers(pulsar, partition, side):
    partition.write(numbered(0, 9))
    await side.reader(partition).read(0, 9, 0)
    path = partition.topic.replace("://", "/")
    assert len(pulsar.admin("GET", f"{path}/stats")["subscriptions"]) == 1
    await side.cache.close()
    assert len(side.cache) == 0
    # The broker needs a moment to remove it.
    while pulsar.admin("GET", f"{path}/stats")["subscriptions"]:
        pass


@ensureDeferred
async def test_read_after_client_is_closed_fails(partition, side):
    partition.write(numbered(0, 9))
    reader = side.reader(partition)
    await reader.read(0, 9, 0)
    await side.client.close()
    with pytest.raises(LogClosed):
        await reader.read(1, 9, 0)
    await reader.close()
