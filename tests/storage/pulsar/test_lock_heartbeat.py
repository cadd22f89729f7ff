"""The heartbeat of the store's lock, without Pulsar."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pulsar
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from storage.pulsar.lock import LockHolder, StoreLock
from storage.pulsar.settings import PulsarSettings


class SilentProducer:
    def __init__(self) -> None:
        self.answers: list[Callable[[Any, object], None]] = []

    def send_async(self, _: bytes, answered: Callable[[Any, object], None]) -> None:
        self.answers.append(answered)

    def close(self) -> None:
        pass


class ImmediateClient:
    reactor_calls = SimpleNamespace(post=lambda call: call())

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return succeed(call())


def test_lock_released_because_of_a_failed_heartbeat_sends_no_more() -> None:
    clock, producer = Clock(), SilentProducer()
    settings = PulsarSettings(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1")
    lock: Any = StoreLock(ImmediateClient(), None, settings, clock)  # type: ignore[arg-type]
    lock._producer = producer
    lock._holder = LockHolder("token", "one", "host", 1, 0.0, 0.0, True)

    def release(_: object) -> None:
        Deferred.fromCoroutine(lock.release())

    lock.confirm().addErrback(release)
    producer.answers.pop()(pulsar.Result.Timeout, None)
    clock.advance(settings.lock_beat_seconds)
    assert producer.answers == []
    assert clock.getDelayedCalls() == []
