"""Opens a log in the format `pulsar`: reads its bounds from the broker, then follows its tail."""

from __future__ import annotations

from collections.abc import Callable

from storage.log import Fenced, StorageError
from storage.plain_records import BatchFormat
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import InFlightLimit
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.partition_log_opener import MayWrite, check_epoch, check_may_write
from storage.pulsar.log.partition_rows import FormatRange, PartitionState
from storage.pulsar.native.entry_search import EntryFinder
from storage.pulsar.native.native_log import NativeLog, NativeLogBounds
from storage.pulsar.native.native_sender import NativeSender, open_producer
from storage.pulsar.native.stored_entries import NativeEntries
from storage.pulsar.native.tail_reader import TailReader
from storage.tail import TailCache


async def open_native_log(
    client: PulsarClient,
    admin: PulsarAdmin,
    topic: str,
    batch_format: BatchFormat,
    partition: PartitionState,
    leader_epoch: int,
    may_write: MayWrite,
    tail_cache: TailCache,
    in_flight_limit: InFlightLimit,
    on_end: Callable[[NativeLog, StorageError], None],
    format_range: FormatRange,
) -> NativeLog:
    """Open the log of the topic with that full name, whose newest range is `format_range`.

    Raises StorageFailed if the brokers assign no index, Fenced if this process may not write, and
    what creating readers and producers raises.

    Waits until the broker has closed the previous log's producer. A batch whose append failed may
    still be on its way to the bookies; if the end offset were read before that is settled, a retry
    could be stored twice.
    """
    await partition.producer_released
    epochs = partition.row.epochs
    check_epoch(topic, epochs[-1][0] if epochs else -1, leader_epoch)
    native_entries = NativeEntries(
        client,
        EntryFinder(admin, topic),
        batch_format,
        format_range.base or 0,
        leader_epoch=epochs[-1][0] if epochs else 0,
    )
    log = NativeLog(
        await _find_bounds(native_entries, partition, format_range.first_offset),
        partition,
        leader_epoch,
        tail_cache,
        on_end,
    )
    producer = await open_producer(client, topic)
    log.sender = NativeSender(
        client,
        producer,
        batch_format,
        in_flight_limit,
        log.tail_entries.append_acknowledged,
        log.end,
    )

    def lost(error: StorageError) -> None:
        log.end(Fenced(f"reading the topic's tail failed: {error}"))

    log.tail = TailReader(
        native_entries.source, batch_format, native_entries.last, log.tail_entries.add, lost
    )
    log.tail_entries.release = log.tail.release
    try:
        check_may_write(topic, may_write)
        await log.tail.open()
    except StorageError:
        await log.disconnect()
        raise
    return log


async def _find_bounds(
    native_entries: NativeEntries, partition: PartitionState, first: int
) -> NativeLogBounds:
    _, size = await native_entries.finder.sizes()
    last = await native_entries.finder.last()
    if last is None:
        # Pulsar has deleted all messages. Offsets do not restart at 0; the next message shows its
        # own.
        known = max(first, partition.row.reserved, partition.row.start_offset)
        return NativeLogBounds(native_entries, known, known, size)
    end_offset = native_entries.base + await native_entries.finder.index_of(last) + 1
    first_available = await native_entries.first_offset()
    first_offset = end_offset if first_available is None else max(first_available, first)
    native_entries.last = last
    native_entries.average_bytes = max(1, size // max(1, end_offset - first_offset))
    return NativeLogBounds(native_entries, first_offset, end_offset, size)
