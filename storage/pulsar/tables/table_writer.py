"""Writes puts of one state table to Pulsar, in bursts.

One burst is in flight at a time. It is one batch and so one entry, which is stored atomically.

The reactor's thread passes rows to the client library, without blocking. A separate thread takes
twice as long beside a busy reactor, because the library releases and reacquires the interpreter
lock for each row. Only the flush, which waits for the acknowledgement, runs in a thread.
(`flush_async` would not need one, but it holds the interpreter lock while it waits for locks of the
library.)

The library sends a batch when it is full, after a delay, or when it is flushed. The limits of the
first two are set out of reach, so that a put is never split. A flush also succeeds if the library
dropped the batch before sending it, or did not accept all rows. Each row therefore gets a sequence
id, and the id published last is compared with that of the last row.

The library's own limit of pending messages must be disabled. It does not return what a batch took
from this limit if the broker rejects the batch as too large; later batches would be stored without
their last rows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import _pulsar
import pulsar
from twisted.internet.defer import Deferred, TimeoutError, maybeDeferred, succeed

from storage.bridge import Reactor
from storage.log import EntryTooLarge, Fenced, LogClosed, StorageError, StorageFailed
from storage.pulsar.client.exclusive_producer import close_producer
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.client.reconnection import GIVE_UP_SECONDS, Reconnection
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import max_batch_bytes, message_key, payload

UNLIMITED_BYTES = 1 << 40
UNLIMITED_MESSAGES = (1 << 31) - 1
UNLIMITED_MILLISECONDS = 100_000_000_000
"""Three years."""

Failure = Callable[[], Exception]
log = logging.getLogger(__name__)


def queue_full(
    settings: PulsarSettings, puts: int, waiting_bytes: int, size: int
) -> Failure | None:
    """Why a put of `size` bytes cannot wait beside those that wait already, None if it can."""
    if puts < settings.queue_operations and waiting_bytes + size <= settings.table_queue_bytes:
        return None
    return lambda: StorageFailed(
        f"{puts} puts ({waiting_bytes} bytes) are waiting for Pulsar: retry later"
    )


class PendingPut:
    """Rows that are stored together; `result` fires when they are durable."""

    __slots__ = ("result", "rows", "size")

    def __init__(self, rows: Mapping[str, bytes], size: int) -> None:
        self.rows = rows
        self.size = size
        self.result: Deferred[None] = Deferred()


class TableWriter:
    """`on_stored` is called with the size in bytes of each stored burst.

    `on_fenced` is called once, with the reason, if another process has taken the table, or if the
    producer has been disconnected for GIVE_UP_SECONDS while puts failed. The owner must open the
    table again.
    """

    def __init__(
        self,
        client: PulsarClient,
        settings: PulsarSettings,
        reactor: Reactor,
        topic: str,
        on_stored: Callable[[int], None],
        on_fenced: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._reactor = reactor
        self._topic = topic
        self._on_stored = on_stored
        self._on_fenced = on_fenced
        self._producer: Any = None
        self._last_assigned_id = 0
        """Sequence id of the last row passed to the library."""
        self._waiting: deque[PendingPut] = deque()
        self._waiting_bytes = 0
        self._burst: list[PendingPut] = []
        self._end_error: Failure | None = None
        self._idle: Deferred[None] | None = None
        self._failing_since: float | None = None
        self._reconnection = Reconnection(reactor.seconds)
        """Asked after each failed put."""

    async def open(self) -> None:
        """Create the exclusive producer, fencing its predecessor.

        Raises StorageFailed, UnknownTopic.
        """
        producer = await self._client.run(
            lambda: self._client.producer(
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

    def put(self, rows: Mapping[bytes, bytes | None]) -> Deferred[None]:
        """`StateTable.put`."""
        size = max_batch_bytes(rows)
        if size > self._settings.table_burst_bytes:
            return failed(
                lambda: EntryTooLarge(
                    f"{len(rows)} rows take {size} bytes, more than the limit of "
                    f"{self._settings.table_burst_bytes} (table_burst_bytes)"
                )
            )
        return self.send({message_key(key): payload(value) for key, value in rows.items()}, size)

    def send(self, messages: Mapping[str, bytes], size: int) -> Deferred[None]:
        """Queue messages, by key, to be stored together after all earlier ones."""
        if self._end_error:
            return failed(self._end_error)
        if not messages:
            return succeed(None)
        full = queue_full(self._settings, len(self._waiting), self._waiting_bytes, size)
        if full is not None:
            return failed(full)
        put = PendingPut(messages, size)
        self._waiting.append(put)
        self._waiting_bytes += size
        if not self._burst:
            self._send_burst()
        return put.result

    async def close(self) -> None:
        """Write queued rows, for up to `close_timeout_seconds`, and close the producer.

        Later puts fail with LogClosed.
        """
        self._end_error = lambda: LogClosed("the store is closed")
        if self._burst:
            self._idle = Deferred()
            try:
                # `Reactor` is only the part of IReactorTime that stores use.
                seconds = self._settings.close_timeout_seconds
                await self._idle.addTimeout(seconds, self._reactor)  # type: ignore[arg-type]
            except TimeoutError:
                log.warning(
                    "table closed before the last rows were acknowledged, outcome unknown topic=%s",
                    self._topic,
                )
                self._fail_all(
                    lambda: StorageFailed(
                        "the store was closed before Pulsar answered; the outcome is unknown"
                    )
                )
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await self._client.run(producer.close)
            except StorageError as error:
                log.warning(
                    "closing the table's producer failed topic=%s error=%s", self._topic, error
                )

    def _send_burst(self) -> None:
        """Send as many complete puts as fit into a burst.

        If several puts set the same row, only the last value is sent: the burst is atomic.
        """
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
        producer = self._producer
        if producer is None:
            self._fail_all(lambda: LogClosed("the table is closed"))
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

        maybeDeferred(self._client.run_flush, flush).addCallbacks(
            lambda _: self._burst_stored(size), self._burst_failed
        )

    def _check_published(self, before: int, last: int) -> None:
        """Check that the id published last is that of the burst's last row.

        Raises StorageFailed.
        """
        if last == before:
            raise StorageFailed(
                "the client library dropped the rows before sending them: "
                "check whether a backlog quota is exceeded"
            )
        if last != self._last_assigned_id:
            expected_id, self._last_assigned_id = self._last_assigned_id, last
            raise StorageFailed(
                f"the client library did not send exactly the given rows: "
                f"last sequence id {last}, expected {expected_id}"
            )

    def _burst_stored(self, size: int) -> None:
        self._on_stored(size)
        self._reconnection.connected()
        if self._failing_since is not None:
            self._failing_since = None
            log.warning("table writes succeed again topic=%s", self._topic)
        self._finish_burst(None)

    def _burst_failed(self, failure: Any) -> None:
        if not isinstance(failure.value, (pulsar.PulsarException, StorageError)):
            log.error(
                "bug: writing to %s failed",
                self._topic,
                exc_info=(failure.type, failure.value, failure.getTracebackObject()),
            )
        error = to_storage_error(failure.value)
        if isinstance(error, Fenced) or isinstance(failure.value, pulsar.AlreadyClosed):
            # This process has not closed the producer, and the library closes it for good only if
            # another producer has taken the topic.
            # The library has closed the producer.
            self._end(
                f"{self._topic}: another process has taken over this table; "
                "the outcome of the last writes is unknown"
            )
            return
        outcome = (
            "nothing was stored"
            if isinstance(error, EntryTooLarge)
            else "whether anything was stored is unknown"
        )
        reason = f"writing to the table {self._topic} failed: {error}; {outcome}"
        if self._failing_since is None:
            self._failing_since = self._reactor.seconds()
            log.error("%s", reason)
        producer = self._producer
        if producer is not None and self._reconnection.has_given_up(producer):
            close_producer(self._client, producer)
            self._end(
                f"{self._topic}: the producer was disconnected for {GIVE_UP_SECONDS:.0f} s; "
                "the outcome of the last writes is unknown"
            )
            return
        self._finish_burst(lambda: type(error)(reason))

    def _end(self, reason: str) -> None:
        """Give up the table: all puts fail from now on."""
        log.error("%s", reason)
        self._producer = None
        # The owner knows before callers of `put` do.
        self._on_fenced(reason)
        self._fail_all(lambda: Fenced(reason))

    def _finish_burst(self, failure: Failure | None) -> None:
        """Complete the puts of the burst, then send the next one.

        Puts that callers add on completion join the next burst.
        """
        for put in self._burst:
            finish(put, failure)
        self._burst = []
        if self._waiting:
            self._send_burst()
        elif self._idle:
            idle, self._idle = self._idle, None
            idle.callback(None)

    def _fail_all(self, failure: Failure) -> None:
        """Fail all puts, including later ones."""
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
    """Add messages to the producer's batch.

    All are built before the first is added, so that a bug in between leaves nothing for the next
    batch. Bypassing the library's Python wrapper halves the cost of a row (5 instead of 10 us).
    """
    make, send = _pulsar.MessageBuilder, producer._producer.send_async
    built = [make().content(data).partition_key(key).build() for key, data in messages.items()]
    for message in built:
        send(message, None)


def finish(put: PendingPut, failure: Failure | None) -> None:
    """Complete one put.

    Each put gets a new exception, because an exception that is raised repeatedly grows its
    traceback.
    """
    if failure is None:
        put.result.callback(None)
    else:
        put.result.errback(failure())


def failed(failure: Failure) -> Deferred[None]:
    result: Deferred[None] = Deferred()
    result.errback(failure())
    return result
