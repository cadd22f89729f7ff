"""Python thread states of the client library's threads."""

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
    """For each of three callbacks: its thread, and how many callbacks ran there before.

    The count is kept in the thread state.
    """
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


def test_kept_thread_state_survives_callbacks(pulsar):
    settings = pulsar.settings()
    client = library.Client(
        settings.service_url, io_threads=1, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    topic = f"{settings.tenant}/{settings.namespace}/callbacks"
    pulsar.admin("PUT", f"persistent/{topic}")
    producer = client.create_producer(f"persistent://{topic}")
    # The default behavior of the library: each callback has a new thread state.
    assert [before for _, before in seen_by(producer, lambda: None)] == [0, 0, 0]
    kept = seen_by(producer, keep_thread_state)
    assert [before for _, before in kept] == [0, 1, 2]
    assert len({thread for thread, _ in kept}) == 1
    client.close()
