"""Sends appends of a native log: unpacks batches in a thread and sends each as one entry."""

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
    InFlightLimit,
    close_producer,
    error_for_result,
)
from storage.pulsar.client.library_threads import keep_thread_state
from storage.pulsar.client.partition_producers import IN_FLIGHT_OVERHEAD, result_name
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import MessageLocation, parse_message_id
from storage.pulsar.native.record_messages import MessageFields, message_from_record

log = logging.getLogger(__name__)

UNLIMITED = 1 << 30
"""Disables the library's own batch limits: size in bytes, messages, and delay in milliseconds.

A batch is flushed when all of its records are in it.
"""


FIRST_POSITION = Position(0, 0)


class UnreadableBatch(StorageError):
    """The records in the payload cannot be unpacked. Nothing was stored; a retry fails again."""


class PendingAppend:
    """One batch in flight; `location` is set when it is acknowledged."""

    __slots__ = ("is_released", "location", "payload", "records", "result")

    def __init__(self, payload: Buffer, records: int) -> None:
        self.payload = payload
        self.records = records
        self.result: Deferred[int] = Deferred()
        self.location: MessageLocation | None = None
        self.is_released = False

    @property
    def cost(self) -> int:
        return len(self.payload) + self.records * IN_FLIGHT_OVERHEAD


def build_message(fields: MessageFields) -> Any:
    """Build a message of the client library.

    Its Python wrapper accepts only text as ordering key; Kafka's keys are bytes.
    """
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


async def open_producer(client: PulsarClient, topic: str) -> Any:
    """A shared producer, which does not fence others.

    Compression lets a batch that a Kafka producer compressed well still fit into one message.
    """
    return await client.run(
        lambda: client.producer(
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
    """Sends to one partition.

    `on_stored` receives each acknowledged batch, in order. `on_end` is called once, with the
    reason, when the sender ends.
    """

    def __init__(
        self,
        client: PulsarClient,
        producer: Any,
        batch_format: BatchFormat,
        in_flight_limit: InFlightLimit,
        on_stored: Callable[[PendingAppend], None],
        on_end: Callable[[StorageError], object],
    ) -> None:
        self._client = client
        self._producer = producer
        self._format = batch_format
        self._in_flight_limit = in_flight_limit
        self._on_stored = on_stored
        self._on_end = on_end
        self._queue: deque[PendingAppend] = deque()
        self._in_flight: deque[PendingAppend] = deque()
        self._records = 0
        self._is_sending = False
        self.has_ended = False

    def send(self, pending: PendingAppend) -> None:
        """Queue a batch. Raises EntryTooLarge, and StorageFailed if too much is in flight."""
        limit = self._client.settings.queue_operations
        if pending.records > limit:
            raise EntryTooLarge(
                f"the batch has {pending.records} records, more than the {limit} that may be in "
                "flight (queue_operations)"
            )
        if self._records + pending.records > limit:
            raise StorageFailed(
                f"{self._records} records are in flight to Pulsar (queue_operations={limit}): "
                "retry later"
            )
        self._in_flight_limit.reserve(pending.cost)
        self._records += pending.records
        self._in_flight.append(pending)
        self._queue.append(pending)
        if not self._is_sending:
            self._start_sending()

    def _start_sending(self) -> None:
        self._is_sending = True
        self._client.run(self._send_queued).addErrback(
            lambda failure: self.end(Fenced(f"sending a batch failed: {failure.value}"))
        )

    def _send_queued(self) -> None:
        """Send the queued batches in order. Runs in a thread, one at a time."""
        while True:
            try:
                pending = self._queue.popleft()
            except IndexError:
                break
            self._send_batch(pending)
        self._client.reactor_calls.post(self._sending_finished)

    def _sending_finished(self) -> None:
        self._is_sending = False
        if self._queue:
            self._start_sending()

    def _send_batch(self, pending: PendingAppend) -> None:
        try:
            batch = self._format.unpack(pending.payload)
        except ValueError as error:
            self._client.reactor_calls.post(
                partial(
                    self._finish,
                    pending,
                    UnreadableBatch(f"the batch cannot be unpacked: {error}"),
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
            send(messages[-1], partial(self._acknowledged, pending, len(messages)))
            self._producer._producer.flush_async(_ignore)
        except pulsar.PulsarException as error:
            self._client.reactor_calls.post(
                partial(self._finish, pending, error_for_result(type(error).__name__))
            )

    def _acknowledged(
        self, pending: PendingAppend, records: int, result: Any, message_id: Any
    ) -> None:
        """The library's callback for the last record, called in its thread. Must not raise."""
        keep_thread_state()
        failure: StorageError | None = None
        try:
            if result == pulsar.Result.MessageTooBig:
                failure = EntryTooLarge(
                    f"a batch of {len(pending.payload)} bytes exceeds, once unpacked, "
                    "the broker's largest message"
                )
            elif result != pulsar.Result.Ok:
                failure = error_for_result(result_name(result.value))
            else:
                pending.location = parse_message_id(message_id.serialize())
                if pending.location.position < FIRST_POSITION:
                    # Pulsar's deduplication dropped a batch that the library had resent; the
                    # acknowledgement does not say where the first copy is.
                    failure = Fenced("a batch is stored, but Pulsar did not return its position")
                elif pending.location.messages != records:
                    failure = Fenced("pulsar-client split a batch into several entries")
        except Exception as error:  # noqa: BLE001 - reported to the caller
            failure = Fenced(f"invalid acknowledgement: {error}")
        self._client.reactor_calls.post(partial(self._finish, pending, failure))

    def _finish(self, pending: PendingAppend, failure: StorageError | None) -> None:
        self._release(pending)
        if self.has_ended:
            return
        if failure is None and self._in_flight[0] is not pending:
            failure = Fenced("Pulsar acknowledged batches out of order")
        if isinstance(failure, Fenced | LogClosed):
            self.end(failure)
            return
        self._in_flight.remove(pending)
        if failure is None:
            self._on_stored(pending)
        else:
            pending.result.errback(failure)

    def _release(self, pending: PendingAppend) -> None:
        if not pending.is_released:
            pending.is_released = True
            self._in_flight_limit.release(pending.cost)
            self._records -= pending.records

    def end(self, error: StorageError) -> Deferred[None]:
        """Stop sending.

        The outcome of batches in flight is unknown. Fires when the producer is closed.
        """
        if self.has_ended:
            return succeed(None)
        self.has_ended = True
        self._queue.clear()
        left = list(self._in_flight)
        self._in_flight.clear()

        def release_all(_: Any) -> None:
            for pending in left:
                self._release(pending)

        closed = close_producer(self._client, self._producer).addBoth(release_all)
        self._on_end(error)
        for pending in left:
            pending.result.errback(error)
        return closed


def _ignore(*_: object) -> None:
    """Only the callback of a batch's last record matters."""
