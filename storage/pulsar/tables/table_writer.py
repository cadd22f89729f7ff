"""Puts of one state table on their way into Pulsar: gathered into bursts, one burst at a time, each one batch and so one entry, which is stored or not.

Rows are handed to the library by the reactor's thread, which never waits for that. A thread of its own takes twice as long beside a busy reactor, since
the library lets go of the interpreter with each row and has to get it back. Only the flush, which waits for the acknowledgement, is a thread's.
(`flush_async` would need none, but it keeps the interpreter while it waits for locks of the library.)

The library sends a batch when it is full, after a time, or when it is flushed. The first two are out of reach here, so that only the flush sends: a put
is never split. A flush succeeds, too, where the library has thrown the batch away before it was sent, or did not take all of its rows: each row gets a
sequence id, so that of what was published last tells whether it was the last row.

The library must have no limit of its own of what is on its way. It never gives back what a batch took of that limit that the broker finds too large;
then there is no room for the last rows of a batch some day, and the others are stored without them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import _pulsar
import pulsar
from twisted.internet.defer import Deferred, TimeoutError, succeed

from storage.bridge import Reactor, WorkerPool
from storage.log import EntryTooLarge, Fenced, LogClosed, StorageError, StorageFailed
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import max_batch_bytes, message_key, payload

UNLIMITED_BYTES = 1 << 40
UNLIMITED_MESSAGES = (1 << 31) - 1
UNLIMITED_MILLISECONDS = 100_000_000_000
"""Three years."""

Failure = Callable[[], Exception]
log = logging.getLogger(__name__)


class PendingPut:
    """Messages that are stored together; `result` fires when they are durable."""

    __slots__ = ("result", "rows", "size")

    def __init__(self, rows: Mapping[str, bytes], size: int) -> None:
        self.rows = rows
        self.size = size
        self.result: Deferred[None] = Deferred()


class TableWriter:
    """`on_stored` is called with the bytes of each burst that was stored."""

    def __init__(
        self,
        session: PulsarClient,
        settings: PulsarSettings,
        reactor: Reactor,
        topic: str,
        on_stored: Callable[[int], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._reactor = reactor
        self._topic = topic
        self._on_stored = on_stored
        self._producer: Any = None
        self._last_assigned_id = 0
        """The sequence id of the last row that the library was given."""
        self._thread: WorkerPool | None = None
        self._waiting: deque[PendingPut] = deque()
        self._waiting_bytes = 0
        self._burst: list[PendingPut] = []
        self._end_error: Failure | None = None
        self._idle: Deferred[None] | None = None
        self._is_failing = False

    async def open(self) -> None:
        """Take the right to write: whoever had it is fenced. Raises StorageFailed, UnknownTopic."""
        producer = await self._session.run(
            lambda: self._session.producer(
                self._topic,
                pulsar.ProducerAccessMode.ExclusiveWithFencing,
                batching=True,
                pending_messages=0,
                batch_messages=UNLIMITED_MESSAGES,
                batch_bytes=UNLIMITED_BYTES,
                batch_delay_ms=UNLIMITED_MILLISECONDS,
            )
        )
        self._producer = producer
        self._last_assigned_id = producer.last_sequence_id()
        self._thread = WorkerPool(self._session.reactor_calls, 1, 1, "pulsar-table")

    def put(self, rows: Mapping[bytes, bytes | None]) -> Deferred[None]:
        """As `StateTable.put`."""
        size = max_batch_bytes(rows)
        if size > self._settings.table_burst_bytes:
            return failed(
                lambda: EntryTooLarge(
                    f"{len(rows)} rows take {size} bytes, and {self._settings.table_burst_bytes} are stored in one step (table_burst_bytes)"
                )
            )
        return self.send({message_key(key): payload(value) for key, value in rows.items()}, size)

    def send(self, messages: Mapping[str, bytes], size: int) -> Deferred[None]:
        """Queue these messages by their keys, to be stored together, after all that was queued before."""
        if self._end_error:
            return failed(self._end_error)
        if not messages:
            return succeed(None)
        if (
            len(self._waiting) >= self._settings.queue_operations
            or self._waiting_bytes + size > self._settings.table_queue_bytes
        ):
            return failed(
                lambda: StorageFailed(
                    f"{len(self._waiting)} puts ({self._waiting_bytes} bytes) wait for Pulsar already: try again later"
                )
            )
        put = PendingPut(messages, size)
        self._waiting.append(put)
        self._waiting_bytes += size
        if not self._burst:
            self._send_burst()
        return put.result

    async def close(self) -> None:
        """Write what is queued, for `close_timeout_seconds` at the most, and let the topic go. Later puts fail with LogClosed."""
        self._end_error = lambda: LogClosed("the store is closed")
        if self._burst:
            self._idle = Deferred()
            try:
                await self._idle.addTimeout(self._settings.close_timeout_seconds, self._reactor)  # type: ignore[arg-type]
            except TimeoutError:
                log.warning(
                    "%s: Pulsar did not acknowledge what was written last; whether it is stored is unknown",
                    self._topic,
                )
                self._fail_all(
                    lambda: StorageFailed(
                        "the store was closed before Pulsar answered; whether it is stored is unknown"
                    )
                )
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(lambda: None)
            try:
                await self._session.run(self._producer.close)
            except StorageError as error:
                log.warning("%s: %s", self._topic, error)

    def _send_burst(self) -> None:
        """Send the next burst: as many whole puts as fit. Of rows that several of them set, the last is sent alone: they are one step anyway."""
        size = 0
        messages: dict[str, bytes] = {}
        while self._waiting and (
            not size or size + self._waiting[0].size <= self._settings.table_burst_bytes
        ):
            put = self._waiting.popleft()
            size += put.size
            messages.update(put.rows)
            self._burst.append(put)
        self._waiting_bytes -= size
        producer, thread = self._producer, self._thread
        if thread is None:
            self._fail_all(lambda: LogClosed("the table is not open"))
            return
        is_small = len(messages) <= self._settings.table_rows_at_once
        before = producer.last_sequence_id()
        self._last_assigned_id += len(messages)
        if is_small:
            send_batch(producer, messages)

        def flush() -> None:
            if not is_small:
                send_batch(producer, messages)
            producer.flush()
            self._check_published(before, producer.last_sequence_id())

        thread.run(flush).addCallbacks(lambda _: self._burst_stored(size), self._burst_failed)

    def _check_published(self, before: int, last: int) -> None:
        """That with a burst `last` has become the sequence id of its last row. Raises StorageFailed."""
        if last == before:
            raise StorageFailed(
                "the client library gave the rows up before it sent them; is a backlog quota exceeded?"
            )
        if last != self._last_assigned_id:
            expected_id, self._last_assigned_id = self._last_assigned_id, last
            raise StorageFailed(
                f"the client library sent other rows than it was given: its last number is {last}, not {expected_id}"
            )

    def _burst_stored(self, size: int) -> None:
        self._on_stored(size)
        if self._is_failing:
            self._is_failing = False
            log.warning("%s takes rows again", self._topic)
        self._finish_burst(None)

    def _burst_failed(self, failure: Any) -> None:
        if not isinstance(failure.value, (pulsar.PulsarException, StorageError)):
            log.error(
                "writing to %s failed, which is a bug",
                self._topic,
                exc_info=(failure.type, failure.value, failure.getTracebackObject()),
            )
        error = to_storage_error(failure.value)
        if isinstance(error, Fenced) or isinstance(failure.value, pulsar.AlreadyClosed):
            # Nobody here has closed it, and the library closes one for good only if another producer has the topic.
            fenced = f"{self._topic}: another process writes this table now; whether the rows are stored is unknown"
            log.error("%s", fenced)
            self._fail_all(lambda: Fenced(fenced))
            return
        is_known = isinstance(error, EntryTooLarge)
        reason = f"{self._topic}: {error}; {'nothing of it' if is_known else 'whether it'} is stored{'' if is_known else ', is unknown'}"
        if not self._is_failing:
            self._is_failing = True
            log.error("%s", reason)
        self._finish_burst(lambda: type(error)(reason))

    def _finish_burst(self, failure: Failure | None) -> None:
        """Tell those of the burst; what they put now is in the next one, with what has come meanwhile."""
        for put in self._burst:
            finish(put, failure)
        self._burst = []
        if self._waiting:
            self._send_burst()
        elif self._idle:
            idle, self._idle = self._idle, None
            idle.callback(None)

    def _fail_all(self, failure: Failure) -> None:
        """All puts fail, now and for ever."""
        if not self._idle:
            self._end_error = failure
        puts = [*self._burst, *self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        self._burst = []
        for put in puts:
            finish(put, failure)
        if self._idle:
            idle, self._idle = self._idle, None
            idle.callback(None)


def send_batch(producer: Any, messages: Mapping[str, bytes]) -> None:
    """Put these messages into the producer's batch. All are made before the first is in it: a bug in between must leave nothing for the next batch.

    The wrapper of the library around these two calls doubles what a row costs (10 us instead of 5).
    """
    make, send = _pulsar.MessageBuilder, producer._producer.send_async
    built = [make().content(data).partition_key(key).build() for key, data in messages.items()]
    for message in built:
        send(message, None)


def finish(put: PendingPut, failure: Failure | None) -> None:
    """Each gets an exception of its own: one that many raise again grows a traceback through all of them."""
    if failure is None:
        put.result.callback(None)
    else:
        put.result.errback(failure())


def failed(failure: Failure) -> Deferred[None]:
    result: Deferred[None] = Deferred()
    result.errback(failure())
    return result
