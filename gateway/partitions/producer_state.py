"""State of idempotent producers: detects duplicate batches and sequence gaps.

Follows Kafka's ProducerStateManager and ProducerAppendInfo. Batches are added when they are queued,
before they are durable; `remove_failed` removes one that fails. There is no I/O and no clock: times
are arguments, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire import compiled
from gateway.protocol.wire.compiled import ProducersState
from records import BatchHeader

#: Batches remembered per producer: the maximum in flight with idempotence enabled (KIP-98).
BATCHES_TO_RETAIN = 5

#: Greatest sequence; the next one is 0.
MAX_SEQUENCE = 0x7FFFFFFF


class BatchMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One batch of a producer: epoch, sequence range, offset range, log append time (-1: none)."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    log_append_time: int = -1


@dataclass(slots=True)
class ProducerStateEntry:
    """A producer's remembered batches, oldest first.

    `last_seen` is the time of its last write by the gateway's clock; `topic_name` is the topic name
    that it uses, if known.
    """

    batches: list[BatchMetadata]
    last_seen: int
    topic_name: str = ""


#: The stored form.
StoredBatch = BatchMetadata

if not TYPE_CHECKING and compiled.batch_metadata:
    # The same two with C fields.
    BatchMetadata = compiled.batch_metadata
    ProducerStateEntry = compiled.producer_state_entry


class ProducerStateManager(ProducersState):
    """The producers of one partition.

    At most `limit` producers are kept; the least recently active is evicted first. Producers with
    in-flight batches are kept even over the limit: otherwise retries would be stored again.
    """

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._producers: dict[int, ProducerStateEntry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def __iter__(self) -> Iterator[tuple[int, ProducerStateEntry]]:
        return iter(self._producers.items())

    def check(self, batch: BatchHeader, topic_name: str = "") -> BatchMetadata | None:
        """Return None for the next batch in sequence, or the earlier batch if this is a retry.

        Unknown producers may start with any sequence, since their state may have expired or been
        deleted by retention. Raises KafkaError: INVALID_PRODUCER_EPOCH for an old epoch,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap, INVALID_REQUEST if the producer used another name of
        the topic before: clients treat each name as a separate topic with its own sequences, so an
        apparent retry would not be one.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if topic_name != producer.topic_name and topic_name and producer.topic_name:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "an idempotent producer must use one name per topic: "
                f"{topic_name} is the same topic as {producer.topic_name}",
            )
        last = producer.batches[-1]
        expected = (last.last_sequence + 1) & MAX_SEQUENCE
        if batch.base_sequence == expected and batch.producer_epoch == last.epoch:
            # The common case. No batch that is remembered begins there: they hold far fewer than
            # 2^31 records.
            return None
        if batch.producer_epoch < last.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer epoch {batch.producer_epoch} is older than {last.epoch}",
            )
        if batch.producer_epoch > last.epoch:
            if batch.base_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"the first sequence of a new epoch is {batch.base_sequence}, expected 0",
                )
            return None
        for metadata in producer.batches:
            if (
                metadata.epoch == batch.producer_epoch
                and metadata.first_sequence == batch.base_sequence
                and metadata.last_sequence == batch.last_sequence
            ):
                return metadata
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"sequence is {batch.base_sequence}, expected {expected}",
        )

    def append(
        self,
        batch: BatchHeader,
        base_offset: int,
        log_append_time: int,
        durable_end: int,
        now: int,
        topic_name: str = "",
    ) -> None:
        """Add a batch queued at `base_offset`.

        Batches before `durable_end` can no longer fail and may be dropped.
        """
        producer_id, first_sequence = batch.producer_id, batch.base_sequence
        delta = batch.last_offset_delta
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = ProducerStateEntry([], now)
            self._evict(durable_end)
        # Reinsert at the end: the dictionary is ordered by last use.
        producers[producer_id] = producer
        producer.last_seen = now
        if topic_name:
            producer.topic_name = topic_name
        batches = producer.batches
        batches.append(
            BatchMetadata(
                batch.producer_epoch,
                first_sequence,
                (first_sequence + delta) & MAX_SEQUENCE,
                base_offset,
                base_offset + delta,
                log_append_time,
            )
        )
        # Keep the batches that may still fail, so that `rewind` finds the last durable one.
        while len(batches) > BATCHES_TO_RETAIN and batches[1].last_offset < durable_end:
            del batches[0]

    def _evict(self, durable_end: int) -> None:
        """Make room for one more producer."""
        while len(self._producers) >= self._limit:
            # If the last batch of the least recently active producer is not durable, no producer's
            # is.
            longest_silent = next(iter(self._producers))
            if self._producers[longest_silent].batches[-1].last_offset >= durable_end:
                return
            del self._producers[longest_silent]

    def remove_failed(self, producer_id: int, base_offset: int) -> None:
        """Remove the batch at `base_offset`, which failed.

        If it was the producer's only batch, the producer must still resend it first. If the
        producer were removed, a later batch, sent before the failure was reported, would be
        accepted in its place.
        """
        producer = self._producers.get(producer_id)
        for number, metadata in enumerate(producer.batches if producer else ()):
            if producer is not None and metadata.base_offset == base_offset:
                producer.batches[number : number + 1] = (
                    [] if number else [_predecessor_of(metadata)]
                )
                return

    def rewind(self, end_offset: int) -> None:
        """Remove batches from `end_offset` on, whose outcome is unknown until the log is reopened.

        As with `remove_failed`, a producer without earlier batches must resend the first of them.
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
        """Record the final offset of the batch queued at `queued_offset`.

        A log that assigns offsets itself reports the offset only when the batch is durable. The
        batch is added again if its producer was evicted meanwhile.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None or all(
            metadata.base_offset != queued_offset for metadata in producer.batches
        ):
            self.append(batch, base_offset, log_append_time, base_offset, now)
            return
        last_offset = base_offset + batch.last_offset_delta
        producer.batches = [
            BatchMetadata(
                metadata.epoch,
                metadata.first_sequence,
                metadata.last_sequence,
                base_offset,
                last_offset,
                metadata.log_append_time,
            )
            if metadata.base_offset == queued_offset
            else metadata
            for metadata in producer.batches
        ]

    def truncate(self, end_offset: int) -> None:
        """Remove batches from `end_offset` on and producers that have no earlier ones."""
        for producer_id, producer in list(self._producers.items()):
            producer.batches = [
                metadata for metadata in producer.batches if metadata.last_offset < end_offset
            ]
            if not producer.batches:
                del self._producers[producer_id]

    def clear(self) -> None:
        """Remove all producers."""
        self._producers.clear()

    def expire(self, before: int) -> None:
        """Remove producers that have not written since `before`."""
        for producer_id in [
            i for i, producer in self._producers.items() if producer.last_seen < before
        ]:
            del self._producers[producer_id]

    def replay(self, batch: BatchHeader, now: int) -> None:
        """Add a batch found in the log unless it is already recorded."""
        if batch.has_producer and not self._is_recorded(batch):
            self.append(
                batch,
                batch.base_offset,
                batch.max_timestamp if batch.attributes & 0x08 else -1,
                batch.base_offset,
                now,
            )

    def _is_recorded(self, batch: BatchHeader) -> bool:
        """Whether this batch or a later one of its producer is recorded."""
        producer = self._producers.get(batch.producer_id)
        return producer is not None and batch.base_offset <= producer.batches[-1].last_offset

    def snapshot(self, durable_end: int, replay_from: int | None = None) -> bytes:
        """Serialize the durable state for `load`.

        Replay starts at `replay_from`, by default `durable_end`.
        """
        rows = [
            (producer_id, producer.last_seen, durable[-BATCHES_TO_RETAIN:])
            for producer_id, producer in self._producers.items()
            if (
                durable := [
                    _stored_form(metadata)
                    for metadata in producer.batches
                    if metadata.last_offset < durable_end
                ]
            )
        ]
        return _ENCODER.encode((durable_end if replay_from is None else replay_from, rows))

    def load(self, snapshot: bytes) -> int:
        """Load a snapshot and return the offset to replay the log from.

        Raises msgspec.DecodeError.
        """
        replay_from, rows = _DECODER.decode(snapshot)
        try:
            loaded = {
                producer_id: ProducerStateEntry(
                    [BatchMetadata(*structs.astuple(one)) for one in batches], last_seen
                )
                for producer_id, last_seen, batches in rows[-self._limit :]
            }
        except OverflowError as error:
            raise msgspec.DecodeError(f"a number has more than 64 bits: {error}") from error
        self._producers.update(loaded)
        return replay_from


def _stored_form(metadata: BatchMetadata) -> StoredBatch:
    return StoredBatch(
        metadata.epoch,
        metadata.first_sequence,
        metadata.last_sequence,
        metadata.base_offset,
        metadata.last_offset,
        metadata.log_append_time,
    )


def _predecessor_of(metadata: BatchMetadata) -> BatchMetadata:
    """Return a placeholder for the batch before this one; no batch is a duplicate of it."""
    return BatchMetadata(metadata.epoch, -1, (metadata.first_sequence - 1) & MAX_SEQUENCE, -1, -1)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, int, list[StoredBatch]]]])
