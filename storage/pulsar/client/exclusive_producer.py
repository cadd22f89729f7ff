"""The exclusive producer of a partition: the right to write, and the messages in flight.

Any failed send closes the producer. The outcome of the messages in flight is then unknown: the next
leader acquires the right to write and reads what was stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
import pulsar
from twisted.internet.defer import Deferred, succeed

from storage.bridge import Completion
from storage.log import Entry, Fenced, LogClosed, StorageError, StorageFailed
from storage.pulsar.client.compiled_client import InFlightState, ProducerState, compiled
from storage.pulsar.client.partition_producers import (
    IN_FLIGHT_OVERHEAD,
    OK,
    PartitionProducer,
    Response,
    result_name,
)
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position

log = logging.getLogger(__name__)


class InFlightLimit(InFlightState):
    """Limits on bytes and messages in flight over all logs of a store."""

    def __init__(self, limit_bytes: int, limit_operations: int) -> None:
        self.limit_bytes, self.limit_operations = limit_bytes, limit_operations
        self.reserved_bytes = 0
        self.reserved_operations = 0

    def reserve(self, size: int) -> None:
        """Reserve space for a message. Raises StorageFailed if the limit is reached.

        A single message is always accepted if nothing else is in flight.
        """
        limit_bytes, limit_operations = self.limit_bytes, self.limit_operations
        reserved, operations = self.reserved_bytes + size, self.reserved_operations
        if operations and (reserved > limit_bytes or operations >= limit_operations):
            raise StorageFailed(
                f"{self.reserved_bytes} bytes in {operations} messages are already waiting for "
                f"Pulsar (queue_bytes={limit_bytes}, queue_operations={limit_operations}): "
                "retry later"
            )
        self.reserved_bytes, self.reserved_operations = reserved, operations + 1

    def release(self, size: int, operations: int = 1) -> None:
        """Release the space of this many messages, `size` bytes together."""
        self.reserved_bytes -= size
        self.reserved_operations -= operations


class LogEnd(msgspec.Struct, frozen=True, gc=False):
    """State after the last message of a partition.

    The next offset, the total payload bytes ever appended, and the greatest timestamp.
    """

    offset: int
    bytes: int
    greatest_timestamp: int


NO_POSITION = Position(-1, -1)
"""Position of a message that is not stored. Pulsar also returns it for a duplicate that its
deduplication dropped.
"""


class InFlightMessage(Completion[None]):
    """A message in flight, which completes its append: its contents, the log end after it, its
    position once it is stored.
    """

    __slots__ = (
        "cost",
        "end",
        "entries",
        "header",
        "is_released",
        "payload",
        "position",
        "properties",
    )

    def __init__(
        self,
        header: Header,
        entries: list[Entry],
        payload: bytes,
        properties: dict[str, str],
        end: LogEnd,
    ) -> None:
        super().__init__()
        self.header = header
        self.entries = entries
        self.payload = payload
        self.cost = len(payload) + IN_FLIGHT_OVERHEAD
        self.properties = properties
        self.end = end
        self.position = NO_POSITION
        self.is_released = False


if not TYPE_CHECKING and compiled:
    InFlightMessage = compiled.InFlightMessage


class FencedByOtherProducer(Fenced):
    """Another process has taken over the partition, and possibly the whole store."""


class ExclusiveProducer(ProducerState):
    """The producer of one partition.

    `on_stored` is called with each burst of acknowledged messages, in order. `on_closed` is called
    once, with the reason and the messages in flight.
    """

    def __init__(
        self,
        client: PulsarClient,
        producer: PartitionProducer,
        room: InFlightLimit,
        on_stored: Callable[[list[InFlightMessage]], None],
        on_closed: Callable[[StorageError, list[InFlightMessage]], None],
    ) -> None:
        self._client = client
        self._producer = producer
        self._room = room
        self._on_stored = on_stored
        self._on_closed = on_closed
        self._in_flight: deque[InFlightMessage] = deque()
        self._idle: list[Deferred[None]] = []
        self.is_closed = False
        producer.on_responses = self._handle_responses

    def send(self, sent: InFlightMessage) -> None:
        """Send `sent` after all earlier messages; its cost is already reserved."""
        self._in_flight.append(sent)
        try:
            self._producer.send(sent, sent.payload, sent.properties)
        except pulsar.PulsarException as error:
            self._release(sent)
            self.close(error_for_result(type(error).__name__))

    def _handle_responses(self, responses: list[Response]) -> None:
        sent: InFlightMessage
        stored: list[InFlightMessage] = []
        failure: StorageError | None = None
        in_flight, is_closed = self._in_flight, self.is_closed
        released = operations = 0
        try:
            for sent, result, ledger_id, entry_id in responses:
                if not sent.is_released:
                    sent.is_released = True
                    released += sent.cost
                    operations += 1
                if is_closed or failure:
                    continue
                if result != OK:
                    failure = error_for_result(result_name(result))
                elif in_flight[0] is not sent:
                    failure = Fenced("Pulsar acknowledged messages out of order")
                else:
                    in_flight.popleft()
                    sent.position = Position(ledger_id, entry_id)
                    stored.append(sent)
        finally:
            # The library no longer holds the payloads.
            self._room.release(released, operations)
            if stored:
                self._on_stored(stored)
        if failure:
            self.close(failure)
        if not in_flight:
            self._notify_idle()

    if not TYPE_CHECKING and compiled:
        # Calls the other one unless it is the common case.
        handle_any, _handle_responses = _handle_responses, compiled.handle_responses

    def close(self, error: StorageError) -> Deferred[None]:
        """Give up the right to write; idempotent. Fires when the producer is closed.

        The messages in flight are passed to `on_closed`: their outcome is unknown.
        """
        if self.is_closed:
            return succeed(None)
        self.is_closed = True
        left = list(self._in_flight)
        self._in_flight.clear()

        def settle(_: None) -> None:
            for sent in left:
                self._release(sent)

        closed = close_producer(self._client, self._producer).addBoth(settle)
        self._on_closed(error, left)
        self._notify_idle()
        return closed

    def wait_idle(self) -> Deferred[None]:
        """Fires when nothing is in flight."""
        if not self._in_flight:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._idle.append(done)
        return done

    def _notify_idle(self) -> None:
        idle, self._idle = self._idle, []
        for done in idle:
            if not done.called:
                done.callback(None)

    def _release(self, sent: InFlightMessage) -> None:
        """Release the reservation: the library no longer holds the payload."""
        if not sent.is_released:
            sent.is_released = True
            self._room.release(sent.cost)


class Closable(Protocol):
    """Its `close` blocks and raises the library's errors."""

    def close(self) -> None: ...


def close_producer(client: PulsarClient, producer: Closable) -> Deferred[None]:
    """Fires when the library has closed `producer`. A failure to do so is logged only."""

    def close() -> None:
        try:
            producer.close()
        except pulsar.PulsarException as failure:
            # The producer was fenced, or the cluster is gone.
            log.debug("closing a producer failed: %s", type(failure).__name__)

    try:
        return client.run(close)
    except LogClosed:
        return succeed(None)


def error_for_result(name: str) -> StorageError:
    """The error that a failed message means for its log, by the name of the library's result."""
    if name == "TopicTerminated":
        return LogClosed("the topic was terminated in Pulsar: it accepts no more messages")
    if name == "ProducerFenced":
        return FencedByOtherProducer("another process has taken over this partition")
    return Fenced(
        f"a message was not acknowledged by Pulsar ({name}); whether it was stored is unknown"
    )
