"""The topic of a table on a real broker holds little more than the rows, and never less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, task
from twisted.internet.defer import Deferred, gatherResults

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.tables.row_messages import table_topic
from storage.pulsar.tables.table_compaction import CURSOR, CompactionStatus, TableCompactor
from storage.pulsar.tables.table_loader import topic_space
from tests.storage.pulsar.broker_tables import BrokerTables
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

VALUE = b"v" * 1000
ROWS = 50
LIMIT = 200_000


@pytest.fixture
def tables(pulsar: Tenant) -> Iterator[BrokerTables]:
    made = BrokerTables(
        pulsar, pulsar.settings(table_upkeep_seconds=0.05, table_compaction_bytes=LIMIT)
    )
    yield made
    made.close()


@pytest.fixture
def admin(tables: BrokerTables) -> Iterator[PulsarAdmin]:
    made = PulsarAdmin(tables.settings, reactor)
    yield made
    settle(made.close())


def after(seconds: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    reactor.callLater(seconds, over.callback, None)
    return over


@ensureDeferred
async def test_uncompacted_rows_are_kept_without_retention(
    tables: BrokerTables,
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_compaction_bytes=1 << 40))
    assert tables.admin("GET", "/retention") == {
        "retentionTimeInMinutes": 0,
        "retentionSizeInMB": 0,
    }
    await table.put({b"a": b"1"})
    tables.move()
    await table.put({b"b": b"2"})
    tables.move()
    tables.trim()
    assert tables.admin("GET", "/compaction")["status"] == "NOT_RUN"
    assert await tables.rows() == [(b"a", b"1"), (b"b", b"2")]


@ensureDeferred
async def test_gateways_prepare_a_new_table_at_once(
    tables: BrokerTables, admin: PulsarAdmin
) -> None:
    for number in range(10):
        topic = table_topic(tables.settings, f"new {number}")
        compactors = [TableCompactor(admin, tables.settings, reactor, topic) for _ in range(8)]
        await gatherResults([Deferred.fromCoroutine(one.prepare()) for one in compactors])
        assert CURSOR in (await topic_space(admin, topic)).cursors


@ensureDeferred
async def test_namespace_quota_does_not_move_compaction_cursor(
    tables: BrokerTables,
) -> None:
    for _ in range(2):
        await tables.open()
        quotas = tables.admin("GET", "/backlogQuotaMap?applied=true")
        for kind in ("destination_storage", "message_age"):
            assert (
                quotas[kind]["limitSize"],
                quotas[kind]["limitTime"],
                quotas[kind]["policy"],
            ) == (-1, -1, "producer_request_hold")


@ensureDeferred
async def test_policies_of_an_existing_table_are_restored_by_its_upkeep(
    tables: BrokerTables,
) -> None:
    await tables.open()
    tables.admin("DELETE", "/retention")
    tables.admin("DELETE", "/backlogQuota?backlogQuotaType=message_age")
    await tables.open(settings=replace(tables.settings, table_upkeep_seconds=0.05))
    kinds = {"destination_storage", "message_age"}
    while tables.admin("GET", "/retention") is None or (
        tables.admin("GET", "/backlogQuotaMap").keys() != kinds
    ):
        await task.deferLater(reactor, 0.05)


@ensureDeferred
async def test_rewritten_table_takes_bounded_space_and_loses_no_row(
    tables: BrokerTables, admin: PulsarAdmin
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    for turn in range(100):
        rows = {b"%d" % row: b"%d " % turn + VALUE for row in range(ROWS)}
        await table.put(rows)
        if turn % 10 == 9:
            compactor = TableCompactor(
                admin, tables.settings, reactor, table_topic(tables.settings, "rows")
            )
            await compactor.prepare()
            await compactor.compact_if_due()
            tables.until_compacted()
            # Ledgers are deleted as a whole, and end after 10 minutes or when the topic moves.
            tables.move()
            # Of five million bytes in total, at most those of the last ten rounds and the compacted
            # ledger.
            assert tables.trim() < 1_000_000
    assert await tables.rows() == sorted(rows.items())


@ensureDeferred
async def test_deleted_rows_free_space(tables: BrokerTables) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    for turn in range(10):
        await table.put({b"%d %d" % (turn, row): VALUE for row in range(ROWS)})
        await table.put({b"%d %d" % (turn, row): None for row in range(ROWS)})
    tables.compact()
    tables.move()
    await table.put({b"last": b""})
    # The ledger before the current one may stay until the next trim.
    assert tables.trim() < ROWS * len(VALUE)
    assert await tables.rows() == [(b"last", b"")]


@ensureDeferred
async def test_table_is_compacted_after_byte_limit(
    tables: BrokerTables, admin: PulsarAdmin
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    compactor = TableCompactor(
        admin, tables.settings, reactor, table_topic(tables.settings, "rows")
    )
    await compactor.prepare()
    await table.put({b"a": b"1"})
    compactor.add_written(LIMIT - 1)
    await compactor.compact_if_due()
    assert tables.admin("GET", "/compaction")["status"] == "NOT_RUN"
    compactor.add_written(1)
    await compactor.compact_if_due()
    tables.until_compacted()
    before = tables.admin("GET", "/internalStats")["compactedLedger"]
    await compactor.compact_if_due()
    assert tables.admin("GET", "/compaction")["status"] == "SUCCESS"
    assert tables.admin("GET", "/internalStats")["compactedLedger"] == before


@ensureDeferred
async def test_rows_of_previous_process_count_for_compaction(
    tables: BrokerTables, admin: PulsarAdmin
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    await table.put({b"%d" % row: VALUE for row in range(LIMIT // len(VALUE) + 1)})
    compactor = TableCompactor(
        admin, tables.settings, reactor, table_topic(tables.settings, "rows")
    )
    await compactor.prepare()
    await compactor.compact_if_due()
    assert tables.admin("GET", "/compaction")["status"] != "NOT_RUN"


class LostCompactions(PulsarAdmin):
    """Loses compaction requests, as when the topic moves; `says` is the reported status."""

    asked = 0
    says: CompactionStatus | None = None

    async def get(self, path: str, kind: Any = Any) -> Any:
        return (
            self.says if self.says and kind is CompactionStatus else await super().get(path, kind)
        )

    async def put(self, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        if path.endswith("/compaction"):
            self.asked += 1
            return None
        return await super().put(path, body, content_type)


@pytest.fixture
def lost_compactions(tables: BrokerTables) -> Iterator[LostCompactions]:
    made = LostCompactions(tables.settings, reactor)
    yield made
    settle(made.close())


@ensureDeferred
async def test_lost_compaction_is_requested_again(
    tables: BrokerTables, lost_compactions: LostCompactions
) -> None:
    await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    compactor = TableCompactor(
        lost_compactions, tables.settings, reactor, table_topic(tables.settings, "rows")
    )
    await compactor.prepare()
    compactor.add_written(LIMIT)
    for times in (1, 2, 3):
        await compactor.compact_if_due()
        assert lost_compactions.asked == times
        assert tables.admin("GET", "/compaction")["status"] == "NOT_RUN"


@ensureDeferred
async def test_failed_compaction_is_logged_once_and_retried(
    tables: BrokerTables, lost_compactions: LostCompactions, caplog: pytest.LogCaptureFixture
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    await table.put({b"%d" % row: VALUE for row in range(LIMIT // len(VALUE) + 1)})
    compactor = TableCompactor(
        lost_compactions, tables.settings, reactor, table_topic(tables.settings, "rows")
    )
    await compactor.prepare()
    for times in (1, 2, 3):
        await compactor.compact_if_due()
        assert lost_compactions.asked == times
        lost_compactions.says = CompactionStatus("ERROR", "request timeout")
    lost_compactions.says = CompactionStatus("RUNNING")
    await compactor.compact_if_due()
    lost_compactions.says = CompactionStatus("SUCCESS")
    await compactor.compact_if_due()
    assert lost_compactions.asked == 3
    topic = table_topic(tables.settings, "rows")
    assert [one for one in caplog.messages if "compact" in one] == [
        f"table compaction failing, the topic grows topic={topic} reason=request timeout",
        f"table compaction recovered topic={topic}",
    ]


@ensureDeferred
async def test_compaction_finished_before_move_is_not_repeated(
    tables: BrokerTables, admin: PulsarAdmin
) -> None:
    table = await tables.open(settings=replace(tables.settings, table_upkeep_seconds=1000))
    await table.put({b"a": b"1"})
    compactor = TableCompactor(
        admin, tables.settings, reactor, table_topic(tables.settings, "rows")
    )
    await compactor.prepare()
    compactor.add_written(LIMIT)
    await compactor.compact_if_due()
    tables.until_compacted()
    tables.move()
    await compactor.compact_if_due()
    assert tables.admin("GET", "/compaction")["status"] == "NOT_RUN"


@ensureDeferred
async def test_missing_topic_is_logged_once(
    tables: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
    await tables.open()
    tables.admin("DELETE", "?force=true")
    while "the topic grows" not in caplog.text:
        await after(0.05)
    await after(0.5)
    assert caplog.text.count("the topic grows") == 1
