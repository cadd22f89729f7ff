"""Appends to one partition: assigns offsets, waits until they are reserved, sends in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from storage.bridge import Completion
from storage.log import (
    Entry,
    EntryTooLarge,
    Fenced,
    LogStatus,
    StorageError,
    StorageFailed,
)
from storage.log_checks import check_append
from storage.pulsar.client.compiled_client import AppendState, compiled
from storage.pulsar.client.exclusive_producer import (
    ExclusiveProducer,
    InFlightLimit,
    InFlightMessage,
    LogEnd,
)
from storage.pulsar.client.partition_producers import PartitionProducer
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import MAX_MESSAGE_OVERHEAD, Header, pack_entries
from storage.pulsar.log.partition_reader import PartitionReader
from storage.pulsar.log.partition_rows import Epochs, PartitionState, add_epoch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedPartition:
    """The state of a partition after its exclusive producer was created.

    `opening` counts the earlier logs of this leader epoch that wrote. `start` is the first readable
    offset according to the partition's row, and the number of readable bytes before it.
    """

    client: PulsarClient
    topic: str
    entry_format: str
    producer: PartitionProducer
    leader_epoch: int
    partition: PartitionState
    reader: PartitionReader
    start: tuple[int, int]
    end: LogEnd
    is_empty: bool
    opening: int = 0


class AppendQueue(AppendState):
    """Queue of appended messages that have not been acknowledged.

    `on_stored` receives each burst of acknowledged messages. `on_end` is called once, with the
    reason and the failed messages, when no more can be appended.
    """

    def __init__(
        self,
        opened: OpenedPartition,
        in_flight_limit: InFlightLimit,
        status: LogStatus,
        on_stored: Callable[[list[InFlightMessage]], None],
        on_end: Callable[[StorageError, list[InFlightMessage]], None],
    ) -> None:
        self._opened = opened
        self._client = opened.client
        self._partition = opened.partition
        self._settings = opened.client.settings
        self._leader_epoch, self._opening = opened.leader_epoch, opened.opening
        self._entry_format = opened.entry_format.encode()
        self._in_flight_limit = in_flight_limit
        self._status = status
        self._early = opened.client.settings.reserve_offsets // 2
        """More offsets are reserved once fewer than this number are left."""
        self._on_stored = on_stored
        self._on_end = on_end
        self._producer = ExclusiveProducer(
            opened.client, opened.producer, in_flight_limit, self._acknowledged, self._ended
        )
        self.next = self._sent_end = opened.end
        self.has_stored_epoch = False
        """Whether this leader epoch, and offsets for it, are stored in the partition's row."""
        self._is_empty = opened.is_empty
        self._pending: deque[InFlightMessage] = deque()
        self._awaiting_reservation: list[InFlightMessage] = []
        self._row_update: Deferred[None] | None = None
        self._reservation_error: StorageError | None = None

    def append(self, entries: Sequence[Entry]) -> Completion[None]:
        """`PartitionLog.append`.

        A payload that is not bytes may be copied once; then the tail cache keeps the copy.
        """
        result: Completion[None]
        try:
            if self._status.end_reason is not None:
                self._status.check_open()
            if self._reservation_error:
                # The pending appends are being failed one by one. Until that is done the next
                # offset is not known.
                raise StorageFailed(str(self._reservation_error))
            if entries:
                result = sent = self._build_message(entries)
                self._enqueue(sent)
            else:
                result = Completion()
                result.callback(None)
        except StorageError as error:
            result = Completion()
            result.errback(error)
        return result

    if not TYPE_CHECKING and compiled:
        # Calls the other one unless it is the common case.
        append_any, append = append, compiled.append

    def epochs(self, end_offset: int, start_offset: int) -> Epochs:
        """The stored epochs, and this one with the offset at which it will begin."""
        epochs = self._partition.row.epochs
        return (
            epochs
            if self.has_stored_epoch
            else add_epoch(
                epochs,
                self._opened.leader_epoch,
                end_offset,
                start_offset,
                self._opened.opening,
            )
        )

    async def idle(self) -> None:
        """Return when all appends have succeeded or failed."""
        while self._row_update:
            await self._row_update
        await self._producer.wait_idle()
        while self._row_update:
            await self._row_update

    def end(self, error: StorageError) -> Deferred[None]:
        """Refuse further appends. Fires when the producer is closed."""
        self._status.end(error)
        return self._producer.close(error)

    def _build_message(self, entries: Sequence[Entry]) -> InFlightMessage:
        """The message with these entries. Raises OffsetOutOfRange, EntryTooLarge."""
        before, opened = self.next, self._opened
        expected = check_append(entries, before.offset)
        size, time = 0, -1
        kept: list[Entry] = []
        for entry in entries:
            # Returns the same object if it is bytes.
            payload = bytes(entry.payload)
            kept.append(Entry(entry.base_offset, entry.last_offset, entry.max_timestamp, payload))
            size += len(payload)
            if entry.max_timestamp > time:
                time = entry.max_timestamp
        if len(kept) > 1:
            payload = pack_entries(kept)
        largest = self._client.message_bytes - MAX_MESSAGE_OVERHEAD
        if len(payload) > largest:
            raise EntryTooLarge(
                f"{len(payload)} bytes exceed the largest Pulsar message, {largest} bytes "
                "(the brokers' maxMessageSize)"
            )
        greatest = before.greatest_timestamp
        if time > greatest:
            greatest = time
        header = Header(
            before.offset,
            expected - 1,
            time,
            before.bytes,
            opened.leader_epoch,
            greatest,
            len(kept),
            opened.opening,
        )
        return InFlightMessage(
            header,
            kept,
            payload,
            header.properties(opened.entry_format),
            LogEnd(expected, before.bytes + size, greatest),
        )

    def _enqueue(self, sent: InFlightMessage) -> None:
        self._in_flight_limit.reserve(sent.cost)
        self.next = end = sent.end
        if (
            self.has_stored_epoch
            and not self._pending
            and end.offset + self._early <= self._partition.row.reserved
        ):
            # The common case of the branches below.
            self._sent_end = end
            self._producer.send(sent)
            return
        if self._pending or not self.has_stored_epoch or not self._is_reserved(sent.end.offset):
            self._pending.append(sent)
        else:
            self._send_now(sent)
        # Reserve early, so that only the first append waits for it.
        if self._row_update is None and (
            self._pending or not self._is_reserved(sent.end.offset + self._early)
        ):
            self._start_row_update(self._reserve())

    def _is_reserved(self, offset: int) -> bool:
        """Whether offsets up to `offset` may be assigned.

        In a partition without messages all may: their acknowledgements wait until they are
        reserved.
        """
        return self._is_empty or offset <= self._partition.row.reserved

    def _start_row_update(self, work: Coroutine[Any, Any, None]) -> None:
        update: Deferred[None] = Deferred()
        self._row_update = update

        def done(result: Any) -> None:
            if self._row_update is update:
                self._row_update = None
            if isinstance(result, Failure):
                # A bug. Fail the log, so that no append waits for ever.
                logger.error(
                    "bug: reserving offsets of %s failed: %s",
                    self._opened.topic,
                    result.getTraceback(),
                )
                self.end(Fenced(f"reserving offsets failed: {result.value}"))
            # Appends that arrived while failed ones were completed need another reservation.
            if self._pending and not self._status.end_reason and self._row_update is None:
                self._start_row_update(self._reserve())
            update.callback(None)

        Deferred.fromCoroutine(work).addBoth(done)

    def _send_now(self, sent: InFlightMessage) -> None:
        self._sent_end = sent.end
        self._producer.send(sent)

    async def _reserve(self) -> None:
        """Store the epoch and reserve offsets before any message with them is sent."""
        while not self._status.end_reason:
            row = self._partition.row
            reserved = (
                row.reserved
                if self._is_empty
                else self.next.offset + self._settings.reserve_offsets
            )
            try:
                await self._partition.change(
                    reserved=reserved, epochs=self.epochs(self._sent_end.offset, row.start_offset)
                )
            except StorageError as failure:
                if not self._status.end_reason:
                    self._fail_pending(failure)
                return
            self.has_stored_epoch = True
            while (
                self._pending
                and not self._status.end_reason
                and self._is_reserved(self._pending[0].end.offset)
            ):
                self._send_now(self._pending.popleft())
            if not self._pending:
                return

    def _acknowledged(self, messages: list[InFlightMessage]) -> None:
        if not self._is_empty:
            self._on_stored(messages)
            return
        self._awaiting_reservation += messages
        if self._row_update is None:
            self._start_row_update(self._reserve_first_offsets())

    async def _reserve_first_offsets(self) -> None:
        """Reserve offsets after the first messages of an empty partition were stored.

        Nothing is reserved before, so a process that is killed before this skips no offset.
        """
        while self._awaiting_reservation and not self._status.end_reason:
            try:
                await self._partition.change(
                    reserved=self.next.offset + self._settings.reserve_offsets
                )
            except StorageError as failure:
                self.end(Fenced(f"offsets could not be reserved: {failure}"))
                return
            if (
                not self._status.end_reason
                and self._awaiting_reservation[-1].end.offset <= self._partition.row.reserved
            ):
                self._is_empty = False
                messages, self._awaiting_reservation = self._awaiting_reservation, []
                self._on_stored(messages)

    def _fail_pending(self, failure: StorageError) -> None:
        """Fail the appends that were not sent.

        Their offsets become free after the last one has failed.
        """
        if not isinstance(failure, StorageFailed):
            self.end(failure)
            return
        pending, self._pending = self._pending, deque()
        self._reservation_error = failure
        for sent in pending:
            self._in_flight_limit.release(sent.cost)
        while pending:
            sent = pending.popleft()
            if not pending:
                self._reservation_error = None
                self.next = self._sent_end
            sent.errback(failure)
        self._reservation_error = None

    def _ended(self, error: StorageError, left: list[InFlightMessage]) -> None:
        self._status.end(error)
        pending, self._pending = self._pending, deque()
        unreserved, self._awaiting_reservation = self._awaiting_reservation, []
        for sent in pending:
            self._in_flight_limit.release(sent.cost)
        self._on_end(self._status.end_reason or error, [*unreserved, *left, *pending])
