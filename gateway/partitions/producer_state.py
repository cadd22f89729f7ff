"""Idempotent producers: what each one sent to a partition last, so that a retry is recognised and a gap refused.

Follows Kafka's ProducerStateManager and ProducerAppendInfo. Batches are noted when they are queued, before they are durable: one that
then fails is forgotten again by `remove_failed`. No I/O, no clock: times are arguments, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import structs

from gateway.partitions.record_batch import BatchHeader
from gateway.protocol.errors import ErrorCode, KafkaError

#: How many of a producer's last batches are remembered: the most that a client has in flight with idempotence on (KIP-98).
BATCHES_TO_RETAIN = 5


class BatchMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch of a producer: its epoch, its first and last sequence and offset, and the log append time its answer bore."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    log_append_time: int = -1


@dataclass(slots=True)
class ProducerStateEntry:
    """`batches` is oldest first; `last_seen` is when it last wrote, by the gateway's clock; `topic_name` is the name of the topic that it uses, if known."""

    batches: list[BatchMetadata]
    last_seen: int
    topic_name: str = ""


class ProducerStateManager:
    """The producers of one partition. `limit` is the most that are remembered; the one silent longest is forgotten first.

    A producer with a batch in flight is kept, even over the limit: a retry of the batch would be stored again.
    """

    __slots__ = ("_limit", "_producers")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._producers: dict[int, ProducerStateEntry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, ProducerStateEntry]]:
        return iter(self._producers.items())

    def check(self, batch: BatchHeader, topic_name: str = "") -> BatchMetadata | None:
        """None for a batch that is next in its producer's order, or what was noted of it before if it is a retry.

        Raises KafkaError: INVALID_PRODUCER_EPOCH for an epoch that is past, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. A producer that is not
        known may begin anywhere: its state may have expired, or retention may have deleted it. INVALID_REQUEST where it has called the topic by
        another name before: to a client that is another partition, with sequences of its own, and what looks like a retry is none.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if topic_name != producer.topic_name and topic_name and producer.topic_name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"an idempotent producer must keep to one name of a topic: {topic_name} is the same as {producer.topic_name}",
            )
        last = producer.batches[-1]
        if batch.producer_epoch < last.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {batch.producer_epoch}, and {last.epoch} is current",
            )
        if batch.producer_epoch > last.epoch:
            if batch.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"a new epoch begins at sequence {batch.base_sequence}, not 0",
                )
            return None
        for metadata in producer.batches:
            if (
                metadata.epoch == batch.producer_epoch
                and metadata.first_sequence == batch.base_sequence
                and metadata.last_sequence == batch.last_sequence
            ):
                return metadata
        expected = (last.last_sequence + 1) & 0x7FFFFFFF
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.base_sequence}, and {expected} is next",
            )
        return None

    def append(
        self,
        batch: BatchHeader,
        base_offset: int,
        log_append_time: int,
        durable_end: int,
        now: int,
        topic_name: str = "",
    ) -> None:
        """Remember a batch that was just queued at `base_offset`. Batches before `durable_end` cannot fail any more and may be let go."""
        metadata = BatchMetadata(
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
            base_offset,
            base_offset + batch.last_offset_delta,
            log_append_time,
        )
        producer = self._put(batch.producer_id, metadata, now, durable_end)
        if topic_name:
            producer.topic_name = topic_name

    def _put(
        self, producer_id: int, metadata: BatchMetadata, now: int, durable_end: int
    ) -> ProducerStateEntry:
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            producer = ProducerStateEntry([], now)
            self._evict(durable_end)
        # Put back at the end: the order of the dictionary is the order of last use.
        self._producers[producer_id] = producer
        producer.last_seen = now
        producer.batches.append(metadata)
        # Of those that may still fail none may be dropped, or a rewind could not find the last good one.
        while (
            len(producer.batches) > BATCHES_TO_RETAIN
            and producer.batches[1].last_offset < durable_end
        ):
            del producer.batches[0]
        return producer

    def _evict(self, durable_end: int) -> None:
        """Make room for one more producer."""
        while len(self._producers) >= self._limit:
            # If the last batch of the one silent longest is not durable, no other producer's is.
            longest_silent = next(iter(self._producers))
            if self._producers[longest_silent].batches[-1].last_offset >= durable_end:
                return
            del self._producers[longest_silent]

    def remove_failed(self, producer_id: int, base_offset: int) -> None:
        """The batch noted at `base_offset` has failed.

        A producer of which nothing before it is known must still send it again first. If the producer were
        unknown, a later batch, sent before the failure was reported, would be accepted in its place.
        """
        producer = self._producers.get(producer_id)
        for number, metadata in enumerate(producer.batches if producer else ()):
            if producer is not None and metadata.base_offset == base_offset:
                producer.batches[number : number + 1] = (
                    [] if number else [_predecessor_of(metadata)]
                )
                return

    def rewind(self, end_offset: int) -> None:
        """The outcome of appends from `end_offset` on is unknown, and the log will tell: forget the batches that were in them.

        As `remove_failed`, a producer of which nothing else is known must still begin with the first of them.
        """
        for producer in self._producers.values():
            if producer.batches[-1].last_offset >= end_offset:
                first = producer.batches[0]
                producer.batches = [
                    metadata for metadata in producer.batches if metadata.last_offset < end_offset
                ] or [_predecessor_of(first)]

    def confirm(
        self,
        batch: BatchHeader,
        queued_offset: int,
        base_offset: int,
        log_append_time: int,
        now: int,
    ) -> None:
        """What was noted at `queued_offset` is stored at `base_offset`: that of a log which gives offsets out itself is known only then.

        It is noted again where its producer was forgotten meanwhile.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or all(
            metadata.base_offset != queued_offset for metadata in producer.batches
        ):
            self.append(batch, base_offset, log_append_time, base_offset, now)
            return
        last_offset = base_offset + batch.last_offset_delta
        producer.batches = [
            structs.replace(metadata, base_offset=base_offset, last_offset=last_offset)
            if metadata.base_offset == queued_offset
            else metadata
            for metadata in producer.batches
        ]

    def truncate(self, end_offset: int) -> None:
        """The log ends at `end_offset`: forget what is said of it beyond that, and every producer of whom nothing else is known."""
        for producer_id, producer in list(self._producers.items()):
            producer.batches = [
                metadata for metadata in producer.batches if metadata.last_offset < end_offset
            ]
            if not producer.batches:
                del self._producers[producer_id]

    def expire(self, before: int) -> None:
        """Forget every producer that has not written since `before`."""
        for producer_id in [
            i for i, producer in self._producers.items() if producer.last_seen < before
        ]:
            del self._producers[producer_id]

    def replay(self, batch: BatchHeader, now: int) -> None:
        """Note a batch found in the log, as `append` did when it was appended, unless the snapshot held it already."""
        if batch.has_producer and not self._is_recorded(batch):
            self.append(
                batch,
                batch.base_offset,
                batch.max_timestamp if batch.attributes & 0x08 else -1,
                batch.base_offset,
                now,
            )

    def _is_recorded(self, batch: BatchHeader) -> bool:
        """Whether the batch, or a later one of its producer, is known. Older ones than the remembered ones are no news."""
        producer = self._producers.get(batch.producer_id)
        return producer is not None and batch.base_offset <= producer.batches[-1].last_offset

    def snapshot(self, durable_end: int, replay_from: int | None = None) -> bytes:
        """All that is durable, to be put beside the log; `load` reads it. The log must be replayed from `replay_from` on, by default `durable_end`."""
        rows = [
            (producer_id, producer.last_seen, durable[-BATCHES_TO_RETAIN:])
            for producer_id, producer in self._producers.items()
            if (
                durable := [
                    metadata for metadata in producer.batches if metadata.last_offset < durable_end
                ]
            )
        ]
        return _ENCODER.encode((durable_end if replay_from is None else replay_from, rows))

    def load(self, snapshot: bytes) -> int:
        """Take over a snapshot; the offset from which the log must be replayed. Raises msgspec.DecodeError."""
        replay_from, rows = _DECODER.decode(snapshot)
        for producer_id, last_seen, batches in rows[-self._limit :]:
            self._producers[producer_id] = ProducerStateEntry(batches, last_seen)
        return replay_from


def _predecessor_of(metadata: BatchMetadata) -> BatchMetadata:
    """As if the batch before this one were known, though not where it went: it is no batch's twin."""
    return BatchMetadata(metadata.epoch, -1, (metadata.first_sequence - 1) & 0x7FFFFFFF, -1, -1)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, int, list[BatchMetadata]]]])
