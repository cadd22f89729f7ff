"""Starts with a store that is not ready: retries with a new store, until a timeout or shutdown."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet.task import Clock

from gateway import server as servers
from gateway.server import GatewayServer, StartupError
from gateway.settings.model import Settings
from storage.log import NotReady, StorageFailed
from tests.fakes.broker import Started

TIMEOUT_SECONDS = 90.0
NOT_READY = NotReady("there is no bookie")


class Unready:
    """A store that cannot be opened."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    def when_lost(self, call: Callable[[str], None]) -> None:
        pass

    async def open(self) -> None:
        raise self._failure


class Ready(Unready):
    """A store that can be opened."""

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Starting:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failure: Exception | None = NOT_READY
        self.made = 0
        self.clock = Clock()
        monkeypatch.setattr(servers, "make_store", self._make)
        settings = Settings(
            listeners="PLAINTEXT://127.0.0.1:0",
            pulsar_start_timeout_ms=round(TIMEOUT_SECONDS * 1000),
        )
        self.server = GatewayServer(settings, self.clock, lambda reason: None)

    def _make(self, *_: object) -> Unready:
        self.made += 1
        return Unready(self.failure) if self.failure is not None else Ready(NOT_READY)


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    made = Starting(monkeypatch)
    yield made
    Started(made.server.drain())


def test_unready_store_is_retried_with_backoff_until_timeout(
    starting: Starting,
) -> None:
    start = Started(starting.server.start())
    tries = []
    while not start.is_done:
        tries.append(starting.clock.seconds())
        before = starting.made
        while starting.made == before and not start.is_done:
            assert starting.clock.seconds() < 2 * TIMEOUT_SECONDS
            starting.clock.advance(1)
    assert tries == [0, 1, 3, 7, 15, 23, 31, 39, 47, 55, 63, 71, 79, 87]
    assert starting.clock.seconds() == TIMEOUT_SECONDS
    with pytest.raises(StartupError, match="there is no bookie"):
        assert start.result


def test_permanent_store_failure_ends_start_at_once(starting: Starting) -> None:
    starting.failure = StorageFailed("there is no such tenant")
    starting.server = GatewayServer(
        Settings(listeners="PLAINTEXT://127.0.0.1:0"), starting.clock, lambda reason: None
    )
    with pytest.raises(StartupError, match="no such tenant"):
        assert Started(starting.server.start()).result


def test_port_in_use_is_named_with_a_remedy(starting: Starting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        starting.failure = None
        listeners = f"PLAINTEXT://127.0.0.1:{other.getsockname()[1]}"
        starting.server = GatewayServer(
            Settings(listeners=listeners), starting.clock, lambda reason: None
        )
        with pytest.raises(StartupError, match="in use: end the other process, or choose another"):
            assert Started(starting.server.start()).result


def test_shutdown_during_retry_creates_no_further_store(
    starting: Starting,
) -> None:
    start = Started(starting.server.start())
    starting.clock.advance(1)
    made = starting.made
    Started(starting.server.drain())
    starting.clock.advance(TIMEOUT_SECONDS)
    assert starting.made == made
    with pytest.raises(StartupError, match="shut down during the start"):
        assert start.result


class Checked:
    """A connection that is never overdue."""

    def __init__(self) -> None:
        self.checks = 0

    def overdue_reason(self, now: float) -> str | None:
        self.checks += 1
        return None


def test_interval_of_checks_follows_the_number_of_connections(starting: Starting) -> None:
    server, clock = starting.server, starting.clock
    connections: Any = server._limits.connections
    server._sweep_loop.start(servers.SWEEP_SECONDS, now=False)
    many = [Checked() for _ in range(4 * servers.SWEEP_ITEMS_PER_STEP)]
    connections.update(many)
    counts = []
    for seconds in (1, 0.25, 0.25, 0.25):
        clock.advance(seconds)
        counts.append(sum(one.checks for one in many))
    assert counts == [100, 200, 300, 400]
    connections.clear()
    few = Checked()
    connections.add(few)
    clock.advance(0.25)
    assert few.checks == 1
    clock.advance(0.75)
    assert few.checks == 1
    clock.advance(0.25)
    assert few.checks == 2
    connections.clear()
    server._sweep_loop.stop()
