"""What the client library's threads keep between two callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pulsar as library
import pytest

from storage.pulsar.client.library_threads import keep_thread_state

pytestmark = pytest.mark.peer


def seen_by(producer: library.Producer, first: Callable[[], object]) -> list[tuple[int, int]]:
    """Of three callbacks, in which thread each ran and how many had run there before, as far as that thread's state remembers."""
    local = threading.local()
    seen: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def called(result: Any, place: Any) -> None:
        first()
        before = getattr(local, "before", 0)
        local.before = before + 1
        seen.put((threading.get_ident(), before))

    found = []
    for _ in range(3):
        producer.send_async(b"x", called)
        found.append(seen.get(timeout=30))
    return found


def test_the_state_of_a_thread_of_the_librarys_stays_once_it_is_asked_to(pulsar):
    settings = pulsar.settings()
    client = library.Client(
        settings.service_url, io_threads=1, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    topic = f"{settings.tenant}/{settings.namespace}/callbacks"
    pulsar.admin("PUT", f"persistent/{topic}")
    producer = client.create_producer(f"persistent://{topic}")
    # What the library does by itself, and the reason for all this: each callback is the first.
    assert [before for _, before in seen_by(producer, lambda: None)] == [0, 0, 0]
    kept = seen_by(producer, keep_thread_state)
    assert [before for _, before in kept] == [0, 1, 2]
    assert len({thread for thread, _ in kept}) == 1
    client.close()
