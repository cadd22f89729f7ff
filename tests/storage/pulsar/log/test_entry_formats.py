"""Topics in the entry format `pulsar`, and format switches, on a real broker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pulsar as client
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from gateway.partitions.record_format import V2BatchFormat
from storage.log import Entry, LogClosed, PartitionLog, StorageFailed, Topic
from storage.plain_records import PlainBatch, PlainRecord
from storage.pulsar.log.entry_messages import ENTRY_FORMAT
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.store import PulsarStore
from tests.storage.open_shards import open_with_shards
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

FORMAT = V2BatchFormat()
NAME = "orders"
ID = b"0123456789abcdef"


def topic(entry_format: str) -> Topic:
    return Topic(NAME, ID, 1, {ENTRY_FORMAT: entry_format})


@dataclass
class Side:
    """A gateway's store and a native application on the same topic."""

    settings: PulsarSettings

    def __post_init__(self) -> None:
        self.client = client.Client(self.settings.service_url)
        self.topic = (
            f"persistent://{self.settings.tenant}/{self.settings.namespace}/{NAME}-partition-0"
        )

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PulsarStore]:
        store = PulsarStore(self.settings, reactor=reactor, batch_format=FORMAT)
        await open_with_shards(store)
        try:
            yield store
        finally:
            await store.close()

    def send(self, *values: bytes) -> None:
        producer = self.client.create_producer(self.topic, batching_enabled=False)
        for value in values:
            producer.send(value, event_timestamp=round(time.time() * 1000))
        producer.close()


@pytest.fixture
def side(pulsar: Tenant) -> Side:
    return Side(pulsar.settings())


async def append(log: PartitionLog, *values: bytes) -> int | None:
    """Append as a partition leader does, with offsets from the log's next offset."""
    now = round(time.time() * 1000)
    payload = FORMAT.pack(PlainBatch([PlainRecord(None, value, (), now) for value in values]))
    offset = log.next_offset
    if offset < 1 << 62:
        FORMAT.stamp(payload, offset, log.leader_epoch)
    assigned = await log.append(
        (Entry(offset, offset + len(values) - 1, now, memoryview(payload)),)
    )
    return offset if assigned is None else assigned


async def seen(log: PartitionLog, max_bytes: int = 1 << 20) -> Sequence[tuple[int, bytes | None]]:
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        for entry in await log.read(offset, max_bytes):
            found += [
                (entry.base_offset + n, one.value)
                for n, one in enumerate(FORMAT.unpack(entry.payload).records)
            ]
            offset = entry.last_offset + 1
    return found


@ensureDeferred
async def test_topic_in_format_pulsar_is_shared_with_native_clients(side: Side) -> None:
    async with side.store() as store:
        await store.create_topic(topic("pulsar"))
        log = await store.log(NAME, 0)
        assert await append(log, b"a", b"b") == 0
        side.send(b"n")
        assert await append(log, b"c") == 3
    async with side.store() as store:
        assert await seen(await store.log(NAME, 0)) == [(0, b"a"), (1, b"b"), (2, b"n"), (3, b"c")]


@ensureDeferred
async def test_offsets_continue_and_records_stay_readable_across_format_switches(
    side: Side,
) -> None:
    async with side.store() as store:
        await store.create_topic(topic("mixed_kafka"))
        assert await append(await store.log(NAME, 0), b"k0") == 0
    # While a gateway leads a topic in Kafka's format, the broker refuses other writers.
    side.send(b"sent while fenced")
    expected = [(0, b"k0"), (1, b"k1")]
    async with side.store() as store:
        log = await store.log(NAME, 0)
        assert await append(log, b"k1") == 1
        for turn in range(2):
            before = log
            await store.alter_topic(topic("pulsar"))
            with pytest.raises(LogClosed):
                await append(before, b"late")
            log = await store.log(NAME, 0)
            assert (log.start_offset, log.end_offset) == (0, len(expected))
            assert await seen(log) == expected
            native = b"n%d" % turn
            side.send(native)
            expected.append((len(expected), native))
            assert await append(log, b"p%d" % turn) == len(expected)
            expected.append((len(expected), b"p%d" % turn))
            assert await seen(log) == expected
            await store.alter_topic(topic("kafka"))
            log = await store.log(NAME, 0)
            assert await seen(log) == expected
            assert await append(log, b"k", b"K") == len(expected)
            expected += [(len(expected), b"k"), (len(expected) + 1, b"K")]
            assert await seen(log) == expected
    async with side.store() as store:
        log = await store.log(NAME, 0)
        assert [await seen(log, size) for size in (1, 1 << 20)] == [expected, expected]
        assert await append(log, b"end") == len(expected)


@ensureDeferred
async def test_no_offset_is_reused_after_switch_without_writes(
    side: Side,
) -> None:
    async with side.store() as store:
        await store.create_topic(topic("mixed_kafka"))
        await append(await store.log(NAME, 0), b"k0", b"k1")
        await store.alter_topic(topic("pulsar"))
        assert await append(await store.log(NAME, 0), b"p2") == 2
        await store.alter_topic(topic("mixed_kafka"))
        assert (await store.log(NAME, 0)).end_offset == 3
    for _ in range(2):
        async with side.store() as store:
            log = await store.log(NAME, 0)
            assert (log.start_offset, log.end_offset) == (0, 3)
    async with side.store() as store:
        assert await append(await store.log(NAME, 0), b"k3") == 3
        assert await seen(await store.log(NAME, 0)) == [
            (0, b"k0"),
            (1, b"k1"),
            (2, b"p2"),
            (3, b"k3"),
        ]


@ensureDeferred
async def test_topic_that_was_always_native_keeps_all_messages(side: Side, pulsar: Tenant) -> None:
    path = f"persistent/{side.settings.tenant}/{side.settings.namespace}/{NAME}"
    pulsar.admin("PUT", f"{path}/partitions", 1)
    side.send(b"a", b"b", b"c")
    pulsar.admin("PUT", f"{path}/properties", {ENTRY_FORMAT: "pulsar"})
    async with side.store() as store:
        assert await seen(await store.log(NAME, 0)) == [(0, b"a"), (1, b"b"), (2, b"c")]


@ensureDeferred
async def test_log_start_and_timestamps_work_across_format_switch(side: Side) -> None:
    async with side.store() as store:
        await store.create_topic(topic("mixed_kafka"))
        await append(await store.log(NAME, 0), b"k0")
        await append(await store.log(NAME, 0), b"k1")
        await store.alter_topic(topic("pulsar"))
        log = await store.log(NAME, 0)
        await append(log, b"p2")
        await append(log, b"p3")
        times = [(await log.read(offset, 1))[0].max_timestamp for offset in range(4)]
        found = [await log.entry_for_time(one) for one in times]
        assert [entry and times[entry.base_offset] for entry in found] == times
        assert await log.entry_for_time(times[-1] + 1) is None
        latest = await log.latest_by_time()
        assert latest is not None
        assert latest.max_timestamp == max(times)
        assert await log.delete_before(1) == 1
        assert [offset for offset, _ in await seen(log)] == [1, 2, 3]
        assert await log.delete_before(3) == 3
        assert await log.retain(since=times[-1] + 1, at_most_bytes=None) == 4
    async with side.store() as store:
        log = await store.log(NAME, 0)
        assert (log.start_offset, log.end_offset) == (4, 4)


@ensureDeferred
async def test_store_without_batch_format_refuses_native_topic(side: Side) -> None:
    store = PulsarStore(side.settings, reactor=reactor)
    await open_with_shards(store)
    await store.create_topic(topic("pulsar"))
    with pytest.raises(StorageFailed, match="entry format `pulsar`"):
        await store.log(NAME, 0)
    await store.close()
