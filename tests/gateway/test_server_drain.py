"""The time between the loss of leadership and the end of the connections at shutdown."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.task import Clock

from gateway.server import LINGER_SECONDS, QUIET_SECONDS, wait_until_quiet
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
