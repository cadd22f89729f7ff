"""A table behind a network that loses messages and connections, with takeovers meanwhile."""

from __future__ import annotations

import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from storage.log import Fenced, StorageFailed
from storage.pulsar.tables.table import PulsarTable
from tests.storage.pulsar.broker_tables import BrokerTables, until_answered
from tests.testkit.pulsar_relay import SEND, SEND_RECEIPT, BrokerRelay
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

LANES, ROWS = 20, 5
SEND_SECONDS = 2.0


class Network(BrokerRelay):
    def drop(self) -> None:
        """Close every connection; new ones work."""
        with self._lock:
            held = self._sockets - {self._listening}
        for one in held:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class Lane:
    """Successive puts of the same rows, each with a number; every fourth deletes them."""

    name: bytes
    last: int = 0
    possible: list[int] = field(default_factory=lambda: [0])
    """Values that may be stored: the last acknowledged one, and later ones that failed."""

    async def put(self, table: PulsarTable, is_over: list[bool]) -> None:
        while not is_over:
            self.last += 1
            self.possible.append(self.last)
            value = value_of(self.last)
            try:
                await table.put({b"%s %d" % (self.name, row): value for row in range(ROWS)})
            except Fenced:
                return
            except StorageFailed:
                await after(0.05)
            else:
                self.possible = [self.last]

    def check(self, stored: list[bytes]) -> None:
        """Puts still in flight make no other value possible."""
        assert len(stored) in (0, ROWS)
        assert len(set(stored)) < 2
        self.possible = [
            number
            for number in self.possible
            if value_of(number) == (stored[0] if stored else None)
        ]
        assert self.possible


class TableProcess:
    """A process that has the table, and puts into all lanes as fast as they are acknowledged."""

    def __init__(self, table: PulsarTable, lanes: list[Lane]) -> None:
        self._is_over: list[bool] = []
        self._lanes = [Deferred.fromCoroutine(lane.put(table, self._is_over)) for lane in lanes]

    async def end(self) -> None:
        self._is_over.append(True)
        await gatherResults(self._lanes)


@pytest.fixture
def network(pulsar: Tenant) -> Iterator[Network]:
    with Network(pulsar.service_url) as between:
        yield between


@pytest.fixture
def tables(pulsar: Tenant, network: Network) -> Iterator[BrokerTables]:
    settings = pulsar.settings(service_url=network.url, send_timeout_seconds=SEND_SECONDS)
    # Small, so that a burst takes few puts and the table is compacted while it is written.
    made = BrokerTables(
        pulsar,
        replace(
            settings,
            table_burst_bytes=20_000,
            table_compaction_bytes=200_000,
            table_upkeep_seconds=0.3,
        ),
    )
    yield made
    made.close()


@pytest.mark.parametrize("turns", [12, pytest.param(200, marks=[pytest.mark.slow])])
@ensureDeferred
async def test_acknowledged_put_is_not_overwritten_by_failed_one(
    tables: BrokerTables, network: Network, turns: int
) -> None:
    chance = random.Random(turns)
    lanes = [Lane(b"%02d" % number) for number in range(LANES)]
    process = TableProcess(await tables.open(), lanes)
    for _ in range(turns):
        trouble = chance.choice(
            ["puts", "answers", "connections", "puts and connections", "none", "taken"]
        )
        if trouble == "taken":
            taken = await tables.open()
            await process.end()
            check(lanes, await until_answered(taken.items))
            process = TableProcess(taken, lanes)
            continue
        network.lost = frozenset(
            {SEND} if "puts" in trouble else {SEND_RECEIPT} if trouble == "answers" else ()
        )
        await after(chance.choice([0.2, 0.5, 1.5 * SEND_SECONDS, 2.5 * SEND_SECONDS]))
        if "connections" in trouble:
            network.drop()
        network.lost = frozenset()
    await process.end()
    check(lanes, await until_answered(tables.rows))
    assert all(lane.last > 1 for lane in lanes)


def check(lanes: list[Lane], rows: list[tuple[bytes, bytes]]) -> None:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for key, value in rows:
        found[key.split()[0]].append(value)
    for lane in lanes:
        lane.check(found[lane.name])


def value_of(number: int) -> bytes | None:
    return b"%d" % number if number % 4 else None


def after(seconds: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    reactor.callLater(seconds, over.callback, None)
    return over
