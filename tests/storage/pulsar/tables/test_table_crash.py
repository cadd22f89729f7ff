"""A process is killed while it puts many rows."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

import pytest
from pytest_twisted import ensureDeferred

from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.broker_tables import BrokerTables
from tests.storage.pulsar.row_writer import LANES, ROWS
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


@pytest.fixture
def tables(pulsar: Tenant) -> Iterator[BrokerTables]:
    made = BrokerTables(pulsar, pulsar.settings())
    yield made
    made.close()


def write_and_kill(settings: PulsarSettings, run: str, after: int) -> dict[str, int]:
    """The last acknowledged put of each lane, by a writer killed after `after` acknowledgements."""
    where = (
        settings.service_url,
        settings.admin_url,
        settings.metadata_tenant,
        settings.metadata_namespace,
    )
    command = [sys.executable, "-m", "tests.storage.pulsar.row_writer", *where, run]
    told: dict[str, int] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        lines = list(islice(process.stdout, after))
        process.kill()
        lines += list(process.stdout)
        errors = process.stderr.read()
    assert len(lines) >= after, errors
    for line in lines:
        if line.endswith("\n"):
            _, lane, number = line.split()
            told[lane] = int(number)
    return told


@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=[pytest.mark.slow])])
@ensureDeferred
async def test_acknowledged_puts_survive_crash_and_no_put_is_torn(
    tables: BrokerTables, rounds: int
) -> None:
    chance = random.Random(rounds)
    told: dict[str, int] = {}
    for turn in range(rounds):
        told |= write_and_kill(tables.settings, f"{turn}", chance.randrange(1, 1500))
    found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, value in await tables.rows():
        lane, number, _ = key.decode().split()
        assert int(value) == int(number)
        found[lane][int(number)] += 1
    assert len(found) <= LANES * rounds
    for puts in found.values():
        last = max(puts)
        assert puts == dict.fromkeys(range(max(last - 1, 0), last + 1), ROWS)
    for lane, number in told.items():
        # At most one more was in flight.
        assert max(found[lane]) in (number, number + 1)
