"""Errors of the client library that its binding does not raise.

The binding has no exception for a lost connection (ResultDisconnected) and for ResultRetryable. A
blocking call that fails with one of these returns an empty value instead, as if it had succeeded:

- `create_producer` and `create_reader` return an object without a topic. `last_sequence_id` of such
  a producer ends the process with SIGSEGV.
- `has_message_available` returns False, which means that the end of the topic was reached.

`read_next`, `send` and `flush` do not fail with these results. Callbacks get all results.

`has_message_available` can also wait without a limit: here it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import pulsar

from storage.pulsar.client.library_threads import keep_thread_state
from storage.pulsar.client.partition_producers import OK, BrokerDisconnected, error_of

T = TypeVar("T")

AVAILABILITY_TIMEOUTS = 3
"""Limit of `has_message_available` in operation timeouts: waiting for the connection, the request,
and a seek may take one each. The library itself has no limit while a reader cannot subscribe again.
"""


def answer_within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what `ask` returns, a blocking call that has no limit and raises nothing.

    It is made in a separate thread, which remains until the call returns. Raises pulsar.Timeout
    after `seconds`.
    """
    answers: SimpleQueue[T] = SimpleQueue()
    Thread(target=lambda: answers.put(ask()), name="pulsar-answer", daemon=True).start()
    return _first(answers, seconds)


def _first(answers: SimpleQueue[T], seconds: float) -> T:
    try:
        return answers.get(timeout=seconds)
    except Empty:
        raise pulsar.Timeout("Pulsar error: no response to a request for the topic's end") from None


def check_created(handle: Any) -> None:
    """Check that the library created this producer or reader. Raises BrokerDisconnected."""
    if not handle.topic():
        raise BrokerDisconnected


def has_message_available(reader: Any, operation_timeout_seconds: float) -> bool:
    """As `pulsar.Reader.has_message_available`, for the binding's reader. Raises every error.

    Raises pulsar.Timeout after `AVAILABILITY_TIMEOUTS`.
    """
    answers: SimpleQueue[tuple[Any, bool]] = SimpleQueue()

    def answer(result: Any, is_available: bool) -> None:
        keep_thread_state()
        answers.put((result, is_available))

    reader.has_message_available_async(answer)
    result, is_available = _first(answers, AVAILABILITY_TIMEOUTS * operation_timeout_seconds)
    if result.value != OK:
        raise error_of(result.value)
    return is_available
