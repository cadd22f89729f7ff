"""State tables on a real broker: a process loads what the previous process put."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pulsar as client_library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from storage.log import EntryTooLarge, Fenced, LogClosed, StorageFailed
from storage.pulsar.client.pulsar_client import PulsarClient
from tests.storage.pulsar.broker_tables import BrokerTables
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

MIB = 1 << 20
ODD_KEYS = [bytes([byte]) for byte in range(256)] + [
    bytes(range(256)) + b"\xff" * 224,
    b"\xc3\xa9",
    b"k" * 480,
]


@pytest.fixture
def tables(pulsar: Tenant) -> Iterator[BrokerTables]:
    made = BrokerTables(pulsar, pulsar.settings())
    yield made
    made.close()


@ensureDeferred
async def test_new_table_is_empty(tables: BrokerTables) -> None:
    assert await tables.rows() == []


@ensureDeferred
async def test_put_is_atomic_and_items_are_in_key_order(
    tables: BrokerTables,
) -> None:
    table = await tables.open()
    await table.put({b"b": b"2", b"a": b"1", b"\xff": b"4", b"ba": b"3"})
    await table.put({b"a": None, b"b": b"", b"never there": None})
    await table.put({})
    assert (
        await table.items() == await tables.rows() == [(b"b", b""), (b"ba", b"3"), (b"\xff", b"4")]
    )


@ensureDeferred
async def test_key_may_be_any_bytes(tables: BrokerTables) -> None:
    table = await tables.open()
    rows = {key: b"of " + key for key in ODD_KEYS}
    await table.put(dict.fromkeys(ODD_KEYS, b"old"))
    await table.put(rows)
    assert await table.items() == sorted(rows.items())
    tables.compact()
    tables.move()
    assert await tables.rows() == sorted(rows.items())


@ensureDeferred
async def test_deleted_rows_stay_deleted_after_compaction(tables: BrokerTables) -> None:
    table = await tables.open()
    await table.put(dict.fromkeys(ODD_KEYS, b"old"))
    await table.put(dict.fromkeys(ODD_KEYS[1:]))
    tables.compact()
    assert await tables.rows() == [(ODD_KEYS[0], b"old")]


@ensureDeferred
async def test_batch_with_compacted_rows_is_read_without_them(
    tables: BrokerTables,
) -> None:
    table = await tables.open()
    await table.put({b"a": b"1", b"b": b"1", b"c": b""})
    await table.put({b"a": None, b"b": b"2"})
    tables.compact()
    await table.put({b"c": None, b"d": b"4"})
    assert await tables.rows() == [(b"b", b"2"), (b"d", b"4")]


@ensureDeferred
async def test_fully_compacted_table_is_empty_and_usable(
    tables: BrokerTables,
) -> None:
    table = await tables.open()
    await table.put({b"a": b"1"})
    await table.put({b"a": None})
    tables.compact()
    tables.move()
    tables.trim()
    again = await tables.open()
    assert await again.items() == []
    await again.put({b"b": b"2"})
    assert await tables.rows() == [(b"b", b"2")]


@ensureDeferred
async def test_table_is_correct_after_puts_compactions_and_moves(
    tables: BrokerTables,
) -> None:
    chance = random.Random(7)
    table, expected = await tables.open(), dict[bytes, bytes]()
    for turn in range(60):
        rows = {
            b"%d" % chance.randrange(40): chance.choice([None, b"", b"%d" % turn]) for _ in range(5)
        }
        await table.put(rows)
        expected = {key: value for key, value in {**expected, **rows}.items() if value is not None}
        if not turn % 7:
            chance.choice([tables.compact, tables.move, tables.trim])()
        if not turn % 10:
            assert await table.items() == sorted(expected.items())
    assert await tables.rows() == sorted(expected.items())


@ensureDeferred
async def test_concurrent_puts_are_stored_in_call_order(tables: BrokerTables) -> None:
    table = await tables.open()
    await gatherResults([table.put({b"k": b"%d" % n, b"only %d" % n: b""}) for n in range(500)])
    rows = dict(await tables.rows())
    assert rows[b"k"] == b"499"
    assert len(rows) == 501


@ensureDeferred
async def test_put_may_have_size_of_burst(tables: BrokerTables) -> None:
    table = await tables.open()
    most = tables.settings.table_burst_bytes
    many = {b"%08d" % number: b"v" * 20 for number in range(most // 100)}
    await gatherResults(
        [table.put({b"large": b"v" * (most - 100)}), table.put(many), table.put({b"after": b""})]
    )
    rows = dict(await tables.rows())
    assert len(rows.pop(b"large")) == most - 100
    assert rows == {**many, b"after": b""}


@ensureDeferred
async def test_put_is_one_entry_and_waiting_puts_share_entries(
    tables: BrokerTables,
) -> None:
    table = await tables.open(
        settings=replace(tables.settings, table_burst_bytes=300_000, table_rows_at_once=500)
    )
    sizes = [1, 30, 2000, 7, 3000, 400, *[3] * 100]
    await gatherResults(
        [
            table.put({b"%d.%d" % (n, row): b"v" * 10 for row in range(size)})
            for n, size in enumerate(sizes)
        ]
    )
    entries: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for key, place in tables.places().items():
        assert key
        entries[key.split(".")[0]].add(place)
    assert len(entries) == len(sizes)
    assert all(len(places) == 1 for places in entries.values())
    assert len(set.union(*entries.values())) < 10


@ensureDeferred
async def test_put_larger_than_burst_is_refused(tables: BrokerTables) -> None:
    table = await tables.open()
    with pytest.raises(EntryTooLarge, match="table_burst_bytes"):
        await table.put({b"a": b"1", b"b": b"v" * tables.settings.table_burst_bytes})
    assert await table.items() == []


@ensureDeferred
async def test_puts_stay_atomic_after_oversized_ones(
    tables: BrokerTables,
) -> None:
    table = await tables.open(
        settings=replace(tables.settings, table_burst_bytes=6 * MIB, table_rows_at_once=100_000)
    )
    many = {b"%05d" % number: b"" for number in range(9_000)}
    for _ in range(12):
        with pytest.raises(EntryTooLarge, match="nothing was stored"):
            await table.put({**many, b"large": b"v" * MIB * 5})
    await table.put({**many, b"last": b""})
    assert len(await tables.rows()) == len(many) + 1


class DroppingClient(PulsarClient):
    """Its producers drop messages above a limit in flight without an error."""

    def producer(
        self, topic: str, access: client_library.ProducerAccessMode, **limits: Any
    ) -> client_library.Producer:
        return super().producer(topic, access, **{**limits, "pending_messages": 10})


@ensureDeferred
async def test_put_with_dropped_row_fails_and_later_puts_succeed(
    tables: BrokerTables,
) -> None:
    table = await tables.open(client=DroppingClient(tables.settings, reactor))
    await table.put({b"a": b"1"})
    with pytest.raises(StorageFailed, match="did not send exactly the given rows"):
        await table.put({b"%d" % number: b"" for number in range(11)})
    await table.put({b"a": b"2"})
    await table.put({b"a": b"3", b"b": b"3"})
    rows = dict(await tables.rows())
    assert (rows[b"a"], rows[b"b"]) == (b"3", b"3")


@ensureDeferred
async def test_key_of_invalid_length_refuses_put(tables: BrokerTables) -> None:
    table = await tables.open()
    for key in (b"", b"k" * 481):
        with pytest.raises(ValueError, match="480"):
            await table.put({b"good": b"1", key: b"2"})
    assert await table.items() == []


@ensureDeferred
async def test_puts_above_queue_limit_are_refused(tables: BrokerTables) -> None:
    table = await tables.open(settings=replace(tables.settings, queue_operations=3))
    puts = [table.put({b"%d" % n: b""}) for n in range(6)]
    refused = [n for n, put in enumerate(puts) if await outcome(put) is not None]
    # The first is in flight, and three wait.
    assert refused == [4, 5]
    assert [key for key, _ in await tables.rows()] == [b"0", b"1", b"2", b"3"]


@ensureDeferred
async def test_waiting_rows_are_bounded_in_bytes(tables: BrokerTables) -> None:
    table = await tables.open(settings=replace(tables.settings, table_queue_bytes=10_000))
    puts = [table.put({b"%d" % n: b"v" * 4000}) for n in range(5)]
    assert [type(await outcome(put)) for put in puts] == [type(None)] * 3 + [StorageFailed] * 2


@ensureDeferred
async def test_close_writes_waiting_puts_and_refuses_later_ones(tables: BrokerTables) -> None:
    table = await tables.open()
    puts = [table.put({b"%d" % n: b""}) for n in range(3)]
    await table.close()
    assert [await outcome(put) for put in puts] == [None] * 3
    with pytest.raises(LogClosed):
        await table.put({b"late": b""})
    assert [key for key, _ in await tables.rows()] == [b"0", b"1", b"2"]


@ensureDeferred
async def test_reopened_table_fences_previous_writer(
    tables: BrokerTables,
) -> None:
    old = await tables.open()
    await old.put({b"a": b"old"})
    new = await tables.open()
    for _ in range(2):
        with pytest.raises(Fenced):
            await old.put({b"a": b"zombie"})
    with pytest.raises(Fenced):
        await old.items()
    await new.put({b"b": b"new"})
    assert await new.items() == [(b"a", b"old"), (b"b", b"new")]


@ensureDeferred
async def test_puts_in_flight_at_takeover_are_stored_whole_or_fenced(
    tables: BrokerTables,
) -> None:
    old = await tables.open()
    puts = [old.put({b"%d a" % n: b"", b"%d b" % n: b""}) for n in range(200)]
    found = {key for key, _ in await tables.rows()}
    for n, put in enumerate(puts):
        error = await outcome(put)
        assert error is None or isinstance(error, Fenced)
        assert (b"%d a" % n in found) == (b"%d b" % n in found)
        assert error is not None or b"%d a" % n in found


@ensureDeferred
async def test_concurrent_loads_both_succeed(tables: BrokerTables) -> None:
    table = await tables.open()
    await table.put({b"a": b"1"})
    assert (
        await gatherResults([Deferred.fromCoroutine(table.items()) for _ in range(2)])
        == [[(b"a", b"1")]] * 2
    )


@ensureDeferred
async def test_foreign_messages_are_ignored_and_logged_once(
    tables: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = await tables.open()
    await table.put({b"a": b"1"})
    await table.close()
    tables.send(
        ("a", b"not ours"),
        (None, b"without a key"),
        ("\u2603", b"\x01x"),
        ("k" * 513, b"\x01x"),
        ("\u2403", b"\x01"),
    )
    assert await tables.rows() == [(b"a", b"1")]
    (said,) = [record for record in caplog.records if "not table rows" in record.message]
    assert "count=4" in said.message


@ensureDeferred
async def test_table_may_have_any_name(tables: BrokerTables) -> None:
    names = ["Grüße", "a/b", "a.b", "x-partition-1", "lock", "%2F", "k" * 120]
    opened = {name: await tables.open(name) for name in names}
    for name, table in opened.items():
        await table.put({b"k": name.encode()})
    other = await tables.open("rows")
    assert await other.items() == []
    for name, table in opened.items():
        assert await table.items() == [(b"k", name.encode())]


async def outcome(put: object) -> Exception | None:
    try:
        await put
    except Exception as error:
        return error
    return None
