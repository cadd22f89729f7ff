"""Stores from before there were shards: their rows are moved when the store is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, cast

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import Fenced, StateTable, StorageFailed
from storage.pulsar.admin.admin_api import NotFound, PulsarAdmin
from storage.pulsar.cluster.metadata_table import MetadataTable
from storage.pulsar.log.partition_rows import (
    TABLE,
    PartitionRow,
    encode_row,
    load_partitions,
    partition_key,
)
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.shard_migration import (
    SHARDS_AT_ONCE,
    ShardMigration,
    bursts,
    greatest_epoch,
)
from storage.pulsar.store import PulsarStore
from storage.pulsar.tables.shard_tables import shard_topic
from storage.pulsar.tables.table import PulsarTable
from tests.fakes.broker import Started
from tests.storage.open_shards import open_as_controller
from tests.storage.pulsar.broker_tables import BrokerTables
from tests.testkit.tenant import Tenant

TOPIC = b"t" * 16
#: crc32 of the topic id is 0xDE5A9193, so partition 0 is in shard 1 of 3, partition 1 in shard 2.
PARTITION_ROWS = {
    partition_key(TOPIC, 0): encode_row(PartitionRow(1, 2, 3, ((4, 0), (6, 5)))),
    partition_key(TOPIC, 1): encode_row(PartitionRow(epochs=((9, 0),))),
    partition_key(TOPIC, 1) + bytes(8): b"replaced range",
}


ACLS = {b"a": b"1", b"\0\xff": b"", b"k" * 480: b"2"}


def first_digit(table: str, key: bytes, count: int) -> int:
    """The shard of a test's row: the number with which its key begins."""
    return int(key[:1]) % count


@pytest.fixture
def settings(pulsar: Tenant) -> PulsarSettings:
    return pulsar.settings(shards=3)


@pytest.fixture
def old_tables(pulsar: Tenant, settings: PulsarSettings) -> Iterator[BrokerTables]:
    """Opens tables as an earlier version did; closed after the test."""
    tables = BrokerTables(pulsar, settings)
    yield tables
    tables.close()


async def fill_old_tables(tables: BrokerTables) -> None:
    partition = dict(list(PARTITION_ROWS.items())[:2])
    for name, rows in {
        TABLE: partition,
        "groups": {b"0a": b"group a", b"1b": b"group b", b"no number": b"?"},
        "offsets": {b"2\0x": b"offset", b"1\xff": b""},
        "cluster": {b"cluster.id": b"Zqe1Z7LeQ9S0bN2bWm8sQg", b"leader.epoch": b"\0\0\0\x07"},
        "acls": ACLS,
    }.items():
        await (await tables.open(name)).put(rows)


async def put_old(tables: BrokerTables, rows: Mapping[bytes, bytes | None]) -> None:
    """Put these rows to a table whose rows move to shards, and to one of the whole cluster."""
    for name in ("groups", "acls"):
        await (await tables.open(name)).put(rows)


async def stored(store: PulsarStore, name: str) -> list[list[tuple[bytes, bytes]]]:
    """The rows of a table in each shard."""
    for shard in range(store.shard_count):
        await store.open_shard(shard, store.first_epoch)
    return [
        await (await store.shard_table(shard, name)).items() for shard in range(store.shard_count)
    ]


async def check(store: PulsarStore) -> None:
    assert (store.shard_count, store.first_epoch) == (3, 10)
    assert await stored(store, "groups") == [[(b"0a", b"group a")], [(b"1b", b"group b")], []]
    assert await stored(store, "offsets") == [[], [(b"1\xff", b"")], [(b"2\0x", b"offset")]]
    # The cluster keeps its id.
    cluster = dict(await (await store.table("cluster")).items())
    assert cluster[b"cluster.id"] == b"Zqe1Z7LeQ9S0bN2bWm8sQg"
    assert await (await store.table("acls")).items() == sorted(ACLS.items())
    assert await (await store.table("client-quotas")).items() == []
    first, second, _ = PARTITION_ROWS.items()
    assert await stored(store, TABLE) == [[], [first], [second]]


@pytest.mark.peer
@ensureDeferred
async def test_rows_of_old_tables_are_moved_into_shards_once(old_tables, settings):
    await fill_old_tables(old_tables)
    for _ in range(2):
        store = PulsarStore(settings, reactor=reactor, shard_of_row=first_digit)
        await open_as_controller(store)
        await check(store)
        await store.close()
    # An earlier version refuses the old rows.
    table = await old_tables.open(TABLE)
    with pytest.raises(ValueError):
        load_partitions(table, await table.items())


@pytest.mark.peer
@ensureDeferred
async def test_migration_that_ended_halfway_is_repeated(old_tables, settings, monkeypatch):
    await fill_old_tables(old_tables)
    await put_old(old_tables, {b"1 deleted later": b"row"})
    store = PulsarStore(settings, reactor=reactor, shard_of_row=first_digit)
    put = MetadataTable.put

    def fails(table: MetadataTable, rows: Any) -> Any:
        if b"shards" in rows:
            raise StorageFailed("the last step failed")
        return put(table, rows)

    monkeypatch.setattr(MetadataTable, "put", fails)
    with pytest.raises(StorageFailed, match="last step"):
        await open_as_controller(store)
    monkeypatch.undo()
    # Meanwhile an earlier version ran, and deleted rows.
    await put_old(old_tables, {b"1 deleted later": None})
    again = PulsarStore(settings, reactor=reactor, shard_of_row=first_digit)
    await open_as_controller(again)
    await check(again)
    await again.close()


@pytest.mark.peer
@ensureDeferred
async def test_old_data_is_opened_with_a_greater_epoch(old_tables, settings):
    await fill_old_tables(old_tables)
    store = PulsarStore(settings, reactor=reactor, shard_of_row=first_digit)
    await open_as_controller(store)
    states = {}
    for shard in range(3):
        await store.open_shard(shard, store.first_epoch)
        states.update(store._led._shards[shard].partitions)
    assert states[partition_key(TOPIC, 0)].row == PartitionRow(1, 2, 3, ((4, 0), (6, 5)))
    await store.close()


class StoreOfNextController:
    """Tables as another controller left them after its migration; old rows are in TABLE."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes | None]] = {
            **{shard_topic(shard): {b"new": b"row"} for shard in range(SHARDS_AT_ONCE + 2)},
            TABLE: dict(PARTITION_ROWS),
        }
        self.opened: list[str] = []

    async def get(self, path: str, kind: Any) -> None:
        if TABLE not in path:
            raise NotFound("no topic", 404, "no topic")

    def table(self, name: str) -> PulsarTable:
        return cast(PulsarTable, TableOfNextController(self, name))

    async def confirm(self) -> None:
        # This process loses its role while it opens the first shard.
        if self.opened[1:] == [shard_topic(0)]:
            raise Fenced("another process has taken over the store")


class TableOfNextController:
    def __init__(self, store: StoreOfNextController, name: str) -> None:
        self._store = store
        self._name = name

    async def open(self) -> None:
        self._store.opened.append(self._name)

    async def items(self) -> list[tuple[bytes, bytes | None]]:
        return list(self._store.rows.get(self._name, {}).items())

    async def put(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._store.rows.setdefault(self._name, {}).update(rows)

    async def close(self) -> None:
        pass


def test_rows_of_a_later_controller_are_not_replaced_by_old_ones() -> None:
    store = StoreOfNextController()
    before = deepcopy(store.rows)
    migration = ShardMigration(
        PulsarSettings("pulsar://nowhere", "http://nowhere", shards=SHARDS_AT_ONCE + 2),
        cast(PulsarAdmin, store),
        store.table,
        None,
        store.confirm,
    )
    running = Started(migration.run(cast(StateTable, store.table("layout")), store.table))
    with pytest.raises(Fenced):
        assert running.result
    assert store.rows == before
    # The shards that were not opened are not fenced.
    assert len(store.opened) <= 1 + SHARDS_AT_ONCE


def test_greatest_epoch_is_that_of_any_partition() -> None:
    assert greatest_epoch(PARTITION_ROWS) == 9
    assert greatest_epoch({}) == -1
    with pytest.raises(StorageFailed, match="_partitions"):
        greatest_epoch({bytes(20): b"x"})


def test_bursts_have_all_rows_within_the_limit() -> None:
    # A row takes 2 * 1 + 36 + 64 = 102 bytes.
    rows = {b"%d" % n: bytes(36) for n in range(7)}
    parts = list(bursts(rows, 300))
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert {key: row for part in parts for key, row in part.items()} == rows
    assert list(bursts({b"a": bytes(1000)}, 300)) == [{b"a": bytes(1000)}]
