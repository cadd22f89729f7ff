"""Idempotent producers: what each one sent to a partition last, so that a retry is recognised and a gap refused.

Follows Kafka's ProducerStateManager and ProducerAppendInfo. Batches are noted when they are queued, before they are durable: one that
then fails is forgotten again by `forget`. No I/O, no clock: times are arguments, in milliseconds.
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
    """`sent` is oldest first; `last_seen` is when it last wrote, by the gateway's clock; `called` is the name of the topic that it uses, if known."""

    sent: list[BatchMetadata]
    last_seen: int
    called: str = ""


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

    def check(self, batch: BatchHeader, called: str = "") -> BatchMetadata | None:
        """None for a batch that is next in its producer's order, or what was noted of it before if it is a retry.

        Raises KafkaError: INVALID_PRODUCER_EPOCH for an epoch that is past, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. A producer that is not
        known may begin anywhere: its state may have expired, or retention may have deleted it. INVALID_REQUEST where it has called the topic by
        another name before: to a client that is another partition, with sequences of its own, and what looks like a retry is none.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if called != producer.called and called and producer.called:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"an idempotent producer must keep to one name of a topic: {called} is the same as {producer.called}",
            )
        last = producer.sent[-1]
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
        for sent in producer.sent:
            if (
                sent.epoch == batch.producer_epoch
                and sent.first_sequence == batch.base_sequence
                and sent.last_sequence == batch.last_sequence
            ):
                return sent
        expected = (last.last_sequence + 1) & 0x7FFFFFFF
        if batch.base_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {batch.base_sequence}, and {expected} is next",
            )
        return None

    def note(
        self,
        batch: BatchHeader,
        base_offset: int,
        log_append_time: int,
        durable_end: int,
        now: int,
        called: str = "",
    ) -> None:
        """Remember a batch that was just queued at `base_offset`. Batches before `durable_end` cannot fail any more and may be let go."""
        sent = BatchMetadata(
            batch.producer_epoch,
            batch.base_sequence,
            batch.last_sequence,
            base_offset,
            base_offset + batch.last_offset_delta,
            log_append_time,
        )
        producer = self._put(batch.producer_id, sent, now, durable_end)
        if called:
            producer.called = called

    def _put(
        self, producer_id: int, sent: BatchMetadata, now: int, durable_end: int
    ) -> ProducerStateEntry:
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            producer = ProducerStateEntry([], now)
            self._evict(durable_end)
        # Put back at the end: the order of the dictionary is the order of last use.
        self._producers[producer_id] = producer
        producer.last_seen = now
        producer.sent.append(sent)
        # Of those that may still fail none may be dropped, or a rewind could not find the last good one.
        while len(producer.sent) > BATCHES_TO_RETAIN and producer.sent[1].last_offset < durable_end:
            del producer.sent[0]
        return producer

    def _evict(self, durable_end: int) -> None:
        """Make room for one more producer."""
        while len(self._producers) >= self._limit:
            # If the last batch of the one silent longest is not durable, no other producer's is.
            longest_silent = next(iter(self._producers))
            if self._producers[longest_silent].sent[-1].last_offset >= durable_end:
                return
            del self._producers[longest_silent]

    def forget(self, producer_id: int, base_offset: int) -> None:
        """The batch noted at `base_offset` has failed.

        A producer of which nothing before it is known must still send it again first. If the producer were
        unknown, a later batch, sent before the failure was reported, would be accepted in its place.
        """
        producer = self._producers.get(producer_id)
        for number, sent in enumerate(producer.sent if producer else ()):
            if producer is not None and sent.base_offset == base_offset:
                producer.sent[number : number + 1] = [] if number else [_predecessor_of(sent)]
                return

    def rewind(self, end_offset: int) -> None:
        """The outcome of appends from `end_offset` on is unknown, and the log will tell: forget the batches that were in them.

        As `forget`, a producer of which nothing else is known must still begin with the first of them.
        """
        for producer in self._producers.values():
            if producer.sent[-1].last_offset >= end_offset:
                first = producer.sent[0]
                producer.sent = [
                    sent for sent in producer.sent if sent.last_offset < end_offset
                ] or [_predecessor_of(first)]

    def settle(
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
        if producer is None or all(sent.base_offset != queued_offset for sent in producer.sent):
            self.note(batch, base_offset, log_append_time, base_offset, now)
            return
        last_offset = base_offset + batch.last_offset_delta
        producer.sent = [
            structs.replace(sent, base_offset=base_offset, last_offset=last_offset)
            if sent.base_offset == queued_offset
            else sent
            for sent in producer.sent
        ]

    def truncate(self, end_offset: int) -> None:
        """The log ends at `end_offset`: forget what is said of it beyond that, and every producer of whom nothing else is known."""
        for producer_id, producer in list(self._producers.items()):
            producer.sent = [sent for sent in producer.sent if sent.last_offset < end_offset]
            if not producer.sent:
                del self._producers[producer_id]

    def expire(self, before: int) -> None:
        """Forget every producer that has not written since `before`."""
        for producer_id in [
            i for i, producer in self._producers.items() if producer.last_seen < before
        ]:
            del self._producers[producer_id]

    def replay(self, batch: BatchHeader, now: int) -> None:
        """Note a batch found in the log, as `note` did when it was appended, unless the snapshot held it already."""
        if batch.has_producer and not self._is_noted(batch):
            self.note(
                batch,
                batch.base_offset,
                batch.max_timestamp if batch.attributes & 0x08 else -1,
                batch.base_offset,
                now,
            )

    def _is_noted(self, batch: BatchHeader) -> bool:
        """Whether the batch, or a later one of its producer, is known. Older ones than the remembered ones are no news."""
        producer = self._producers.get(batch.producer_id)
        return producer is not None and batch.base_offset <= producer.sent[-1].last_offset

    def snapshot(self, durable_end: int, replay_from: int | None = None) -> bytes:
        """All that is durable, to be put beside the log; `load` reads it. The log must be replayed from `replay_from` on, by default `durable_end`."""
        rows = [
            (producer_id, producer.last_seen, durable[-BATCHES_TO_RETAIN:])
            for producer_id, producer in self._producers.items()
            if (durable := [sent for sent in producer.sent if sent.last_offset < durable_end])
        ]
        return _ENCODER.encode((durable_end if replay_from is None else replay_from, rows))

    def load(self, snapshot: bytes) -> int:
        """Take over a snapshot; the offset from which the log must be replayed. Raises msgspec.DecodeError."""
        replay_from, rows = _DECODER.decode(snapshot)
        for producer_id, last_seen, sent in rows[-self._limit :]:
            self._producers[producer_id] = ProducerStateEntry(sent, last_seen)
        return replay_from


def _predecessor_of(sent: BatchMetadata) -> BatchMetadata:
    """As if the batch before this one were known, though not where it went: it is no batch's twin."""
    return BatchMetadata(sent.epoch, -1, (sent.first_sequence - 1) & 0x7FFFFFFF, -1, -1)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, int, list[BatchMetadata]]]])
