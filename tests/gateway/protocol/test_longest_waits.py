"""How long other clients wait for worker threads while one client causes expensive work.

Time is simulated: a call on a worker thread takes the CPU time that it takes on the machine of
docs/benchmarks.md. Requests, queues, budgets and cancellation are real. The same attacks on a real
gateway are in `tests/peers/faults/test_denial_of_service.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from twisted.python.failure import Failure

from auth.mechanism import AuthenticationBusy
from auth.plain import PlainMechanism
from gateway import workers
from gateway.fetch import conversion, conversion_calls
from gateway.partitions.stored_records import down_convert_all
from gateway.workers import FairWorkers, TooManyWaiting
from tests.fakes.broker import open_environment
from tests.fakes.connection import MemoryClient, handshake
from tests.gateway.handlers.fetch_requests import stored_entry
from tests.records.sample_records import ZSTD, Sample, batch
from tests.testkit.gateway import encode_request, fetch_request

#: Longest wait of another consumer that needs a conversion.
CONSUMER_SECONDS = 1.0

#: Longest login with a correct password.
LOG_IN_SECONDS = 2.0

#: CPU time of the conversion of a batch that unpacks to 95 MiB, and of a password check.
CONVERSION_SECONDS = 0.27
CHECK_SECONDS = 0.05

THREADS = 2
MAX_WAITING_CHECKS = 20
TICK_SECONDS = 0.02

#: After this time a client has not been served.
GIVE_UP_SECONDS = 100.0

SAME_HOST, OTHER_HOST = "192.0.2.1", "192.0.2.2"


class SimulatedThreads:
    """Replaces the threads of `FairWorkers`: the result of a call arrives after its CPU time.

    A call adds its CPU time to `cpu_seconds`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.cpu_seconds = 0.0

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        before = self.cpu_seconds
        result = call()
        return deferLater(self._clock, self.cpu_seconds - before, lambda: result)


class Simulation:
    """A gateway with simulated threads. `attack` is called every tick."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.attack: Callable[[], None] = lambda: None
        threads = self._threads = SimulatedThreads(self.clock)
        monkeypatch.setattr(workers, "WorkerPool", lambda *_: threads)
        for module in (conversion, conversion_calls):
            monkeypatch.setattr(module, "thread_time_ns", lambda: int(threads.cpu_seconds * 1e9))
        monkeypatch.setattr(conversion_calls, "down_convert_all", self._convert)
        reactor: Any = self.clock
        conversions: Any = FairWorkers(reactor, THREADS, "convert")
        self._checks = FairWorkers(reactor, THREADS, "check", max_waiting=MAX_WAITING_CHECKS)
        # Without the cache every fetch converts.
        self.env = open_environment(clock=self.clock, threads=conversions, conversion_cache_bytes=0)
        self._plain = PlainMechanism(self, self._check_on_thread)

    def _convert(self, payloads: list[Any], *arguments: Any, **more: Any) -> Any:
        self._threads.cpu_seconds += CONVERSION_SECONDS * sum(map(conversion.is_zstd, payloads))
        return down_convert_all(payloads, *arguments, **more)

    def is_cached(self, name: str, password: str, /) -> bool:
        return False

    def check(self, name: str, password: str, /) -> bool:
        self._threads.cpu_seconds += CHECK_SECONDS
        return password == "secret"

    def _check_on_thread(self, host: str, check: Callable[[], bool]) -> Deferred[bool]:
        def busy(failure: Failure) -> NoReturn:
            failure.trap(TooManyWaiting)
            raise AuthenticationBusy

        return self._checks.run_for(host, check).addErrback(busy)

    def store(self, topic: str, count: int, codec: int) -> None:
        self.env.topic(topic)
        for offset in range(count):
            one = batch([Sample(offset, 5, b"k", b"v")], codec=codec)
            self.env.partition(topic).log.append([stored_entry(offset, offset, one)])

    def connect(self, host: str, *, logs_in: bool = False) -> MemoryClient:
        client = MemoryClient([self._plain] if logs_in else None, broker=self.env.broker)
        client.session.host = host
        return client

    def seconds_until_reply(self, client: MemoryClient) -> float:
        began = self.clock.seconds()
        while not client.receive():
            assert not is_closed(client)
            assert self.clock.seconds() < began + GIVE_UP_SECONDS
            self.clock.advance(TICK_SECONDS)
            self.attack()
        return self.clock.seconds() - began


def is_closed(client: MemoryClient) -> bool:
    return bool(client.closed_after_ms) or client.is_aborted


class Attackers:
    """Connections that send their frames and reconnect `seconds` later, or when answered."""

    def __init__(
        self,
        clock: Clock,
        connect: Callable[[], MemoryClient],
        frames: Sequence[Sequence[bytes]],
        seconds: float,
    ) -> None:
        self._clock = clock
        self._connect = connect
        self._frames = frames
        self._seconds = seconds
        self._attempts = [self._attempt(index) for index in range(len(frames))]

    def _attempt(self, index: int) -> tuple[MemoryClient, float]:
        client = self._connect()
        client.send(*self._frames[index])
        return client, self._clock.seconds() + self._seconds

    def __call__(self) -> None:
        for index, (client, end) in enumerate(self._attempts):
            client.run_reactor()
            is_over = client.writes == len(self._frames[index]) or is_closed(client)
            if is_over or self._clock.seconds() >= end:
                client.disconnect()
                self._attempts[index] = self._attempt(index)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    return Simulation(monkeypatch)


@pytest.mark.parametrize(
    ("host", "count", "seconds"),
    [
        (SAME_HOST, 4, 0.1),
        (SAME_HOST, 2, GIVE_UP_SECONDS),
        (OTHER_HOST, 12, 0.1),
        (OTHER_HOST, 12, GIVE_UP_SECONDS),
    ],
)
def test_consumer_waits_at_most_a_second_for_conversions_of_others(
    simulation: Simulation, host: str, count: int, seconds: float
) -> None:
    # Attackers with the same topic would share conversions.
    for number in range(count):
        simulation.store(f"bombs-{number}", 5, ZSTD)
    simulation.store("records", 1, ZSTD)
    simulation.attack = Attackers(
        simulation.clock,
        lambda: simulation.connect(host),
        [[encode_request(fetch_request(f"bombs-{number}", 0, 2), 2)] for number in range(count)],
        seconds,
    )
    consumer = simulation.connect(SAME_HOST)
    waits = []
    for _ in range(5):
        consumer.send(encode_request(fetch_request("records", 0, 2), 2))
        waits.append(simulation.seconds_until_reply(consumer))
    # It waited, so the attack occupied all threads.
    assert 0 < max(waits) <= CONSUMER_SECONDS


@pytest.mark.long
@pytest.mark.parametrize(
    ("host", "count", "seconds"),
    [
        (SAME_HOST, 10, 0.02),
        (SAME_HOST, 10, GIVE_UP_SECONDS),
        (OTHER_HOST, 30, 0.3),
        (OTHER_HOST, 30, GIVE_UP_SECONDS),
    ],
)
def test_login_takes_at_most_two_seconds_beside_wrong_passwords(
    simulation: Simulation, host: str, count: int, seconds: float
) -> None:
    simulation.attack = Attackers(
        simulation.clock,
        lambda: simulation.connect(host, logs_in=True),
        [[handshake("PLAIN", 0), b"\0alice\0guess"]] * count,
        seconds,
    )
    waits = []
    for _ in range(5):
        client = simulation.connect(SAME_HOST, logs_in=True)
        client.send(handshake("PLAIN", 0))
        assert client.receive()
        client.send(b"\0alice\0secret")
        waits.append(simulation.seconds_until_reply(client))
        assert client.session.is_ready
        client.disconnect()
    # It waited for more than its own check, so the attack occupied all threads.
    assert CHECK_SECONDS < max(waits) <= LOG_IN_SECONDS
