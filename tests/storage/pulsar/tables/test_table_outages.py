"""A table whose broker hangs, is killed, or does not support topic policies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, threads
from twisted.internet.defer import Deferred, DeferredList

from storage.log import StorageFailed
from tests.legacy_clients.brokers import are_required
from tests.storage.pulsar.broker_tables import BrokerTables, until_answered
from tests.testkit.cache import CannotInstall
from tests.testkit.pulsar import Pulsar, distribution

pytestmark = pytest.mark.peer

SEND_SECONDS = 5.0
#: Limit of two bursts; each waits for SEND_SECONDS.
BOTH_SECONDS = 10 * 2 * SEND_SECONDS
LANES = 20


def tables_on(broker: Pulsar) -> BrokerTables:
    tenant = broker.tenant()
    return BrokerTables(tenant, tenant.settings(send_timeout_seconds=SEND_SECONDS))


@pytest.fixture
def tables(restartable_pulsar: Pulsar) -> Iterator[BrokerTables]:
    made = tables_on(restartable_pulsar)
    yield made
    made.close()


@pytest.fixture
def tables_without_policies() -> Iterator[BrokerTables]:
    try:
        distribution()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with Pulsar.start(topicLevelPoliciesEnabled="false") as broker:
        made = tables_on(broker)
        yield made
        made.close()


@ensureDeferred
async def test_puts_fail_in_time_while_broker_hangs_and_succeed_after(
    restartable_pulsar: Pulsar, tables: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = await tables.open()
    await until_answered(lambda: table.put({b"a": b"before"}))
    # A put made while the previous one is completed would join its burst.
    await after(0)
    caplog.clear()
    restartable_pulsar.pause()
    try:
        # The first is one burst, the others are the next.
        puts = [table.put({b"a": b"meanwhile", b"b": b"meanwhile"}) for _ in range(3)]
        ended = DeferredList(puts, consumeErrors=True).addTimeout(BOTH_SECONDS, reactor)
        for is_stored, failure in await ended:
            assert not is_stored
            assert failure.check(StorageFailed)
            assert "unknown" in str(failure.value)
    finally:
        restartable_pulsar.resume()
    await until_answered(lambda: table.put({b"a": b"after"}))
    said = [
        record.message
        for record in caplog.records
        if record.name == "storage.pulsar.tables.table_writer"
    ]
    assert [("unknown" in one, "again" in one) for one in said] == [(True, False), (False, True)]
    rows = dict(await until_answered(table.items))
    assert rows[b"a"] == b"after"
    assert rows.get(b"b") in (None, b"meanwhile")


@pytest.mark.slow
@ensureDeferred
async def test_killed_broker_loses_no_acknowledged_row(
    restartable_pulsar: Pulsar, tables: BrokerTables
) -> None:
    table = await tables.open()
    told: dict[int, int] = {}
    is_over: list[bool] = []

    async def put_for_ever(lane: int) -> None:
        number = 0
        while not is_over:
            number += 1
            try:
                await table.put(
                    {b"%02d a" % lane: b"%d" % number, b"%02d b" % lane: b"%d" % number}
                )
            except StorageFailed:
                continue
            told[lane] = number

    lanes = [Deferred.fromCoroutine(put_for_ever(lane)) for lane in range(LANES)]
    await after(0.5)
    restartable_pulsar.kill()
    at_the_kill = dict(told)
    await threads.deferToThread(restartable_pulsar.launch)
    while any(told.get(lane, 0) <= at_the_kill.get(lane, 0) for lane in range(LANES)):
        await after(0.05)
    is_over.append(True)
    for lane in lanes:
        await lane
    rows = dict(await until_answered(tables.rows))
    for lane in range(LANES):
        assert rows[b"%02d a" % lane] == rows[b"%02d b" % lane]
        assert int(rows[b"%02d a" % lane]) >= told[lane]


@pytest.mark.slow
@ensureDeferred
async def test_table_works_without_topic_policies_and_logs_warning(
    tables_without_policies: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
    tables = tables_without_policies
    table = await tables.open()
    assert caplog.text.count("topic policies not set") == 1
    await until_answered(lambda: table.put({b"a": b"1"}))
    tables.compact()
    tables.move()
    assert await until_answered(tables.rows) == [(b"a", b"1")]


def after(seconds: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    reactor.callLater(seconds, over.callback, None)
    return over
