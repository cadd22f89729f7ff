"""A log of the format `pulsar` is opened: where it begins and ends is asked of the broker, and then its tail is followed."""

from __future__ import annotations

from collections.abc import Callable

from storage.log import Fenced, StorageError
from storage.plain_records import BatchFormat
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import InFlightLimit
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.partition_rows import FormatRange, PartitionState
from storage.pulsar.native.entry_search import EntryFinder
from storage.pulsar.native.native_log import NativeLog, NativeLogBounds
from storage.pulsar.native.native_sender import NativeSender, open_producer
from storage.pulsar.native.stored_entries import NativeEntries
from storage.pulsar.native.tail_reader import TailReader
from storage.tail import TailCache


async def open_native_log(
    session: PulsarClient,
    admin: PulsarAdmin,
    topic: str,
    batch_format: BatchFormat,
    partition: PartitionState,
    entries: TailCache,
    room: InFlightLimit,
    when_over: Callable[[NativeLog, StorageError], None],
    stretch: FormatRange,
) -> NativeLog:
    """The log of the topic of that full name, which begins with `stretch`. Raises StorageFailed where the brokers keep no index, and what making readers and producers raises.

    A batch that the log before has given up may still be on its way to the bookies; the broker does not let go of its producer before that is settled.
    Read earlier, the end would be before it, and a retry be stored a second time.
    """
    await partition.letting_go
    epochs = partition.row.epochs
    stored = NativeEntries(
        session,
        EntryFinder(admin, topic),
        batch_format,
        stretch.base or 0,
        leader_epoch=epochs[-1][0] if epochs else 0,
    )
    log = NativeLog(
        await _find_bounds(stored, partition, stretch.first_offset), partition, entries, when_over
    )
    producer = await open_producer(session, topic)
    log.sender = NativeSender(
        session, producer, batch_format, room, log.arrivals.acknowledged, log.end
    )

    def lost(error: StorageError) -> None:
        log.end(Fenced(f"what was written to the topic cannot be followed: {error}"))

    log.tail = TailReader(session, topic, batch_format, stored.last, log.arrivals.add, lost)
    log.arrivals.leave = log.tail.leave
    try:
        await log.tail.open()
    except StorageError:
        await log.shut()
        raise
    return log


async def _find_bounds(
    stored: NativeEntries, partition: PartitionState, first: int
) -> NativeLogBounds:
    _, size = await stored.finder.sizes()
    last = await stored.finder.last()
    if last is None:
        # What Pulsar has deleted wholly is no reason to begin at 0 again: the first message that comes will tell.
        known = max(first, partition.row.reserved, partition.row.start_offset)
        return NativeLogBounds(stored, known, known, size)
    end_offset = stored.base + await stored.finder.index_of(last) + 1
    there = await stored.first_offset()
    first_offset = end_offset if there is None else max(there, first)
    stored.last = last
    stored.average_bytes = max(1, size // max(1, end_offset - first_offset))
    return NativeLogBounds(stored, first_offset, end_offset, size)
