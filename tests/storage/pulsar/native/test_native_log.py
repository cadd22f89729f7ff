"""A partition log shared with native clients, on a real broker.

The expected offsets are counted from what was sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pulsar as client
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from gateway.configs.topic_configs import effective_config
from gateway.partitions.partition import Partition as Led
from gateway.partitions.partition import ProducerRecovery
from gateway.partitions.producer_snapshots import ProducerSnapshots
from gateway.partitions.producer_state import ProducerStateManager
from gateway.partitions.record_batch import check_batch
from gateway.partitions.record_format import V2BatchFormat
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from records import read_header
from storage.log import Entry, EntryTooLarge, Fenced, OffsetOutOfRange, StorageFailed, Topic
from storage.plain_records import PlainBatch, PlainRecord, ProducerSequence
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import InFlightLimit
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.partition_rows import FormatRange, PartitionRow, PartitionState
from storage.pulsar.native.native_log import NativeLog
from storage.pulsar.native.native_opener import open_native_log
from storage.pulsar.native.native_sender import UnreadableBatch
from storage.tail import TailCache
from tests.fakes.memory_store import Medium, MemoryStore
from tests.records.record_sets import batch
from tests.storage.pulsar.native_application import NativeApplication
from tests.testkit.pulsar import Pulsar
from tests.testkit.pulsar_relay import CLOSE_PRODUCER, SEND_RECEIPT, PulsarRelays
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

FORMAT = V2BatchFormat()
TIME = 1_700_000_000_000


@dataclass
class NativeTopic:
    """The topic of `sender`, opened as a gateway does."""

    sender: NativeApplication
    partition: PartitionState
    tail_bytes: int = 1 << 20
    leader_epoch: int = 0
    may_write: bool = True
    logs: list[NativeLog] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.sender.settings
        self.client = PulsarClient(settings, reactor)
        self.admin = PulsarAdmin(settings, reactor)

    async def open(self) -> NativeLog:
        if not self.logs:
            await self.client.open()
        log = await open_native_log(
            self.client,
            self.admin,
            self.sender.topic,
            FORMAT,
            self.partition,
            self.leader_epoch,
            lambda: self.may_write,
            TailCache(self.tail_bytes),
            InFlightLimit(1 << 30, 100_000),
            lambda log, error: None,
            FormatRange(0, 0),
        )
        self.logs.append(log)
        return log

    async def again(self) -> NativeLog:
        """Close and reopen the log."""
        await self.logs[-1].close()
        return await self.open()

    async def close(self) -> None:
        for log in self.logs:
            await log.close()
        await self.admin.close()
        await self.client.close()


@pytest.fixture
def sender(pulsar: Tenant) -> Iterator[NativeApplication]:
    made = NativeApplication(pulsar)
    yield made
    made.client.close()


@pytest.fixture
def partition() -> Iterator[PartitionState]:
    store = MemoryStore(Medium())
    settle(store.open())
    yield PartitionState(settle(store.table("partitions")), b"key", PartitionRow())
    settle(store.close())


@pytest.fixture
def bench(sender: NativeApplication, partition: PartitionState) -> Iterator[NativeTopic]:
    made = NativeTopic(sender, partition)
    yield made
    settle(made.close())


def append(log: NativeLog, *records: PlainRecord, sequence: ProducerSequence | None = None) -> Any:
    payload = FORMAT.pack(PlainBatch(records, sequence))
    return log.append(
        (Entry(log.next_offset, log.next_offset + len(records) - 1, TIME, memoryview(payload)),)
    )


def values(*those: bytes) -> tuple[PlainRecord, ...]:
    return tuple(PlainRecord(None, value, (), TIME) for value in those)


async def reach(log: NativeLog, end_offset: int) -> None:
    """Wait until the log ends at `end_offset`."""
    reached: Deferred[None] = Deferred()

    def look() -> None:
        if log.end_offset >= end_offset and not reached.called:
            reached.callback(None)

    log.watch(look)
    look()
    await reached.addTimeout(60, reactor)
    log.unwatch(look)
    assert log.end_offset == end_offset


async def everything(log: NativeLog, max_bytes: int = 1 << 20) -> list[tuple[int, PlainRecord]]:
    """(offset, record) of everything readable."""
    found: list[tuple[int, PlainRecord]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        entries = await log.read(offset, max_bytes)
        for entry in entries:
            assert entry.base_offset >= offset
            records = FORMAT.unpack(entry.payload).records
            found += [(entry.base_offset + number, record) for number, record in enumerate(records)]
            offset = entry.last_offset + 1
    return found


async def seen(log: NativeLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None]]:
    return [(offset, record.value) for offset, record in await everything(log, max_bytes)]


@ensureDeferred
async def test_appended_records_get_offsets_and_are_read(bench: NativeTopic) -> None:
    log = await bench.open()
    assert await append(log, *values(b"a", b"b")) == 0
    assert await append(log, *values(b"c")) == 2
    assert (log.start_offset, log.end_offset) == (0, 3)
    assert await seen(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


@ensureDeferred
async def test_epoch_of_shard_begins_at_log_end(bench: NativeTopic) -> None:
    """Stored batches keep their epoch, so that every reader gets the same bytes."""
    log = await bench.open()
    await append(log, *values(b"a", b"b"))
    bench.leader_epoch = 3
    again = await bench.again()
    assert again.leader_epoch == 3
    ends = [again.end_offset_for_epoch(epoch) for epoch in (0, 1, 3, 4)]
    assert ends == [(0, 2), (0, 2), (3, 2), (-1, -1)]


@ensureDeferred
async def test_log_is_not_opened_if_process_may_not_write(bench: NativeTopic) -> None:
    bench.may_write = False
    with pytest.raises(Fenced):
        await bench.open()


@ensureDeferred
async def test_concurrent_appends_keep_order(bench: NativeTopic) -> None:
    log = await bench.open()
    waiting = [append(log, *values(*[b"%d" % number] * (number % 3 + 1))) for number in range(100)]
    found = await gatherResults(waiting)
    sizes = [number % 3 + 1 for number in range(100)]
    assert found == [sum(sizes[:number]) for number in range(100)]


@ensureDeferred
async def test_native_messages_get_offsets_among_kafka_records(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    log = await bench.open()
    assert await append(log, *values(b"k0", b"k1")) == 0
    sender.send(b"n2")
    sender.batch(b"n3", b"n4")
    assert await append(log, *values(b"k5")) == 5
    sender.send(b"c" * 11_000_000, chunked=True)
    assert await append(log, *values(b"k9")) == 9
    sender.send(b"n10")
    await reach(log, 11)
    expected = [
        (0, b"k0"),
        (1, b"k1"),
        (2, b"n2"),
        (3, b"n3"),
        (4, b"n4"),
        (5, b"k5"),
        (8, b"c" * 11_000_000),
        (9, b"k9"),
        (10, b"n10"),
    ]
    assert await seen(log) == expected
    assert await seen(await bench.again()) == expected


@ensureDeferred
async def test_reopened_log_has_same_offsets_for_any_read_size(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    log = await bench.open()
    for number in range(20):
        await append(log, *values(*[b"k%d" % number] * 3))
        sender.batch(b"n%d" % number, b"m")
        if number % 7 == 3:
            sender.unload()
    await reach(log, 100)
    expected = await seen(log)
    assert [offset for offset, _ in expected] == list(range(100))
    again = await bench.again()
    assert (again.start_offset, again.end_offset) == (0, 100)
    assert [await seen(again, size) for size in (1, 100, 1 << 20)] == [expected] * 3
    for offset in (99, 50, 1):
        entry = (await again.read(offset, 1))[0]
        assert entry.base_offset <= offset <= entry.last_offset
    assert await append(again, *values(b"last")) == 100


@ensureDeferred
async def test_two_logs_of_one_topic_agree_on_offsets(bench: NativeTopic) -> None:
    one, other = await bench.open(), await bench.open()
    found = await gatherResults(
        [append(log, *values(b"%d" % number)) for number in range(50) for log in (one, other)]
    )
    assert sorted(found) == list(range(100))
    await reach(one, 100)
    await reach(other, 100)
    assert await seen(one) == await seen(other)


@ensureDeferred
async def test_native_consumer_reads_appended_records(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    log = await bench.open()
    await append(
        log,
        PlainRecord(b"k", b"v", ((b"h", b"1"),), TIME),
        PlainRecord(b"\xff", None, (), TIME + 1),
        PlainRecord(None, b"", (), -1),
    )
    reader = sender.client.create_reader(sender.topic, client.MessageId.earliest)
    first, second, third = (reader.read_next(60_000) for _ in range(3))
    assert (first.partition_key(), first.data(), first.properties(), first.event_timestamp()) == (
        "k",
        b"v",
        {"h": "1"},
        TIME,
    )
    assert (second.partition_key(), second.has_null_value(), second.event_timestamp()) == (
        "/w==",
        True,
        TIME + 1,
    )
    assert (
        third.partition_key(),
        third.has_null_value(),
        third.data(),
        third.event_timestamp(),
    ) == ("", False, b"", 0)


@ensureDeferred
async def test_native_messages_are_read_as_records(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    began = int(time.time() * 1000)
    producer = sender.client.create_producer(
        sender.topic, compression_type=client.CompressionType.ZSTD
    )
    producer.send(
        b"v",
        partition_key="k",
        ordering_key="o",
        properties={"b": "2", "a": "1"},
        event_timestamp=TIME,
    )
    producer.send(None, partition_key="gone")
    ended = time.time() * 1000
    log = await bench.open()
    (_, first), (_, second) = await everything(log)
    assert first == PlainRecord(b"o", b"v", ((b"a", b"1"), (b"b", b"2")), TIME)
    assert (second.key, second.value) == (b"gone", None)
    assert began <= second.timestamp <= ended


@ensureDeferred
async def test_records_round_trip_with_producer_sequence(bench: NativeTopic) -> None:
    records = (
        PlainRecord(b"\xff\x00", b"\x00\xff", ((b"z", b"\xff"), (b"a", None), (b"z", b"")), TIME),
        PlainRecord(b"", None, ((b"\xfe", b"x"),), 0),
        PlainRecord(None, b"", (), TIME),
    )
    bench.tail_bytes = 0
    log = await bench.open()
    await append(log, *records, sequence=ProducerSequence(7, 3, 9))
    (entry,) = await log.read(0, 1 << 20)
    assert FORMAT.unpack(entry.payload) == PlainBatch(list(records), ProducerSequence(7, 3, 9))


@ensureDeferred
async def test_reopened_log_recognizes_retry_as_duplicate(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    sender.send(b"n")
    sequence = ProducerSequence(7, 0, 40)
    assert await append(await bench.open(), *values(b"a", b"b"), sequence=sequence) == 1
    producers = ProducerStateManager(10)
    for entry in await (await bench.again()).read(0, 1 << 20):
        producers.replay(read_header(entry.payload), TIME)
    twin = producers.check(read_header(FORMAT.pack(PlainBatch(values(b"a", b"b"), sequence))))
    assert twin is not None
    assert (twin.base_offset, twin.last_offset) == (1, 2)


@ensureDeferred
async def test_retry_after_lost_acknowledgement_is_not_stored_twice(
    pulsar: Tenant, partition: PartitionState
) -> None:
    """The batch is read from the tail, which moves the log end; then the send times out.

    The timeout ends the log.
    """
    sender = NativeApplication(pulsar)
    with PulsarRelays(sender.settings) as between:
        sender.settings = replace(between.settings, send_timeout_seconds=5.0)
        bench = NativeTopic(sender, partition)
        log = await bench.open()
        led = Led("t", 0, log, effective_config({}, Settings()), ProducerStateManager(10))
        assert (await send(led, 0)).base_offset == 0
        with between.dropping(SEND_RECEIPT):
            unacknowledged = send(led, 1)
            await reach(log, 2)
            with pytest.raises(KafkaError) as caught:
                await unacknowledged
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        topic, snapshots = (
            Topic("t", bytes(16), 1),
            ProducerSnapshots(MemoryStore(), 10, 1, lambda: TIME, lambda work: None),
        )
        snapshots.keep_row(topic.topic_id, led)
        again = await bench.open()
        producers, offset = snapshots.load(topic, 0, again)
        led = Led("t", 0, again, effective_config({}, Settings()), producers)
        await snapshots.replay(topic.topic_id, led, ProducerRecovery(offset, 0))
        assert (await send(led, 1)).base_offset == 1
        assert (await send(led, 2)).base_offset == 2
        await bench.close()
    sender.client.close()


def send(partition: Led, sequence: int) -> Any:
    """Append a batch of an idempotent producer as a client would."""
    records = batch(1, producer=(7, 0, sequence))
    return partition.append_batch(records, check_batch(records, 11), TIME)


@ensureDeferred
async def test_append_read_before_log_ends_succeeds(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    log = await bench.open()
    index_of = log._native_entries.finder.index_of
    peeks: list[Deferred[None]] = []

    async def held(position: Any) -> int:
        peeks.append(Deferred())
        await peeks[-1]
        return await index_of(position)

    log._native_entries.finder.index_of = held
    own = append(log, *values(b"a"))
    await until(lambda: len(peeks) == 1 and bool(log.tail_entries._acknowledged))
    # Its index is not counted from the entry before, but read from the broker.
    sender.send(b"c" * 11_000_000, chunked=True)
    await until(lambda: len(log.tail_entries._queue) == 2)
    peeks[0].callback(None)
    await until(lambda: len(peeks) == 2)
    await log.close()
    assert await own.addTimeout(10, reactor) == 0
    peeks[1].callback(None)


async def until(is_so: Callable[[], bool]) -> None:
    """Wait up to a minute until the condition holds."""
    for _ in range(6000):
        if is_so():
            return
        await deferLater(reactor, 0.01)
    raise TimeoutError


@ensureDeferred
async def test_reopening_waits_until_broker_has_closed_previous_producer(
    pulsar: Tenant, partition: PartitionState
) -> None:
    """Otherwise the batch could be stored after the end that was read.

    Here the broker is not notified that the producer closes.
    """
    patience = 5.0
    sender = NativeApplication(pulsar)
    with PulsarRelays(sender.settings) as between:
        sender.settings = replace(between.settings, operation_timeout_seconds=patience)
        bench = NativeTopic(sender, partition)
        await append(await bench.open(), *values(b"a"))
        with between.dropping(CLOSE_PRODUCER):
            began = time.monotonic()
            bench.logs[-1].end(Fenced("whether it was stored is unknown"))
            log = await bench.open()
            assert time.monotonic() - began >= patience
        assert log.end_offset == 1
        await bench.close()
    sender.client.close()


@ensureDeferred
async def test_compressible_batch_may_exceed_message_limit(bench: NativeTopic) -> None:
    log = await bench.open()
    assert await append(log, *values(*[b"x" * 100_000] * 80)) == 0
    assert await append(log, *values(b"after")) == 80


@ensureDeferred
async def test_log_start_is_persistent(bench: NativeTopic) -> None:
    log = await bench.open()
    for number in range(4):
        await append(log, *values(b"%d" % number, b"x"))
    assert await log.delete_before(3) == 3
    with pytest.raises(OffsetOutOfRange):
        await log.read(2, 100)
    assert (await log.read(3, 1))[0].base_offset == 2
    again = await bench.again()
    assert (again.start_offset, again.end_offset) == (3, 8)
    with pytest.raises(OffsetOutOfRange):
        await again.delete_before(9)


@ensureDeferred
async def test_records_are_found_by_timestamp(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    now = round(time.time() * 1000)
    log = await bench.open()
    for late in (0, 30, 10, 20):
        await append(log, PlainRecord(None, b"v", (), now + late))
    for offset_and_time in ((now - 5, 0), (now, 0), (now + 1, 1), (now + 30, 1), (now + 31, None)):
        entry = await log.entry_for_time(offset_and_time[0])
        assert (entry and entry.base_offset) == offset_and_time[1]
    latest = await log.latest_by_time()
    assert latest is not None
    assert latest.base_offset == 1
    await append(log, PlainRecord(None, b"v", (), now + 40))
    latest = await log.latest_by_time()
    assert latest is not None
    assert latest.base_offset == 4
    assert await log.retain(since=now + 15, at_most_bytes=None) == 1
    assert await log.retain(since=now + 1000, at_most_bytes=None) == 5


@ensureDeferred
async def test_append_over_in_flight_limit_is_refused_and_not_stored(
    sender: NativeApplication, partition: PartitionState
) -> None:
    sender.settings = replace(sender.settings, queue_operations=5)
    bench = NativeTopic(sender, partition)
    log = await bench.open()
    first = append(log, *values(b"a", b"b", b"c"))
    second = append(log, *values(b"d", b"e", b"f"))
    assert await first == 0
    with pytest.raises(StorageFailed, match="queue_operations"):
        await second
    with pytest.raises(EntryTooLarge, match="queue_operations"):
        await append(log, *values(*[b"x"] * 6))
    assert await append(log, *values(b"g")) == 3
    await bench.close()


@ensureDeferred
async def test_oversized_batch_is_refused_and_log_continues(bench: NativeTopic) -> None:
    log = await bench.open()
    first = append(log, *values(b"a"))
    large = append(log, *values(os.urandom(6_000_000)))
    last = append(log, *values(b"b"))
    assert await first == 0
    with pytest.raises(EntryTooLarge):
        await large
    assert await last == 1


@ensureDeferred
async def test_unreadable_batch_is_refused_and_log_continues(bench: NativeTopic) -> None:
    log = await bench.open()
    payload = FORMAT.pack(PlainBatch(values(b"x" * 50)))
    payload[63] ^= 0x55
    with pytest.raises(UnreadableBatch):
        await log.append((Entry(log.next_offset, log.next_offset, TIME, memoryview(payload)),))
    assert await append(log, *values(b"g")) == 0


@ensureDeferred
async def test_fully_trimmed_log_continues_at_broker_index(
    bench: NativeTopic, sender: NativeApplication
) -> None:
    log = await bench.open()
    await append(log, *values(b"a", b"b"))
    await log.store_end_offset()
    await log.close()
    sender.trim()
    again = await bench.open()
    assert (again.start_offset, again.end_offset) == (2, 2)
    assert await append(again, *values(b"c")) == 2
    assert await seen(again) == [(2, b"c")]


@pytest.mark.slow
@ensureDeferred
async def test_missing_broker_index_names_broker_setting(partition: PartitionState) -> None:
    with Pulsar.start(brokerEntryMetadataInterceptors="") as broker:
        bench = NativeTopic(NativeApplication(broker.tenant()), partition)
        bench.sender.send(b"n")
        with pytest.raises(StorageFailed, match="AppendIndexMetadataInterceptor"):
            await bench.open()
        await bench.close()
        bench.sender.client.close()
