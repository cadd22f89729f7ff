"""State tables, of a store and of its shards: rows in key order, set and deleted atomically."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.log import LogClosed, StorageFailed, Store
from tests.contract.benches import Bench
from tests.storage.open_shards import open_with_shards


@ensureDeferred
async def test_new_table_is_empty(store: Store) -> None:
    assert await (await store.table("groups")).items() == []


@ensureDeferred
async def test_rows_are_in_key_order(store: Store) -> None:
    table = await store.table("groups")
    await table.put({b"b": b"2", b"a": b"1", b"\xff": b"4", b"ba": b"3"})
    assert await table.items() == [(b"a", b"1"), (b"b", b"2"), (b"ba", b"3"), (b"\xff", b"4")]


@ensureDeferred
async def test_one_put_sets_and_deletes(store: Store) -> None:
    table = await store.table("groups")
    await table.put({b"a": b"1", b"b": b"2"})
    await table.put({b"a": None, b"b": b"", b"c": b"3", b"never there": None})
    assert await table.items() == [(b"b", b""), (b"c", b"3")]


@ensureDeferred
async def test_puts_in_flight_are_stored_in_call_order(store: Store) -> None:
    table = await store.table("groups")
    puts = [table.put({b"k": b"%d" % n, b"only %d" % n: b""}) for n in range(50)]
    for put in puts:
        await put
    rows = dict(await table.items())
    assert rows[b"k"] == b"49"
    assert len(rows) == 51


@ensureDeferred
async def test_tables_are_separate(store: Store) -> None:
    one, two = await store.table("one"), await store.table("two")
    await one.put({b"k": b"1"})
    await two.put({b"k": b"2"})
    assert await one.items() == [(b"k", b"1")]
    assert await two.items() == [(b"k", b"2")]


@ensureDeferred
async def test_table_is_the_same_object_at_each_call(store: Store) -> None:
    assert await store.table("groups") is await store.table("groups")


@ensureDeferred
async def test_keys_of_480_bytes_and_large_values_are_accepted(store: Store) -> None:
    table = await store.table("groups")
    await table.put({b"k" * 480: b"v" * 1_000_000})
    assert await table.items() == [(b"k" * 480, b"v" * 1_000_000)]


@pytest.mark.parametrize("key", [b"", b"k" * 481])
@ensureDeferred
async def test_key_of_invalid_length_refuses_whole_put(store: Store, key: bytes) -> None:
    table = await store.table("groups")
    with pytest.raises(ValueError):
        await table.put({b"good": b"1", key: b"2"})
    assert await table.items() == []


@ensureDeferred
async def test_rows_survive_restart(store: Store, bench: Bench) -> None:
    await (await store.table("one")).put({b"a": b"1", b"b": b"2"})
    await (await store.table("two")).put({b"c": b"3"})
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    assert await (await again.table("one")).items() == [(b"a", b"1"), (b"b", b"2")]
    assert await (await again.table("two")).items() == [(b"c", b"3")]
    await again.close()


@ensureDeferred
async def test_refused_put_changes_no_row(store: Store, bench: Bench) -> None:
    table = await store.table("groups")
    await table.put({b"a": b"1"})
    with bench.refusing_writes(), pytest.raises(StorageFailed):
        await table.put({b"a": b"2", b"b": b"2"})
    assert await table.items() == [(b"a", b"1")]
    await table.put({b"a": b"3"})
    assert await table.items() == [(b"a", b"3")]


@ensureDeferred
async def test_put_to_closed_store_is_refused(store: Store) -> None:
    table = await store.table("groups")
    await store.close()
    with pytest.raises(LogClosed):
        await table.put({b"a": b"1"})


@ensureDeferred
async def test_table_of_shard_is_the_same_object_at_each_call(store: Store) -> None:
    assert await store.shard_table(0, "groups") is await store.shard_table(0, "groups")


@ensureDeferred
async def test_tables_of_one_name_in_different_places_are_independent(store: Store) -> None:
    last = store.shard_count - 1
    tables = [await store.shard_table(0, name) for name in ("one", "two")]
    tables += [await store.table("three")]
    tables += [await store.shard_table(last, "one")] if last else []
    for number, table in enumerate(tables):
        await table.put({b"k": b"%d" % number})
    rows = [await table.items() for table in tables]
    assert rows == [[(b"k", b"%d" % number)] for number in range(len(tables))]


@ensureDeferred
async def test_rows_of_shard_survive_restart(store: Store, bench: Bench) -> None:
    table = await store.shard_table(0, "groups")
    await table.put({b"a": b"1", b"b": b"2", b"k" * 480: b"3"})
    await table.put({b"a": None, b"\0": b"4"})
    expected = [(b"\0", b"4"), (b"b", b"2"), (b"k" * 480, b"3")]
    assert await table.items() == expected
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    assert await (await again.shard_table(0, "groups")).items() == expected
    await again.close()


@ensureDeferred
async def test_rows_put_after_opening_are_among_all_later_items(store: Store, bench: Bench) -> None:
    await (await store.shard_table(0, "groups")).put({b"a": b"1", b"b": b"1"})
    await store.close()
    again = bench.store()
    await open_with_shards(again)
    table = await again.shard_table(0, "groups")
    await table.put({b"b": b"2", b"c": b"2"})
    for _ in range(2):
        assert await table.items() == [(b"a", b"1"), (b"b", b"2"), (b"c", b"2")]
    await again.close()


@pytest.mark.parametrize("key", [b"", b"k" * 481])
@ensureDeferred
async def test_key_of_invalid_length_is_refused_in_shard(store: Store, key: bytes) -> None:
    table = await store.shard_table(0, "groups")
    with pytest.raises(ValueError):
        await table.put({b"good": b"1", key: b"2"})
    assert await table.items() == []
