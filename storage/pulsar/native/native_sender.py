"""The producer's side of a native log: batches taken apart in a thread, one after the other, each sent as one entry of Pulsar's."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import _pulsar
import pulsar
from twisted.internet.defer import Deferred, succeed

from storage.log import Buffer, EntryTooLarge, Fenced, LogClosed, StorageError, StorageFailed
from storage.plain_records import BatchFormat
from storage.pulsar.client.exclusive_producer import (
    IN_FLIGHT_OVERHEAD,
    InFlightLimit,
    error_for_result,
)
from storage.pulsar.client.library_threads import keep_thread_state
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import MessageLocation, parse_message_id
from storage.pulsar.native.record_messages import MessageFields, message_from_record

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30
"""Bytes, messages and milliseconds within which the library must not end a batch by itself: each is ended when all of its records are in it."""


FIRST_POSITION = Position(0, 0)


class UnreadableBatch(StorageError):
    """The payload holds no records that could be taken apart. It was not stored, and never will be."""


class PendingAppend:
    """One batch on its way: who waits for it, and where it came to lie."""

    __slots__ = ("is_settled", "payload", "place", "records", "told")

    def __init__(self, payload: Buffer, records: int) -> None:
        self.payload = payload
        self.records = records
        self.told: Deferred[int] = Deferred()
        self.place: MessageLocation | None = None
        self.is_settled = False

    @property
    def cost(self) -> int:
        return len(self.payload) + self.records * IN_FLIGHT_OVERHEAD


def build_message(fields: MessageFields) -> Any:
    """The library's message. Its wrapper takes an ordering key as text only, and Kafka's keys are bytes."""
    builder = _pulsar.MessageBuilder()
    if fields.content is None:
        builder.set_null_value()
    else:
        builder.content(fields.content)
    if fields.partition_key:
        builder.partition_key(fields.partition_key)
    if fields.ordering_key:
        builder.ordering_key(fields.ordering_key)
    for name, value in (fields.properties or {}).items():
        builder.property(name, value)
    if fields.event_time:
        builder.event_timestamp(fields.event_time)
    return builder.build()


async def open_producer(session: PulsarClient, topic: str) -> Any:
    """One that lets others write, too. What it sends is compressed, so that what Kafka's producers packed well still fits into one message."""
    return await session.run(
        lambda: session.producer(
            topic,
            pulsar.ProducerAccessMode.Shared,
            batching=True,
            batch_messages=UNLIMITED,
            batch_bytes=UNLIMITED,
            batch_delay_ms=UNLIMITED,
            compression=pulsar.CompressionType.LZ4,
        )
    )


class NativeSender:
    """Sends to one partition. `on_stored` is told of each batch that was acknowledged, in their order, and `on_end` once why it is over."""

    def __init__(
        self,
        session: PulsarClient,
        producer: Any,
        batch_format: BatchFormat,
        room: InFlightLimit,
        on_stored: Callable[[PendingAppend], None],
        on_end: Callable[[StorageError], object],
    ) -> None:
        self._session = session
        self._producer = producer
        self._format = batch_format
        self._room = room
        self._on_stored = on_stored
        self._on_end = on_end
        self._queue: deque[PendingAppend] = deque()
        self._in_flight: deque[PendingAppend] = deque()
        self._records = 0
        self._is_at_work = False
        self.is_over = False

    def send(self, appending: PendingAppend) -> None:
        """Behind all that was sent before. Raises EntryTooLarge, and StorageFailed where too much is in flight."""
        limit = self._session.settings.queue_operations
        if appending.records > limit:
            raise EntryTooLarge(
                f"{appending.records} records in one batch, and at most {limit} may be in flight (queue_operations)"
            )
        if self._records + appending.records > limit:
            raise StorageFailed(
                f"{self._records} records wait for Pulsar already (queue_operations={limit}): try again later"
            )
        self._room.take(appending.cost)
        self._records += appending.records
        self._in_flight.append(appending)
        self._queue.append(appending)
        if not self._is_at_work:
            self._is_at_work = True
            self._session.run(self._work).addErrback(
                lambda failure: self.end(Fenced(f"a batch was not sent: {failure.value}"))
            )

    def _work(self) -> None:
        """In a thread, and in one at a time: what is queued is sent in its order."""
        while True:
            try:
                appending = self._queue.popleft()
            except IndexError:
                break
            self._hand_over(appending)
        self._session.wake.post(self._worked)

    def _worked(self) -> None:
        self._is_at_work = bool(self._queue)
        if self._is_at_work:
            self._session.run(self._work).addErrback(
                lambda failure: self.end(Fenced(f"a batch was not sent: {failure.value}"))
            )

    def _hand_over(self, appending: PendingAppend) -> None:
        try:
            batch = self._format.unpack(appending.payload)
        except ValueError as error:
            self._session.wake.post(
                partial(
                    self._answered,
                    appending,
                    UnreadableBatch(f"the batch cannot be taken apart: {error}"),
                )
            )
            return
        messages = [
            build_message(message_from_record(record, None if number else batch.sequence))
            for number, record in enumerate(batch.records)
        ]
        send = self._producer._producer.send_async
        try:
            for message in messages[:-1]:
                send(message, _ignore)
            send(messages[-1], partial(self._acknowledged, appending, len(messages)))
            self._producer._producer.flush_async(_ignore)
        except pulsar.PulsarException as error:
            self._session.wake.post(
                partial(self._answered, appending, error_for_result(type(error).__name__))
            )

    def _acknowledged(
        self, appending: PendingAppend, records: int, result: Any, message_id: Any
    ) -> None:
        """The library's callback for the last record, in its thread. Nothing may be raised here."""
        keep_thread_state()
        failure: StorageError | None = None
        try:
            if result == pulsar.Result.MessageTooBig:
                failure = EntryTooLarge(
                    f"{len(appending.payload)} bytes of records, taken apart, are more than a broker takes in one message"
                )
            elif result != pulsar.Result.Ok:
                failure = error_for_result(result.name)
            else:
                appending.place = parse_message_id(message_id.serialize())
                if appending.place.position < FIRST_POSITION:
                    # Pulsar's deduplication knew it again when the library sent it a second time, and does not say where the first lies.
                    failure = Fenced("a batch is stored, and Pulsar does not say where")
                elif appending.place.messages != records:
                    failure = Fenced("pulsar-client has sent a batch in several pieces")
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            failure = Fenced(f"an acknowledgement could not be understood: {error}")
        self._session.wake.post(partial(self._answered, appending, failure))

    def _answered(self, appending: PendingAppend, failure: StorageError | None) -> None:
        self._settle(appending)
        if self.is_over:
            return
        if failure is None and self._in_flight[0] is not appending:
            failure = Fenced("Pulsar acknowledged batches out of their order")
        if isinstance(failure, Fenced | LogClosed):
            self.end(failure)
            return
        self._in_flight.remove(appending)
        if failure is None:
            self._on_stored(appending)
        else:
            appending.told.errback(failure)

    def _settle(self, appending: PendingAppend) -> None:
        if not appending.is_settled:
            appending.is_settled = True
            self._room.give(appending.cost)
            self._records -= appending.records

    def end(self, error: StorageError) -> Deferred[None]:
        """Nothing is sent any more, and what became of what is in flight is unknown. Fires when the producer is gone."""
        if self.is_over:
            return succeed(None)
        self.is_over = True
        self._queue.clear()
        left = list(self._in_flight)
        self._in_flight.clear()

        def close() -> None:
            try:
                self._producer.close()
            except pulsar.PulsarException as failure:
                log.debug("closing a producer: %s", type(failure).__name__)

        def settle(_: Any) -> None:
            for appending in left:
                self._settle(appending)

        try:
            closed = self._session.run(close)
        except LogClosed:
            closed = succeed(None)
        closed.addBoth(settle)
        self._on_end(error)
        for appending in left:
            appending.told.errback(error)
        return closed


def _ignore(*_: object) -> None:
    """Of a batch the last record's answer is everybody's."""
