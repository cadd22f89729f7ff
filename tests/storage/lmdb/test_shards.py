"""Shards of the embedded store, which no other process can lead."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.lmdb import LmdbStore
from storage.log import LogClosed
from storage.shards import partition_shard
from tests.storage.entries import entry, topic

SHARDS = 4


@ensureDeferred
async def test_closed_shard_is_reopened_with_its_rows_and_a_new_epoch(tmp_path) -> None:
    store = LmdbStore(tmp_path / "store", reactor=reactor, shard_count=SHARDS)
    await store.open()
    orders = topic(partitions=2)
    await store.create_topic(orders)
    gone = partition_shard(orders.topic_id, 0, SHARDS)
    await store.open_shard(gone, 1)
    log, other = await store.log("orders", 0), await store.log("orders", 1)
    appending = log.append([entry(0)])
    await store.close_shard(gone)
    await appending
    with pytest.raises(LogClosed):
        await log.append([entry(1)])
    await other.append([entry(0)])
    await store.open_shard(gone, 5)
    again = await store.log("orders", 0)
    assert (again.end_offset, again.leader_epoch, other.leader_epoch) == (1, 5, 0)
    # Nothing of an earlier epoch was ever truncated.
    assert [again.end_offset_for_epoch(epoch) for epoch in (1, 5, 6)] == [(1, 1), (5, 1), (-1, -1)]
    await store.close()


@ensureDeferred
async def test_tables_of_shards_are_independent(tmp_path) -> None:
    store = LmdbStore(tmp_path / "store", reactor=reactor, shard_count=SHARDS)
    await store.open()
    first, second = await store.shard_table(0, "rows"), await store.shard_table(1, "rows")
    await first.put({b"k": b"1"})
    assert (await first.items(), await second.items()) == ([(b"k", b"1")], [])
    # The only shard of an older store had this table.
    assert await store.shard_table(0, "rows") is await store.table("rows")
    await store.close()
