"""Exclusive producers of partitions: their interface, and the one on the library's binding.

The other one is compiled (`bulk_client.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import _pulsar
import pulsar

from storage.bridge import ReactorCallQueue
from storage.pulsar.client.library_threads import keep_thread_state

OK: int = pulsar.Result.Ok.value

IN_FLIGHT_OVERHEAD = 2500
"""Memory of a message in flight in bytes besides its payload, here and in the library, as measured
with messages of 20 bytes.
"""

Response = tuple[Any, int, int, int]
"""What was passed to `send`; the library's result (`OK`: stored), ledger id, entry id."""


NAMELESS_RESULTS = {-1: "Retryable", 46: "Disconnected"}
"""Results of the library (pulsar/Result.h) that the binding does not know."""


def result_name(result: int) -> str:
    name: str = NAMELESS_RESULTS.get(result) or _pulsar.Result(result).name
    return name


class BrokerDisconnected(pulsar.PulsarException):  # type: ignore[misc]
    """The connection was lost, or the client closed, during a request (`NAMELESS_RESULTS`)."""


def error_of(result: int) -> Exception:
    """The exception that the library's binding raises for `result`.

    BrokerDisconnected for the results that it does not know.
    """
    name = result_name(result)
    text = f"Pulsar error: {name} ({result})"
    if result in NAMELESS_RESULTS:
        return BrokerDisconnected(text)
    error: Exception = getattr(pulsar, name, pulsar.PulsarException)(text)
    return error


class PartitionProducer(Protocol):
    """Its `on_responses` is called with each burst of responses, in the reactor's thread."""

    on_responses: Callable[[list[Response]], None]

    def send(self, context: object, payload: bytes, properties: dict[str, str]) -> None:
        """Send a message after all earlier ones. For the reactor's thread.

        There is one response, with `context`. There may be none if it raises one of the library's
        errors, or if another thread closes the producer meanwhile.
        """
        ...

    def close(self) -> None:
        """Blocks. Raises the library's errors. Messages in flight get a response."""
        ...


class SingleProducer:
    """A `PartitionProducer` on the binding: one callback per message, with the GIL."""

    on_responses: Callable[[list[Response]], None]

    def __init__(self, producer: Any, reactor_calls: ReactorCallQueue) -> None:
        # Bypassing the library's Python wrapper takes a quarter less time.
        self._send = producer._producer.send_async
        self.close: Callable[[], None] = producer.close
        self._reactor_calls = reactor_calls
        self._responses: deque[tuple[object, Any, Any]] = deque()
        self._is_scheduled = False

    def send(self, context: object, payload: bytes, properties: dict[str, str]) -> None:
        self._send(
            _pulsar.MessageBuilder().content(payload).properties(properties).build(),
            partial(self._receive, context),
        )

    def _receive(self, context: object, result: Any, message_id: Any) -> None:
        """Queue a response; the reactor is woken once per burst. Must not raise.

        Called in the library's thread, or within `send` in the caller's thread.
        """
        keep_thread_state()
        self._responses.append((context, result, message_id))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._reactor_calls.post(self._deliver)

    def _deliver(self) -> None:
        # Reset first: a response from here on schedules another wake-up; an earlier one is in the
        # deque.
        self._is_scheduled = False
        responses: list[Response] = []
        while self._responses:
            context, result, message_id = self._responses.popleft()
            if result.value == OK:
                responses.append((context, OK, message_id.ledger_id(), message_id.entry_id()))
            else:
                responses.append((context, result.value, -1, -1))
        self.on_responses(responses)
