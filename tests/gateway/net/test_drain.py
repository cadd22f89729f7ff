"""The time between the loss of leadership and the end of the connections at shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.task import Clock

from gateway.net.drain import (
    BETWEEN_SECONDS,
    LINGER_SECONDS,
    PAUSE_SECONDS,
    QUIET_SECONDS,
    close_between_requests,
    wait_until_quiet,
)
from tests.fakes.broker import Started

NEVER = float("inf")


@dataclass
class Connection:
    last_active: float


def test_gateway_without_connections_closes_at_once() -> None:
    assert Started(wait_until_quiet([], Clock(), NEVER)).is_done


def test_gateway_closes_connections_once_clients_are_quiet() -> None:
    clock = Clock()
    asking = Connection(last_active=0.0)
    waiting = Started(wait_until_quiet([asking, Connection(last_active=-60.0)], clock, NEVER))
    clock.advance(0.5)
    asking.last_active = 0.5
    clock.advance(QUIET_SECONDS - 0.1)
    assert not waiting.is_done
    clock.advance(0.1)
    assert waiting.is_done


def test_gateway_does_not_wait_longer_for_clients_that_keep_asking() -> None:
    clock = Clock()
    asking = Connection(last_active=0.0)
    waiting = Started(wait_until_quiet([asking], clock, NEVER))
    while not waiting.is_done:
        assert clock.seconds() < LINGER_SECONDS
        clock.advance(0.1)
        asking.last_active = clock.seconds()
    assert clock.seconds() >= LINGER_SECONDS - 0.1


def test_shutdown_timeout_limits_the_wait_for_clients() -> None:
    clock = Clock()
    waiting = Started(wait_until_quiet([Connection(last_active=0.0)], clock, until=0.3))
    clock.advance(0.3)
    assert waiting.is_done


@dataclass
class ProducerConnection:
    """Becomes idle at the time `idle_at`."""

    clock: Clock
    idle_at: float
    closed_at: float | None = None

    def drain_between_requests(self, seconds: float) -> bool:
        if self.closed_at is None and self.clock.seconds() >= self.idle_at + seconds:
            self.closed_at = self.clock.seconds()
        return self.closed_at is not None


def test_each_producer_is_closed_when_it_is_idle() -> None:
    clock = Clock()
    producers = [ProducerConnection(clock, seconds) for seconds in (0.1, -1.0, 0.05)]
    waiting = Started(close_between_requests(producers, clock, NEVER))
    while not waiting.is_done:
        clock.advance(PAUSE_SECONDS)
    assert [round(one.closed_at or 0, 2) for one in producers] == [0.1, 0, 0.05]


def test_producers_that_are_never_idle_are_not_waited_for_longer() -> None:
    clock = Clock()
    waiting = Started(close_between_requests([ProducerConnection(clock, NEVER)], clock, NEVER))
    while not waiting.is_done:
        assert clock.seconds() < BETWEEN_SECONDS + PAUSE_SECONDS
        clock.advance(PAUSE_SECONDS)
    assert clock.seconds() >= BETWEEN_SECONDS


def test_shutdown_timeout_limits_the_wait_for_producers() -> None:
    clock = Clock()
    waiting = Started(close_between_requests([ProducerConnection(clock, NEVER)], clock, until=0.3))
    clock.pump([PAUSE_SECONDS] * 151)
    assert waiting.is_done
