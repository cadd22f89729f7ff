"""Opens partitions in their topic's entry format, and switches the format (decision 017)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pulsar
from twisted.internet.defer import Deferred

from storage.log import StorageError, StorageFailed
from storage.plain_records import BatchFormat
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import InFlightLimit, LogEnd
from storage.pulsar.client.partition_producers import OK, PartitionProducer, Response, error_of
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.compaction.space_reclaim import TopicTrimmer
from storage.pulsar.log.append_queue import OpenedPartition
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.format_history import (
    MultiFormatLog,
    PulsarPartitionLog,
    first_available_offset,
)
from storage.pulsar.log.format_ranges import FormatRangeReader, KafkaRangeReader, NativeRangeReader
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_log import PulsarLog
from storage.pulsar.log.partition_log_opener import (
    MayWrite,
    check_epoch,
    check_may_write,
    open_partition,
)
from storage.pulsar.log.partition_reader import PartitionReader, ReaderCache
from storage.pulsar.log.partition_rows import FormatRange, PartitionState, next_opening
from storage.pulsar.native.entry_search import EntryFinder
from storage.pulsar.native.message_offsets import START
from storage.pulsar.native.native_opener import open_native_log
from storage.pulsar.native.stored_entries import MAX_CLOCK_SKEW_MS, NativeEntries
from storage.pulsar.topics.topic_listing import NATIVE
from storage.tail import TailCache

log = logging.getLogger(__name__)

OnEnd = Callable[[PulsarPartitionLog, StorageError], None]
"""Called once when a log ends, with the reason."""


@dataclass(frozen=True, slots=True)
class PulsarLogOpener:
    """Opens logs; holds what all logs of a store share.

    Without `batch_format` it opens no topics in the format `pulsar`. `may_write` is asked before
    the first message of each log.
    """

    client: PulsarClient
    admin: PulsarAdmin
    cache: ReaderCache
    in_flight_limit: InFlightLimit
    tail: TailCache
    side_topics: SideTopics
    trimmer: TopicTrimmer
    batch_format: BatchFormat | None
    may_write: MayWrite

    async def open(
        self,
        topic: str,
        entry_format: str,
        partition: PartitionState,
        leader_epoch: int,
        on_end: OnEnd,
    ) -> PulsarPartitionLog:
        """Open the log of a partition, which is written in `entry_format` from now on.

        `topic` is the full name of the partition's topic. Raises UnknownTopic, Fenced, LogClosed,
        StorageFailed.
        """
        await self._switch_format(topic, entry_format, partition, leader_epoch)
        format_ranges = partition.row.format_ranges or (FormatRange(0),)
        format_range = format_ranges[-1]
        if len(format_ranges) == 1:
            return await self._open(
                topic, entry_format, partition, leader_epoch, format_range, on_end
            )
        last = await EntryFinder(self.admin, topic).last()
        ends = [one.first_offset for one in format_ranges[1:]]
        range_readers = [
            self._range_reader(topic, one, end, last or START, partition)
            for one, end in zip(format_ranges[:-1], ends, strict=True)
        ]
        made: list[PulsarPartitionLog] = []

        def over(current: PulsarPartitionLog, error: StorageError) -> None:
            for range_reader in range_readers:
                Deferred.fromCoroutine(range_reader.close()).addErrback(
                    lambda failure: log.debug("closing readers failed: %s", failure.value)
                )
            on_end(made[0] if made else current, error)

        current = await self._open(topic, entry_format, partition, leader_epoch, format_range, over)
        try:
            first = await first_available_offset(range_readers, current)
        except BaseException:
            await MultiFormatLog(range_readers, current, 0).disconnect()
            raise
        start = min(max(first, partition.row.start_offset), current.end_offset)
        made.append(MultiFormatLog(range_readers, current, start))
        return made[0]

    async def _open(
        self,
        topic: str,
        entry_format: str,
        partition: PartitionState,
        leader_epoch: int,
        format_range: FormatRange,
        on_end: OnEnd,
    ) -> PulsarPartitionLog:
        if format_range.is_native:
            return await open_native_log(
                self.client,
                self.admin,
                topic,
                self._require_batch_format(topic),
                partition,
                leader_epoch,
                self.may_write,
                self.tail,
                self.in_flight_limit,
                on_end,
                format_range,
            )
        opened = await self._open_partition(topic, entry_format, partition, leader_epoch)
        log = PulsarLog(
            _not_before(opened, format_range.first_offset),
            self.in_flight_limit,
            self.tail,
            self.side_topics,
            self.trimmer,
            on_end,
        )
        try:
            await log.update_start_offset()
        except BaseException:
            await log.disconnect()
            raise
        return log

    async def _open_partition(
        self, topic: str, entry_format: str, partition: PartitionState, leader_epoch: int
    ) -> OpenedPartition:
        return await open_partition(
            self.client,
            self.admin,
            self.cache,
            topic,
            entry_format,
            partition,
            leader_epoch,
            self.may_write,
        )

    def _range_reader(
        self,
        topic: str,
        format_range: FormatRange,
        end_offset: int,
        last: Position,
        partition: PartitionState,
    ) -> FormatRangeReader:
        if format_range.base is None:
            return KafkaRangeReader(
                format_range,
                end_offset,
                self._reader(topic, partition),
                partition,
                self.side_topics,
            )
        epochs = partition.row.epochs
        stored = NativeEntries(
            self.client,
            EntryFinder(self.admin, topic),
            self._require_batch_format(topic),
            format_range.base,
            epochs[-1][0] if epochs else 0,
        )
        stored.last = last
        return NativeRangeReader(format_range, end_offset, stored)

    def _reader(self, topic: str, partition: PartitionState) -> PartitionReader:
        reader = PartitionReader(self.client, self.admin, self.cache, topic, self.client.settings)
        for one in partition.row.epochs:
            reader.add_epoch(*one)
        return reader

    def _require_batch_format(self, topic: str) -> BatchFormat:
        if self.batch_format is None:
            raise StorageFailed(
                f"{topic} is in the entry format `pulsar`, which this store does not support: "
                "it was opened without a batch format"
            )
        return self.batch_format

    async def _switch_format(
        self, topic: str, entry_format: str, partition: PartitionState, leader_epoch: int
    ) -> None:
        """Start a new format range if the topic's format is of another kind than its last range."""
        if (entry_format == NATIVE) == partition.row.is_native:
            return
        if entry_format == NATIVE:
            await self._to_native(topic, partition, leader_epoch)
        else:
            await self._to_kafka(topic, partition, leader_epoch)

    async def _to_native(self, topic: str, partition: PartitionState, leader_epoch: int) -> None:
        """Start a native range at the end of the Kafka batches.

        A topic that has only ever had native messages becomes one range from offset 0.
        """
        format_ranges = partition.row.format_ranges or (FormatRange(0),)
        reader = self._reader(topic, partition)
        try:
            is_fresh = not partition.row.reserved and await reader.last() is None
        finally:
            await reader.close()
        if is_fresh:
            await partition.change(format_ranges=(FormatRange(0, 0),))
            return
        # Fence other writers first, so that no batch is appended after the end was read.
        opened = await self._open_partition(topic, NATIVE, partition, leader_epoch)
        try:
            end = opened.end
            header = Header(
                end.offset,
                end.offset - 1,
                -1,
                end.bytes,
                opened.leader_epoch,
                end.greatest_timestamp,
                opening=opened.opening,
            )
            index = await self._send_marker(topic, opened.producer, header)
        finally:
            await self._close_producer(opened.producer)
            await opened.reader.close()
        await partition.change(
            format_ranges=(*format_ranges, FormatRange(end.offset, end.offset - index - 1)),
            reserved=end.offset,
        )

    async def _to_kafka(self, topic: str, partition: PartitionState, leader_epoch: int) -> None:
        """Start a range of Kafka batches at the end of the native messages.

        A marker message stores the offset at which it begins, so that the search for the last batch
        need not skip all native messages.
        """
        epochs, format_ranges = partition.row.epochs, partition.row.format_ranges
        check_epoch(topic, epochs[-1][0] if epochs else -1, leader_epoch)
        base = format_ranges[-1].base or 0
        producer = await self.client.run(partial(self.client.partition_producer, topic))
        try:
            check_may_write(topic, self.may_write)
            finder = EntryFinder(self.admin, topic)
            last = await finder.last()
            end_offset, greatest = (
                max(partition.row.start_offset, format_ranges[-1].first_offset),
                -1,
            )
            if last is None:
                end_offset = max(end_offset, partition.row.reserved)
            else:
                end_offset = max(end_offset, base + await finder.index_of(last) + 1)
                greatest = (await finder.peek(last)).publish_time + MAX_CLOCK_SKEW_MS
            _, size = await finder.sizes()
            header = Header(
                end_offset,
                end_offset - 1,
                -1,
                size,
                leader_epoch,
                greatest,
                opening=next_opening(epochs, leader_epoch),
            )
            await self._send_marker(topic, producer, header)
        finally:
            await self._close_producer(producer)
        await partition.change(
            format_ranges=(*format_ranges, FormatRange(end_offset)), reserved=end_offset
        )

    async def _send_marker(self, topic: str, producer: PartitionProducer, header: Header) -> int:
        """Send a message without records that stores the next offset; return its broker index."""
        answered: Deferred[list[Response]] = Deferred()
        producer.on_responses = answered.callback
        try:
            producer.send(None, b"", header.properties("mixed_kafka"))
        except pulsar.PulsarException as error:
            raise to_storage_error(error) from error
        ((_, result, *place),) = await answered
        if result != OK:
            raise to_storage_error(error_of(result))
        return await EntryFinder(self.admin, topic).index_of(Position(*place))

    async def _close_producer(self, producer: PartitionProducer) -> None:
        """Close the producer, and wait for it: the broker admits the next one only after that."""
        await self.client.run(producer.close)


def _not_before(opened: OpenedPartition, first_offset: int) -> OpenedPartition:
    """Move the end of an empty format range to the end of the range before it."""
    if opened.end.offset >= first_offset:
        return opened
    return replace(
        opened, end=LogEnd(first_offset, opened.end.bytes, opened.end.greatest_timestamp)
    )
