"""The right to write to one partition: the exclusive producer, what is in flight on it, and how it ends.

Any send that fails ends it. What became of those in flight is then unknown: whoever goes on takes the right anew and looks at what is there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pulsar
from twisted.internet.defer import Deferred, succeed

from storage.log import Entry, Fenced, LogClosed, StorageError, StorageFailed
from storage.pulsar.client.library_threads import keep_thread_state
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import Header

log = logging.getLogger(__name__)

OK = pulsar.Result.Ok.value

IN_FLIGHT_OVERHEAD = 600
"""Bytes that a message in flight takes beside its payload, here and in the client library. An estimate, so that small ones count too."""


class InFlightLimit:
    """What may be in flight over all logs of a store, in bytes and in messages."""

    def __init__(self, limit_bytes: int, limit_operations: int) -> None:
        self._limits = limit_bytes, limit_operations
        self.reserved_bytes = 0
        self.reserved_operations = 0

    def reserve(self, size: int) -> None:
        """Raises StorageFailed where it is full. One message always fits where nothing else is."""
        limit_bytes, limit_operations = self._limits
        is_full = (
            self.reserved_bytes + size > limit_bytes or self.reserved_operations >= limit_operations
        )
        if is_full and self.reserved_operations:
            raise StorageFailed(
                f"{self.reserved_bytes} bytes in {self.reserved_operations} messages wait for Pulsar already "
                f"(queue_bytes={limit_bytes}, queue_operations={limit_operations}): try again later"
            )
        self.reserved_bytes += size
        self.reserved_operations += 1

    def release(self, size: int) -> None:
        self.reserved_bytes -= size
        self.reserved_operations -= 1


class LogEnd(msgspec.Struct, frozen=True, gc=False):
    """Behind the last message of a partition: the next offset, the payload bytes that it ever had, and the greatest timestamp."""

    offset: int
    bytes: int
    greatest_timestamp: int


class InFlightMessage:
    """One message on its way: what it holds, what the partition's end is behind it, who waits for it, and the broker's answer."""

    __slots__ = (
        "done",
        "end",
        "entries",
        "header",
        "is_released",
        "payload",
        "position",
        "producer",
        "properties",
        "result",
    )

    def __init__(
        self,
        header: Header,
        entries: list[Entry],
        payload: bytes,
        properties: dict[str, str],
        end: LogEnd,
        done: Deferred[None],
    ) -> None:
        self.header = header
        self.entries = entries
        self.payload = payload
        self.properties = properties
        self.end = end
        self.done = done
        self.producer: ExclusiveProducer | None = None
        self.result: Any = None
        self.position: Any = None
        self.is_released = False

    @property
    def cost(self) -> int:
        return len(self.payload) + IN_FLIGHT_OVERHEAD

    def on_response(self, result: Any, message_id: Any) -> None:
        """The library's callback: in its own thread, or within `send_async` in the caller's. Nothing may be raised here."""
        keep_thread_state()
        self.result, self.position = result, message_id
        assert self.producer
        self.producer.response_received(self)


class FencedByOtherProducer(Fenced):
    """Another process has taken the right to write to a partition. It may have taken the whole store."""


class ExclusiveProducer:
    """The producer of one partition. `on_stored` is done of each burst of acknowledged messages, in their order, and once `on_closed` of why it
    ended and what was in flight."""

    def __init__(
        self,
        session: PulsarClient,
        producer: Any,
        room: InFlightLimit,
        on_stored: Callable[[list[InFlightMessage]], None],
        on_closed: Callable[[StorageError, list[InFlightMessage]], None],
    ) -> None:
        self._session = session
        self._producer = producer
        self._room = room
        self._on_stored = on_stored
        self._on_closed = on_closed
        self._in_flight: deque[InFlightMessage] = deque()
        self._responses: deque[InFlightMessage] = deque()
        self._is_scheduled = False
        self._idle: list[Deferred[None]] = []
        self.is_closed = False

    def send(self, sent: InFlightMessage) -> None:
        """Hand it to the library, behind all that was sent before; its cost is in the room already."""
        sent.producer = self
        self._in_flight.append(sent)
        try:
            self._producer.send_async(sent.payload, sent.on_response, properties=sent.properties)
        except pulsar.PulsarException as error:
            self._release(sent)
            self.close(error_for_result(type(error).__name__))

    def response_received(self, sent: InFlightMessage) -> None:
        """From any thread: one wake-up for all answers that have piled up."""
        self._responses.append(sent)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._session.reactor_calls.post(self._handle_responses)

    def _handle_responses(self) -> None:
        # First: an answer from here on asks for a wake-up of its own, and one before it is in the deque.
        self._is_scheduled = False
        stored: list[InFlightMessage] = []
        failure: StorageError | None = None
        in_flight = self._in_flight
        while self._responses:
            sent = self._responses.popleft()
            self._release(sent)
            if self.is_closed or failure:
                continue
            if sent.result.value != OK:
                failure = error_for_result(sent.result.name)
            elif in_flight[0] is not sent:
                failure = Fenced("Pulsar acknowledged messages out of their order")
            else:
                in_flight.popleft()
                stored.append(sent)
        if stored:
            self._on_stored(stored)
        if failure:
            self.close(failure)
        if not in_flight:
            self._notify_idle()

    def close(self, error: StorageError) -> Deferred[None]:
        """Give up the right to write, if that has not been done; all in flight are handed over as lost to view. Fires when the producer is gone."""
        if self.is_closed:
            return succeed(None)
        self.is_closed = True
        left = list(self._in_flight)
        self._in_flight.clear()

        def close() -> None:
            try:
                self._producer.close()
            except pulsar.PulsarException as failure:  # it was fenced, or the cluster is gone
                log.debug("closing a producer: %s", type(failure).__name__)

        def settle(result: Any) -> None:
            for sent in left:
                self._release(sent)

        try:
            closed = self._session.run(close)
        except LogClosed:
            closed = succeed(None)
        closed.addBoth(settle)
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
        """The library holds the payload no more."""
        if not sent.is_released:
            sent.is_released = True
            self._room.release(sent.cost)


def error_for_result(name: str) -> StorageError:
    """Why a log is over, from the name of the library's result for one of its messages."""
    if name == "TopicTerminated":
        return LogClosed("the topic was terminated in Pulsar: it takes no messages any more")
    if name == "ProducerFenced":
        return FencedByOtherProducer(
            "another process has taken the right to write to this partition"
        )
    return Fenced(
        f"a message was not acknowledged by Pulsar ({name}); whether it was stored is unknown"
    )
