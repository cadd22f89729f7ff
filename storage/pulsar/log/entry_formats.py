"""Opening a partition in the entry format that its topic has, and switching it from another one (decision 017)."""

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
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.compaction.side_topic import SideTopics
from storage.pulsar.compaction.space_reclaim import TopicTrimmer
from storage.pulsar.log.append_queue import OpenedPartition
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.format_history import MultiFormatLog, PulsarPartitionLog, first_offset
from storage.pulsar.log.format_ranges import FormatRangeReader, KafkaRangeReader, NativeRangeReader
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_log import PulsarLog
from storage.pulsar.log.partition_log_opener import leader_epoch, open_partition
from storage.pulsar.log.partition_reader import PartitionReader, ReaderCache
from storage.pulsar.log.partition_rows import FormatRange, PartitionState
from storage.pulsar.native.entry_search import EntryFinder
from storage.pulsar.native.message_offsets import START, parse_message_id
from storage.pulsar.native.native_opener import open_native_log
from storage.pulsar.native.stored_entries import MAX_CLOCK_SKEW_MS, NativeEntries
from storage.pulsar.topics.topic_listing import NATIVE
from storage.tail import TailCache

log = logging.getLogger(__name__)

OnEnd = Callable[[PulsarPartitionLog, StorageError], None]
"""Told once of a log that is over, and why."""


@dataclass(frozen=True, slots=True)
class PulsarLogOpener:
    """What all logs of a store have in common. `batch_format` is None where the store was given none: it then opens no native topic."""

    session: PulsarClient
    admin: PulsarAdmin
    cache: ReaderCache
    room: InFlightLimit
    tail: TailCache
    runs: SideTopics
    trimming: TopicTrimmer
    batch_format: BatchFormat | None

    async def open(
        self, topic: str, entry_format: str, partition: PartitionState, when_over: OnEnd
    ) -> PulsarPartitionLog:
        """The log of the topic of that full name, in that format from here on. Raises UnknownTopic, LogClosed, StorageFailed."""
        await self._switch(topic, entry_format, partition)
        stretches = partition.row.stretches or (FormatRange(0),)
        stretch = stretches[-1]
        if len(stretches) == 1:
            return await self._open(topic, entry_format, partition, stretch, when_over)
        last = await EntryFinder(self.admin, topic).last()
        ends = [one.first_offset for one in stretches[1:]]
        pasts = [
            self._past(topic, one, end, last or START, partition)
            for one, end in zip(stretches[:-1], ends, strict=True)
        ]
        made: list[PulsarPartitionLog] = []

        def over(current: PulsarPartitionLog, error: StorageError) -> None:
            for past in pasts:
                Deferred.fromCoroutine(past.close()).addErrback(
                    lambda failure: log.debug("closing readers: %s", failure.value)
                )
            when_over(made[0] if made else current, error)

        current = await self._open(topic, entry_format, partition, stretch, over)
        start = max(await first_offset(pasts, current), partition.row.start_offset)
        made.append(MultiFormatLog(pasts, current, min(start, current.end_offset)))
        return made[0]

    async def _open(
        self,
        topic: str,
        entry_format: str,
        partition: PartitionState,
        stretch: FormatRange,
        when_over: OnEnd,
    ) -> PulsarPartitionLog:
        if stretch.is_native:
            return await open_native_log(
                self.session,
                self.admin,
                topic,
                self._batches(topic),
                partition,
                self.tail,
                self.room,
                when_over,
                stretch,
            )
        opened = await open_partition(
            self.session, self.admin, self.cache, topic, entry_format, partition
        )
        log = PulsarLog(
            _not_before(opened, stretch.first_offset),
            self.room,
            self.tail,
            self.runs,
            self.trimming,
            when_over,
        )
        try:
            await log.see_trimmed()
        except BaseException:
            log.shut()
            raise
        return log

    def _past(
        self,
        topic: str,
        stretch: FormatRange,
        end_offset: int,
        last: Position,
        partition: PartitionState,
    ) -> FormatRangeReader:
        if stretch.base is None:
            return KafkaRangeReader(
                stretch, end_offset, self._reader(topic, partition), partition, self.runs
            )
        epochs = partition.row.epochs
        stored = NativeEntries(
            self.session,
            EntryFinder(self.admin, topic),
            self._batches(topic),
            stretch.base,
            epochs[-1][0] if epochs else 0,
        )
        stored.last = last
        return NativeRangeReader(stretch, end_offset, stored)

    def _reader(self, topic: str, partition: PartitionState) -> PartitionReader:
        reader = PartitionReader(self.session, self.admin, self.cache, topic, self.session.settings)
        for epoch, begin in partition.row.epochs:
            reader.began(epoch, begin)
        return reader

    def _batches(self, topic: str) -> BatchFormat:
        if self.batch_format is None:
            raise StorageFailed(
                f"{topic} is in the entry format `pulsar`, and this store was given nothing to make batches of its messages"
            )
        return self.batch_format

    async def _switch(self, topic: str, entry_format: str, partition: PartitionState) -> None:
        """Begin a new stretch where the topic's format is of another kind than what was written last."""
        stretches = partition.row.stretches
        if (entry_format == NATIVE) == partition.row.is_native:
            return
        if entry_format == NATIVE:
            await self._to_native(topic, partition, stretches or (FormatRange(0),))
        else:
            await self._to_kafka(topic, partition, stretches)

    async def _to_native(
        self, topic: str, partition: PartitionState, stretches: tuple[FormatRange, ...]
    ) -> None:
        """Native offsets begin where Kafka's end. A topic that has only ever had native messages has them all."""
        reader = self._reader(topic, partition)
        try:
            is_fresh = not partition.row.reserved and await reader.last() is None
        finally:
            await reader.close()
        if is_fresh:
            await partition.change(stretches=(FormatRange(0, 0),))
            return
        # The right to write first: nobody may append batches once it is known where they end.
        opened = await open_partition(
            self.session, self.admin, self.cache, topic, NATIVE, partition
        )
        try:
            end = opened.end
            header = Header(
                end.offset,
                end.offset - 1,
                -1,
                end.bytes,
                opened.leader_epoch,
                end.greatest_timestamp,
            )
            index = await self._mark(topic, opened.producer, header)
        finally:
            await self._let_go(opened.producer)
            await opened.reader.close()
        await partition.change(
            stretches=(*stretches, FormatRange(end.offset, end.offset - index - 1)),
            reserved=end.offset,
        )

    async def _to_kafka(
        self, topic: str, partition: PartitionState, stretches: tuple[FormatRange, ...]
    ) -> None:
        """Batches begin where native offsets end, behind a message that says so: who looks for the last batch need not pass over all of them."""
        base = stretches[-1].base or 0
        producer = await self.session.run(
            partial(self.session.producer, topic, pulsar.ProducerAccessMode.ExclusiveWithFencing)
        )
        try:
            finder = EntryFinder(self.admin, topic)
            last = await finder.last()
            end_offset, greatest = max(partition.row.start_offset, stretches[-1].first_offset), -1
            if last is None:
                end_offset = max(end_offset, partition.row.reserved)
            else:
                end_offset = max(end_offset, base + await finder.index_of(last) + 1)
                greatest = (await finder.peek(last)).publish_time + MAX_CLOCK_SKEW_MS
            _, size = await finder.sizes()
            epoch = await leader_epoch(self.admin, topic)
            await self._mark(
                topic, producer, Header(end_offset, end_offset - 1, -1, size, epoch, greatest)
            )
        finally:
            await self._let_go(producer)
        await partition.change(stretches=(*stretches, FormatRange(end_offset)), reserved=end_offset)

    async def _mark(self, topic: str, producer: pulsar.Producer, header: Header) -> int:
        """Send a message without records that says where the next begins; its index."""
        message_id = await self.session.run(
            lambda: producer.send(b"", properties=header.properties("mixed_kafka"))
        )
        return await EntryFinder(self.admin, topic).index_of(
            parse_message_id(message_id.serialize()).position
        )

    async def _let_go(self, producer: pulsar.Producer) -> None:
        """Before anybody else may write the broker must know that it is gone."""
        await self.session.run(producer.close)


def _not_before(opened: OpenedPartition, first_offset: int) -> OpenedPartition:
    """A stretch that nothing was written to yet begins where the one before it ended."""
    if opened.end.offset >= first_offset:
        return opened
    return replace(
        opened, end=LogEnd(first_offset, opened.end.bytes, opened.end.greatest_timestamp)
    )
