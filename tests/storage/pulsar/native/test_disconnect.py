"""A log in the format `pulsar` is disconnected once none of its readers can open the topic."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from storage.log import Fenced, LogClosed
from storage.pulsar.client.reconnection import GIVE_UP_SECONDS, Reconnection
from storage.pulsar.log.format_history import MultiFormatLog
from storage.pulsar.log.format_ranges import NativeRangeReader
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_rows import FormatRange
from storage.pulsar.native.message_offsets import START
from storage.pulsar.native.native_log import NativeLog, NativeLogBounds
from storage.pulsar.native.native_reader import NativeReader
from storage.pulsar.native.stored_entries import NativeEntries
from storage.pulsar.native.tail_reader import CHECK_SECONDS, TailReader
from storage.pulsar.settings import PulsarSettings
from storage.tail import TailCache
from tests.fakes.broker import Started


class LibraryReader:
    """A reader of a topic whose messages do not arrive. `on_read` is called in each read."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        self.on_read = on_read
        self.is_closed = False

    def read_next(self, _: int) -> Any:
        self.on_read()
        raise pulsar.Timeout

    def is_connected(self) -> bool:
        return False

    def has_message_available(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


class HeldClient:
    """Calls for a thread wait while `is_held`; then `run_calls` runs them."""

    settings = PulsarSettings("pulsar://nowhere", "http://nowhere")
    reactor_calls = SimpleNamespace(post=lambda call: call())

    def __init__(self) -> None:
        self.is_held = False
        self.on_read: Callable[[], None] = lambda: None
        self.opened: list[LibraryReader] = []
        self.pauses: list[Deferred[None]] = []
        self._calls: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self._calls.append((call, done))
        if not self.is_held:
            self.run_calls()
        return done

    def pause(self, seconds: float) -> Deferred[None]:
        self.pauses.append(Deferred())
        return self.pauses[-1]

    def run_calls(self) -> None:
        while self._calls:
            call, done = self._calls.pop(0)
            try:
                result = call()
            except Exception as error:
                done.errback(error)
            else:
                done.callback(result)

    def reader(self, *_: object, **__: object) -> LibraryReader:
        self.opened.append(LibraryReader(self.on_read))
        return self.opened[-1]


@pytest.fixture
def client() -> HeldClient:
    return HeldClient()


@pytest.fixture
def entries(client: HeldClient) -> NativeEntries:
    """The entries of a topic with one entry, which no reader receives."""

    async def all_entries() -> object:
        return None

    async def first(*_: object) -> tuple[Position, object]:
        return Position(1, 0), None

    finder = SimpleNamespace(topic="t", entries=all_entries, first=first)
    made = NativeEntries(cast(Any, client), cast(Any, finder), cast(Any, None), 0, 0)
    made.last = Position(1, 0)
    return made


def test_reader_of_a_read_that_has_not_begun_is_not_opened(
    client: HeldClient, entries: NativeEntries
) -> None:
    client.is_held = True
    reading = Started(entries.read(0, 1))
    assert Started(entries.disconnect()).is_done
    client.run_calls()
    assert isinstance(reading.failure, LogClosed)
    assert client.opened == []


def test_reader_in_use_is_waited_for(client: HeldClient, entries: NativeEntries) -> None:
    disconnected: list[Started] = []

    def look() -> None:
        disconnected.append(Started(entries.disconnect()))
        assert not disconnected[0].is_done

    client.on_read = look
    assert Started(entries.read(0, 1)).result == []
    assert client.opened[0].is_closed
    assert disconnected[0].is_done


def test_reader_that_is_closed_before_its_first_read_opens_nothing(
    client: HeldClient, entries: NativeEntries
) -> None:
    """The read of a client that has gone runs in a thread after the reader was closed."""
    reader = NativeReader(entries.source, cast(Any, None), Position(1, 0), 8)
    reader.close()
    with pytest.raises(LogClosed):
        reader.read(1, Position(1, 0))
    assert all(one.is_closed for one in client.opened)
    assert entries.source.disconnect().called


def test_reader_of_the_log_end_is_closed_if_the_log_ends_while_it_opens(
    client: HeldClient, entries: NativeEntries
) -> None:
    tail = TailReader(
        entries.source, cast(Any, None), START, lambda packed: None, lambda error: None
    )
    client.is_held = True
    opening = Started(tail.open())
    Started(tail.close())
    disconnected = Started(entries.disconnect())
    client.run_calls()
    assert isinstance(opening.failure, LogClosed)
    assert all(one.is_closed for one in client.opened)
    assert disconnected.is_done


def test_log_ends_if_the_reader_of_its_end_is_not_reconnected(
    client: HeldClient, entries: NativeEntries
) -> None:
    clock, failures = Clock(), []
    tail = TailReader(entries.source, cast(Any, None), START, lambda packed: None, failures.append)
    tail._reconnection = Reconnection(clock.seconds)
    Started(tail.open())
    for _ in range(round(GIVE_UP_SECONDS / CHECK_SECONDS) + 1):
        assert failures == []
        clock.advance(CHECK_SECONDS)
        client.pauses.pop(0).callback(None)
    assert len(failures) == 1
    assert client.pauses == []


def test_closed_reader_of_the_log_end_is_not_checked(
    client: HeldClient, entries: NativeEntries
) -> None:
    tail = TailReader(
        entries.source, cast(Any, None), START, lambda packed: None, lambda error: None
    )
    Started(tail.open())
    Started(tail.close())
    assert client.pauses.pop(0).called
    assert client.pauses == []
    assert client.opened[0].is_closed


@pytest.fixture
def log(entries: NativeEntries) -> NativeLog:
    row = SimpleNamespace(start_offset=0, epochs=())
    return NativeLog(
        NativeLogBounds(entries, 0, 1, 0),
        cast(Any, SimpleNamespace(row=row)),
        1,
        TailCache(1000),
        lambda log, error: None,
    )


def test_log_that_has_ended_is_disconnected_once_its_producer_is_closed(log: NativeLog) -> None:
    producer: Deferred[None] = Deferred()
    log.sender = cast(Any, SimpleNamespace(end=lambda error: producer))
    log.end(Fenced("the outcome of an append is unknown"))
    disconnected = log.disconnect()
    assert not disconnected.called
    producer.callback(None)
    assert disconnected.called


def test_log_of_several_formats_waits_for_the_readers_of_each(
    client: HeldClient, entries: NativeEntries
) -> None:
    earlier = NativeRangeReader(FormatRange(0, 0), 10, entries)
    current = SimpleNamespace(
        topic="t", partition=None, status=None, disconnect=lambda: succeed(None)
    )
    log = MultiFormatLog([earlier], cast(Any, current), 0)
    disconnected: list[Deferred[Any]] = []

    def look() -> None:
        disconnected.append(log.disconnect())
        assert not disconnected[0].called

    client.on_read = look
    assert Started(earlier.read(0, 1)).result is None
    assert disconnected[0].called
