"""Between the threads and the reactor."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import CancelledError

from storage.lmdb.bridge import Readers, Wake
from storage.log import StorageFailed


class StillReactor:
    """Collects what it is asked to call; the test says when."""

    def __init__(self) -> None:
        self.asked: list[Callable[..., object]] = []

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        self.asked.append(call)


def test_what_piles_up_costs_one_wake_up() -> None:
    reactor, ran = StillReactor(), []
    wake = Wake(reactor)
    for n in range(5):
        wake.post(lambda n=n: ran.append(n))
    assert len(reactor.asked) == 1
    reactor.asked.pop()()
    assert ran == [0, 1, 2, 3, 4]
    wake.post(lambda: ran.append(5))
    assert len(reactor.asked) == 1


def test_a_receiver_that_raises_does_not_keep_the_others_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    reactor, ran = StillReactor(), []
    wake = Wake(reactor)
    wake.post(lambda: 1 // 0)
    wake.post(lambda: ran.append(1))
    reactor.asked.pop()()
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


@ensureDeferred
async def test_a_reader_gives_back_what_the_call_gave_or_raised() -> None:
    readers = Readers(Wake(reactor), threads=2, waiting=10)
    assert await readers.run(lambda: threading.current_thread().name) != threading.current_thread().name
    with pytest.raises(ZeroDivisionError):
        await readers.run(lambda: 1 // 0)
    await readers.stop(lambda: None)


@ensureDeferred
async def test_reads_beyond_the_limit_are_refused_and_say_which_limit() -> None:
    held = threading.Event()
    readers = Readers(Wake(reactor), threads=1, waiting=2)
    began = threading.Event()

    def hold() -> None:
        began.set()
        held.wait(10)

    first = readers.run(hold)
    began.wait(10)
    waiting = [readers.run(lambda: 1) for _ in range(2)]
    with pytest.raises(StorageFailed, match="reads_waiting"):
        await readers.run(lambda: 1)
    held.set()
    await first
    assert [await one for one in waiting] == [1, 1]
    await readers.stop(lambda: None)


@ensureDeferred
async def test_a_cancelled_read_that_has_not_begun_is_not_begun() -> None:
    held, ran = threading.Event(), []
    readers = Readers(Wake(reactor), threads=1, waiting=10)
    first = readers.run(lambda: held.wait(10))
    second = readers.run(lambda: ran.append(2))
    second.cancel()
    with pytest.raises(CancelledError):
        await second
    held.set()
    await first
    await readers.run(lambda: None)
    assert ran == []
    await readers.stop(lambda: None)
