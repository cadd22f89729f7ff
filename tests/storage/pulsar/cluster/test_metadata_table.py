"""Tables of the whole cluster, on a metadata log in memory."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.cluster import Rows
from storage.log import Fenced, LogClosed
from storage.pulsar.cluster.metadata_table import MetadataTable
from tests.fakes.cluster_medium import MemoryProcess, SharedMedium


class TableGateways:
    """The controller and another gateway. Every operation ends within `run`."""

    def __init__(self) -> None:
        self._clock = Clock()
        medium = SharedMedium(self._clock)
        self.controller, self.other = medium.process("one"), medium.process("two")
        for process in (self.controller, self.other):
            self.run(process.log.open())
        self.run(self.controller.log.acquire(force=False))
        self.is_closed = False

    def table(self, name: str, process: MemoryProcess | None = None) -> MetadataTable:
        return MetadataTable((process or self.controller).log, name, self._check_open)

    def items(self, table: MetadataTable) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []

        async def read() -> None:
            found.extend(await table.items())

        self.run(read())
        return found

    def run(self, work: Awaitable[None]) -> None:
        """Wait for the end of `work`, and until all gateways have replayed it."""

        async def wait() -> None:
            await work

        ended = Deferred.fromCoroutine(wait())
        self._clock.pump([0.01] * 3)
        outcome: list[object] = []
        ended.addBoth(outcome.append)
        assert outcome, "it did not end"
        if outcome[0] is not None:
            outcome[0].raiseException()

    def _check_open(self) -> None:
        if self.is_closed:
            raise LogClosed("the store is closed")


@pytest.fixture
def gateways() -> TableGateways:
    return TableGateways()


def test_table_has_only_its_rows_in_key_order_on_every_gateway(gateways: TableGateways) -> None:
    # The names begin alike.
    gateways.run(gateways.table("acl").put({b"b": b"1", b"a": b"2"}))
    gateways.run(gateways.table("acls").put({b"c": b"3", b"a": b"4"}))
    gateways.run(gateways.controller.log.put({b"acl": b"no row of a table"}))
    for process in (gateways.controller, gateways.other):
        assert gateways.items(gateways.table("acl", process)) == [(b"a", b"2"), (b"b", b"1")]
        assert gateways.items(gateways.table("acls", process)) == [(b"a", b"4"), (b"c", b"3")]


def test_one_row_is_read_without_waiting(gateways: TableGateways) -> None:
    table = gateways.table("acls", gateways.other)
    gateways.run(gateways.table("acls").put({b"a": b"1", b"b": b""}))
    assert [table.get(key) for key in (b"a", b"b", b"c")] == [b"1", b"", None]
    gateways.run(gateways.table("acls").put({b"a": None}))
    assert table.get(b"a") is None


def test_watcher_has_changed_rows_of_its_table_only(gateways: TableGateways) -> None:
    changes: dict[str, list[Rows]] = {"controller": [], "other": []}
    gateways.table("acls").watch(changes["controller"].append)
    gateways.table("acls", gateways.other).watch(changes["other"].append)
    gateways.run(gateways.table("acls").put({b"a": b"1", b"b": None}))
    gateways.run(gateways.table("quotas").put({b"a": b"2"}))
    gateways.run(
        gateways.controller.log.put({b"acls\0a": None, b"quotas\0a": b"3", b"acls\0\0": b"4"})
    )
    expected = [{b"a": b"1", b"b": None}, {b"a": None, b"\0": b"4"}]
    assert changes == {"controller": expected, "other": expected}


def test_put_of_another_gateway_is_fenced(gateways: TableGateways) -> None:
    with pytest.raises(Fenced):
        gateways.run(gateways.table("acls", gateways.other).put({b"a": b"1"}))
    assert gateways.items(gateways.table("acls")) == []


@pytest.mark.parametrize("key", [b"", b"k" * 481])
def test_key_of_invalid_length_refuses_whole_put(gateways: TableGateways, key: bytes) -> None:
    table = gateways.table("acls")
    with pytest.raises(ValueError, match="1 to 480 bytes"):
        gateways.run(table.put({b"a": b"1", key: b"2"}))
    assert gateways.items(table) == []


def test_longest_key_fits_into_log_with_each_table_of_the_gateway(gateways: TableGateways) -> None:
    table = gateways.table("scram-credentials")
    gateways.run(table.put({b"k" * 480: b"1"}))
    assert gateways.items(table) == [(b"k" * 480, b"1")]


def test_table_of_closed_store_refuses_calls(gateways: TableGateways) -> None:
    table = gateways.table("acls")
    gateways.is_closed = True
    for call in (table.put({b"a": b"1"}), table.items()):
        with pytest.raises(LogClosed):
            gateways.run(call)
    assert dict(gateways.controller.log.rows) == {}
