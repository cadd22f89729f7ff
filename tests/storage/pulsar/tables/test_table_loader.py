"""Loading a table that is compacted or moved during the load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import StorageFailed
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_loader import ATTEMPTS
from tests.storage.pulsar.broker_tables import BrokerTables
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


class InterruptedReader:
    """A reader that runs a function after its first message."""

    def __init__(self, reader: Any, happens: Callable[[], None]) -> None:
        self._reader = reader
        self._happens: Callable[[], None] | None = happens

    def read_next(self, timeout: int) -> Any:
        message = self._reader.read_next(timeout)
        if self._happens:
            self._happens()
            self._happens = None
        return message

    def close(self) -> None:
        self._reader.close()


class InterruptedClient(PulsarClient):
    """Interrupts its first `times` readers."""

    def __init__(self, settings: PulsarSettings, happens: Callable[[], None], times: int) -> None:
        super().__init__(settings, reactor)
        self._happens = happens
        self.left = times
        self.readers = 0

    def reader(self, *given: Any, **named: Any) -> Any:
        self.readers += 1
        reader = super().reader(*given, **named)
        if not self.left:
            return reader
        self.left -= 1
        return InterruptedReader(reader, self._happens)


@pytest.fixture
def tables(pulsar: Tenant) -> Iterator[BrokerTables]:
    made = BrokerTables(pulsar, replace(pulsar.settings(), table_reader_messages=1))
    yield made
    made.close()


async def put_and_delete(tables: BrokerTables) -> None:
    """Put the row `a`, many others, and the deletion of `a`, far behind the row."""
    table = await tables.open()
    await table.put({b"a": b"1"})
    for row in range(200):
        await table.put({b"other %d" % row: b"v" * 1000})
    await table.put({b"a": None})


@ensureDeferred
async def test_row_deleted_and_compacted_during_load_stays_deleted(
    tables: BrokerTables,
) -> None:
    await put_and_delete(tables)
    client = InterruptedClient(tables.settings, tables.compact, 1)
    rows = dict(await (await tables.open(client=client)).items())
    assert client.left == 0
    assert len(rows) == 200
    assert b"a" not in rows


@ensureDeferred
async def test_load_fails_if_every_read_meets_compaction(
    tables: BrokerTables,
) -> None:
    await put_and_delete(tables)
    table = await tables.open(client=InterruptedClient(tables.settings, tables.compact, ATTEMPTS))
    with pytest.raises(StorageFailed, match="was compacted or moved"):
        await table.items()
    assert len(await table.items()) == 200


@ensureDeferred
async def test_table_that_moves_during_load_is_read_completely(
    tables: BrokerTables,
) -> None:
    """The table must be read again.

    A reader that reconnects within the compacted data may continue after it, since its position is
    in trimmed ledgers.
    """
    table = await tables.open()
    for row in range(200):
        await table.put({b"row %d" % row: b"v" * 1000})
    tables.compact()
    tables.move()
    await table.put({b"last": b"v"})
    tables.trim()
    client = InterruptedClient(tables.settings, tables.move, 1)
    rows = dict(await (await tables.open(client=client)).items())
    assert client.left == 0
    assert client.readers == 2
    assert len(rows) == 201
