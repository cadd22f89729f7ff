"""The heartbeat of the store's lock, without Pulsar."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from storage.log import Fenced, StorageError, StorageFailed
from storage.pulsar.client.reconnection import GIVE_UP_SECONDS
from storage.pulsar.lock import LockHolder, StoreLock
from storage.pulsar.settings import PulsarSettings


class SilentProducer:
    is_attached = True

    def __init__(self) -> None:
        self.answers: list[Callable[[Any, object], None]] = []
        self.closed = 0

    def is_connected(self) -> bool:
        return self.is_attached

    def send(self, _: bytes) -> None:
        pass

    def send_async(self, _: bytes, answered: Callable[[Any, object], None]) -> None:
        self.answers.append(answered)

    def close(self) -> None:
        self.closed += 1


class ImmediateClient:
    """`last_holder` sent the last message of the topic."""

    reactor_calls = SimpleNamespace(post=lambda call: call())

    def __init__(self) -> None:
        self.opened: list[SilentProducer] = []
        self.last_holder: LockHolder | None = None

    def producer(self, *_: object) -> SilentProducer:
        self.opened.append(SilentProducer())
        return self.opened[-1]

    def last_json(self, *_: object) -> LockHolder | None:
        return self.last_holder

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return succeed(call())


SETTINGS = PulsarSettings(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
HOLDER = LockHolder("token", "one", "host", 1, 0.0, 0.0, True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client() -> ImmediateClient:
    return ImmediateClient()


@pytest.fixture
def producer() -> SilentProducer:
    return SilentProducer()


@pytest.fixture
def lock(client: ImmediateClient, producer: SilentProducer, clock: Clock) -> Any:
    """A lock that is held."""
    made: Any = StoreLock(client, None, SETTINGS, clock)  # type: ignore[arg-type]
    made._producer = producer
    made._holder = HOLDER
    return made


def fail_heartbeats(producer: SilentProducer, clock: Clock, seconds: float) -> None:
    """Let the heartbeats of this time end without an answer."""
    until = clock.seconds() + seconds
    while clock.seconds() < until:
        clock.advance(SETTINGS.lock_beat_seconds)
        if producer.answers:
            producer.answers.pop()(pulsar.Result.Timeout, None)


def test_lock_released_because_of_a_failed_heartbeat_sends_no_more(
    lock: Any, producer: SilentProducer, clock: Clock
) -> None:
    def release(_: object) -> None:
        Deferred.fromCoroutine(lock.release())

    lock.confirm().addErrback(release)
    producer.answers.pop()(pulsar.Result.Timeout, None)
    clock.advance(SETTINGS.lock_beat_seconds)
    assert producer.answers == []
    assert clock.getDelayedCalls() == []


def test_heartbeat_that_failed_with_a_lost_connection_names_it(
    lock: Any, producer: SilentProducer, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Any] = []
    lock.confirm().addErrback(failures.append)
    producer.answers.pop()(_pulsar.Result(46), None)
    assert "(Disconnected)" in caplog.text
    assert "(Disconnected)" in str(failures[0].value)


def test_confirmation_asked_for_by_a_confirmed_caller_sends_one_heartbeat(
    lock: Any, producer: SilentProducer, clock: Clock
) -> None:
    lock.confirm().addCallback(lambda _: lock.confirm())
    lock.confirm()
    producer.answers.pop()(pulsar.Result.Ok, None)
    assert len(producer.answers) == 1
    producer.answers.pop()(pulsar.Result.Ok, None)
    assert producer.answers == []
    lock._mark_lost("another process has taken over the store")
    assert clock.getDelayedCalls() == []


def test_lock_whose_producer_is_not_reconnected_is_reacquired(
    lock: Any, client: ImmediateClient, producer: SilentProducer, clock: Clock
) -> None:
    producer.is_attached = False
    lock.confirm().addErrback(lambda _: None)
    producer.answers.pop()(pulsar.Result.Timeout, None)
    fail_heartbeats(producer, clock, GIVE_UP_SECONDS - SETTINGS.lock_beat_seconds)
    assert client.opened == []
    fail_heartbeats(producer, clock, SETTINGS.lock_beat_seconds)
    (opened,) = client.opened
    assert producer.closed == 1
    confirmed = lock.confirm()
    opened.answers.pop()(pulsar.Result.Ok, None)
    opened.answers.pop()(pulsar.Result.Ok, None)
    assert confirmed.called


@pytest.mark.parametrize("failure", [Fenced("it has a producer"), StorageFailed("no answer")])
def test_lock_that_is_taken_again_ignores_an_earlier_attempt_to_reacquire_it(
    lock: Any,
    producer: SilentProducer,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    failure: StorageError,
) -> None:
    lost: list[str] = []
    lock.when_lost(lost.append)
    openings: list[Deferred[Any]] = []

    def opened(_: object) -> Deferred[Any]:
        openings.append(Deferred())
        return openings[-1]

    lock._open = opened
    lock.confirm().addErrback(lambda _: None)
    producer.answers.pop()(pulsar.Result.ProducerFenced, None)
    Deferred.fromCoroutine(lock.release())
    taken = Deferred.fromCoroutine(lock._acquire("one", fence=False))
    assert taken.called
    openings[0].errback(failure)
    assert lost == []
    assert "bug" not in caplog.text
    Deferred.fromCoroutine(lock.release())
    assert clock.getDelayedCalls() == []


def test_lock_whose_producer_is_connected_is_kept_while_heartbeats_fail(
    lock: Any, client: ImmediateClient, producer: SilentProducer, clock: Clock
) -> None:
    lock.confirm().addErrback(lambda _: None)
    producer.answers.pop()(pulsar.Result.Timeout, None)
    fail_heartbeats(producer, clock, 2 * GIVE_UP_SECONDS)
    assert client.opened == []


def test_producer_of_a_lost_lock_is_closed(
    lock: Any, client: ImmediateClient, producer: SilentProducer
) -> None:
    lost: list[str] = []
    lock.when_lost(lost.append)
    client.last_holder = LockHolder("another", "two", "host", 2, 0.0, 0.0, True)
    lock.confirm().addErrback(lambda _: None)
    producer.answers.pop()(pulsar.Result.ProducerFenced, None)
    assert len(lost) == producer.closed == 1
