"""Producers and readers of a gateway that the client library does not reconnect are replaced."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import _pulsar
import pulsar
import pytest
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from storage.log import Fenced, LogClosed, StorageFailed
from storage.pulsar.client.reconnection import (
    GIVE_UP_SECONDS,
    READER_GIVE_UP_SECONDS,
    Reconnection,
)
from storage.pulsar.cluster.inbox import InboxReader, Outbox
from storage.pulsar.cluster.log_tail import POLL_MS, LogTail
from storage.pulsar.cluster.presence import NodeHolder, PulsarPresence
from storage.pulsar.settings import PulsarSettings

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")


class SilentProducer:
    """A producer without answers, until a test gives them."""

    def __init__(self) -> None:
        self.is_attached = True
        self.is_closed = False
        self.waiting: list[Callable[[Any, Any], None]] = []

    def is_connected(self) -> bool:
        return self.is_attached

    def send(self, _: bytes) -> None:
        pass

    def send_async(self, _: bytes, answered: Callable[[Any, Any], None]) -> None:
        self.waiting.append(answered)

    def answer(self, result: Any) -> None:
        self.waiting.pop(0)(result, None)

    def close(self) -> None:
        self.is_closed = True


class SilentReader:
    """A reader that receives nothing; each read takes its time. Not connected."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reader = self
        self.reads = 0

    def read_next(self, milliseconds: int) -> Any:
        self.reads += 1
        self._clock.advance(milliseconds / 1000)
        raise pulsar.Timeout

    def is_connected(self) -> bool:
        return False


class ClientOfProducers:
    """Runs calls at once. Its readers cannot be opened."""

    settings = SETTINGS
    reactor_calls = SimpleNamespace(post=lambda call: call())

    def __init__(self) -> None:
        self.opened: list[SilentProducer] = []
        self.refusals: list[Exception] = []
        """Raised by the next calls of `producer`."""
        self.pauses: list[Deferred[None]] = []

    def pause(self, seconds: float) -> Deferred[None]:
        self.pauses.append(Deferred())
        return self.pauses[-1]

    def last_json(self, *_: object) -> Any:
        raise ZeroDivisionError

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return execute(call)

    def producer(self, *_: object, **__: object) -> SilentProducer:
        if self.refusals:
            raise self.refusals.pop(0)
        self.opened.append(SilentProducer())
        return self.opened[-1]

    def reader(self, *_: object, **__: object) -> Any:
        raise LogClosed("the store is closed")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client() -> ClientOfProducers:
    return ClientOfProducers()


def test_node_id_is_claimed_again(client: ClientOfProducers, clock: Clock) -> None:
    presence = PulsarPresence(cast(Any, client), cast(Any, None), SETTINGS, cast(Any, clock))
    presence._holder = NodeHolder("incarnation", "node 1", "host", 1, 0.0)
    first = client.producer()
    presence._started(first)
    first.is_attached = False
    clock.pump([0.5] * (round(GIVE_UP_SECONDS / 0.5)))
    assert len(client.opened) == 1
    clock.advance(0.5)
    assert len(client.opened) == 2
    assert first.is_closed
    # The answer to a message of the former producer comes late.
    first.answer(pulsar.Result.AlreadyClosed)
    clock.pump([0.5] * (2 * round(GIVE_UP_SECONDS / 0.5)))
    assert len(client.opened) == 2


def test_node_id_is_claimed_again_after_any_failure(
    client: ClientOfProducers, clock: Clock
) -> None:
    """Also if an unexpected error occurs while the holder of the topic is looked up."""
    presence = PulsarPresence(cast(Any, client), cast(Any, None), SETTINGS, cast(Any, clock))
    holder = presence._holder = NodeHolder("incarnation", "node 1", "host", 1, 0.0)
    client.refusals = [Fenced("taken"), StorageFailed("no broker"), ZeroDivisionError()]
    claiming = Deferred.fromCoroutine(presence._claim_again(holder))
    for _ in range(3):
        assert client.opened == []
        client.pauses.pop(0).callback(None)
    assert claiming.called
    assert len(client.opened) == 1


@pytest.mark.parametrize(("is_attached", "opened"), [(False, 2), (True, 1)])
def test_messages_to_a_node_need_a_new_producer_after_a_timeout_without_a_connection(
    client: ClientOfProducers, clock: Clock, is_attached: bool, opened: int
) -> None:
    outbox = Outbox(cast(Any, client), cast(Any, clock), "topic")
    outbox.send(b"1")
    client.opened[0].is_attached = is_attached
    client.opened[0].answer(pulsar.Result.Timeout)
    outbox.send(b"2")
    assert len(client.opened) == opened
    assert client.opened[0].is_closed is not is_attached
    assert len(client.opened[-1].waiting) == 1


def test_dropped_message_names_the_lost_connection(
    client: ClientOfProducers, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(cast(Any, client), cast(Any, clock), "topic")
    outbox.send(b"1")
    client.opened[0].answer(_pulsar.Result(46))
    assert "reason=Disconnected" in caplog.text


def reads_until_given_up() -> int:
    """The first read shows that there is no connection."""
    return round(READER_GIVE_UP_SECONDS * 1000 / POLL_MS) + 1


def test_inbox_is_read_by_a_new_reader(client: ClientOfProducers, clock: Clock) -> None:
    inbox = InboxReader(cast(Any, client), "topic", lambda message: None)
    inbox._reconnection = Reconnection(clock.seconds, READER_GIVE_UP_SECONDS)
    reader = SilentReader(clock)
    inbox._read(reader)
    assert reader.reads == reads_until_given_up()


def test_metadata_log_is_read_by_a_new_reader(client: ClientOfProducers, clock: Clock) -> None:
    tail = LogTail(cast(Any, client), "topic", None, lambda event: None)
    tail._reconnection = Reconnection(clock.seconds, READER_GIVE_UP_SECONDS)
    reader = SilentReader(clock)
    tail._follow(reader)
    assert reader.reads == reads_until_given_up()
