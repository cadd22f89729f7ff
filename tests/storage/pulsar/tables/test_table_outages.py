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
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

SEND_SECONDS = 5.0
#: Limit of two bursts; each waits for SEND_SECONDS.
BOTH_SECONDS = 10 * 2 * SEND_SECONDS
LANES = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Pulsar]:
    try:
        distribution()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with Pulsar.start(topicLevelPoliciesEnabled="false") as started:
        yield started


@pytest.fixture
def tenant(broker: Pulsar) -> Tenant:
    return broker.tenant()


@pytest.fixture
def tables(tenant: Tenant) -> Iterator[BrokerTables]:
    made = BrokerTables(tenant, tenant.settings(send_timeout_seconds=SEND_SECONDS))
    yield made
    made.close()


@ensureDeferred
async def test_puts_fail_in_time_while_broker_hangs_and_succeed_after(
    broker: Pulsar, tables: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = await tables.open()
    await until_answered(lambda: table.put({b"a": b"before"}))
    # A put made while the previous one is completed would join its burst.
    await after(0)
    caplog.clear()
    broker.pause()
    try:
        # The first is one burst, the others are the next.
        puts = [table.put({b"a": b"meanwhile", b"b": b"meanwhile"}) for _ in range(3)]
        ended = DeferredList(puts, consumeErrors=True).addTimeout(BOTH_SECONDS, reactor)
        for is_stored, failure in await ended:
            assert not is_stored
            assert failure.check(StorageFailed)
            assert "unknown" in str(failure.value)
    finally:
        broker.resume()
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


@ensureDeferred
async def test_killed_broker_loses_no_acknowledged_row(
    broker: Pulsar, tables: BrokerTables
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
    broker.kill()
    at_the_kill = dict(told)
    await threads.deferToThread(broker.launch)
    while any(told.get(lane, 0) <= at_the_kill.get(lane, 0) for lane in range(LANES)):
        await after(0.05)
    is_over.append(True)
    for lane in lanes:
        await lane
    rows = dict(await until_answered(tables.rows))
    for lane in range(LANES):
        assert rows[b"%02d a" % lane] == rows[b"%02d b" % lane]
        assert int(rows[b"%02d a" % lane]) >= told[lane]


@ensureDeferred
async def test_table_works_without_topic_policies_and_logs_warning(
    tables: BrokerTables, caplog: pytest.LogCaptureFixture
) -> None:
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
