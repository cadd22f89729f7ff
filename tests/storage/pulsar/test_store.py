"""The store on a real broker, and the outcome of appends when the broker or network fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pulsar as library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from storage.log import EntryTooLarge, Fenced, LogClosed, StorageFailed, UnknownTopic
from storage.pulsar.client.exclusive_producer import FencedByOtherProducer
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.store import PulsarStore
from tests.storage.entries import bases, entry, everything, plain, sized, topic
from tests.storage.open_shards import open_with_shards
from tests.testkit.pulsar import START_SECONDS
from tests.testkit.pulsar_relay import SEND, SEND_RECEIPT, PulsarRelays
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer

Opener = Callable[[PulsarSettings], PulsarStore]
#: Shorter timeouts than a store's, but longer than a broker on a busy machine takes.
SHORT_TIMEOUTS = {
    "send_timeout_seconds": 5.0,
    "operation_timeout_seconds": 15.0,
    "admin_timeout_seconds": 15.0,
    "close_timeout_seconds": 2.0,
}


@pytest.fixture
def open_store() -> Iterator[Opener]:
    """Opens stores; they are closed after the test."""
    opened: list[PulsarStore] = []

    def open_one(settings: PulsarSettings) -> PulsarStore:
        store = PulsarStore(settings, reactor=reactor)
        settle(open_with_shards(store))
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        settle(store.close())


@pytest.fixture
def between(pulsar: Tenant) -> Iterator[PulsarRelays]:
    with PulsarRelays(pulsar.settings(**SHORT_TIMEOUTS)) as relays:
        yield relays


@pytest.fixture
def store(between: PulsarRelays, open_store: Opener) -> PulsarStore:
    """A store behind relays, with one topic."""
    made = open_store(between.settings)
    settle(made.create_topic(topic()))
    return made


@pytest.fixture
def log(store: PulsarStore) -> Any:
    return settle(store.log("orders", 0))


def path_of_partition(settings: PulsarSettings) -> str:
    return f"persistent/{settings.tenant}/{settings.namespace}/orders-partition-0"


async def failure_of(appended: Any) -> BaseException:
    try:
        await appended
    except Exception as error:
        return error
    raise AssertionError("the append succeeded")


@ensureDeferred
async def test_unacknowledged_but_stored_append_is_complete_in_next_log(store, log, between):
    await log.append([entry(0)])
    with between.dropping(SEND_RECEIPT):
        appends = [log.append([entry(1), entry(2)]), log.append([entry(3)])]
        assert [type(await failure_of(one)) for one in appends] == [Fenced, Fenced]
    again = await store.log("orders", 0)
    assert again is not log
    assert bases(await everything(again)) == [0, 1, 2, 3]
    assert again.size == sum(len(one.payload) for one in await everything(again))
    await again.append([entry(4)])
    assert bases(await everything(again)) == [0, 1, 2, 3, 4]


@ensureDeferred
async def test_retention_by_bytes_counts_bytes_left_by_prior_compaction(log):
    """Compaction leaves 11,000 of 20,000 bytes; one entry less would be below the limit."""
    for n in range(20):
        await log.append([sized(n, 1000)])
    turn = log.partition.lock
    await turn.acquire()
    replacing = Deferred.fromCoroutine(log.replace(10, 18, []))
    retaining = Deferred.fromCoroutine(log.retain(since=None, at_most_bytes=10_500))
    while len(turn.waiting) < 2:
        await deferLater(reactor, 0.01)
    turn.release()
    await gatherResults([replacing, retaining])
    assert log.size == 11_000
    assert bases(await everything(log)) == [*range(10), 19]


@ensureDeferred
async def test_ended_log_refuses_all_calls_and_notifies_watchers(store, log, between):
    await log.append([entry(0)])
    told: list[None] = []
    log.watch(lambda: told.append(None))
    with between.dropping(SEND):
        assert type(await failure_of(log.append([entry(1)]))) is Fenced
    assert told
    for call in (
        log.append([entry(1)]),
        log.read(0, 1),
        log.entry_for_time(0),
        log.delete_before(1),
        log.replace(0, 0, []),
    ):
        assert type(await failure_of(call)) is Fenced
    with pytest.raises(Fenced):
        log.read_resident(0, 1)


@ensureDeferred
async def test_reopened_log_keeps_epoch_of_its_shard_and_start_of_that_epoch(
    store, log, between, pulsar
):
    await log.append([entry(0, 5)])
    with between.dropping(SEND):
        await failure_of(log.append([entry(5)]))
    again = await store.log("orders", 0)
    assert again is not log
    await again.append([entry(5, 3)])
    await store.close()
    # The next leader of the shard has the next epoch, which begins at the log end.
    settings = between.settings
    next_store = PulsarStore(settings, reactor=reactor)
    await open_with_shards(next_store)
    next_log = await next_store.log("orders", 0)
    await next_log.append([entry(8)])
    assert (log.leader_epoch, again.leader_epoch, next_log.leader_epoch) == (0, 0, 1)
    assert again.partition.row.epochs == ((0, 0), (0, 5, 1))
    assert [next_log.end_offset_for_epoch(epoch) for epoch in (0, 1, 2)] == [
        (0, 8),
        (1, 9),
        (-1, -1),
    ]
    assert bases(await everything(next_log)) == [0, 5, 8]
    await next_store.close()


@ensureDeferred
async def test_fenced_store_takes_partition_back_without_loss(store, log, between, pulsar):
    await log.append([entry(0)])
    client = library.Client(
        pulsar.service_url, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    full_name = path_of_partition(between.settings).replace("persistent/", "persistent://", 1)
    other = await deferToThread(
        client.create_producer,
        full_name,
        access_mode=library.ProducerAccessMode.ExclusiveWithFencing,
    )
    assert type(await failure_of(log.append([entry(1)]))) is FencedByOtherProducer
    again = await store.log("orders", 0)
    await again.append([entry(again.next_offset)])
    with pytest.raises(library.PulsarException):
        await deferToThread(other.send, b"too late")
    assert bases(await everything(again)) == [0, 1]
    await deferToThread(client.close)


@ensureDeferred
async def test_messages_of_other_writers_get_no_offset(store, log, between, pulsar):
    await log.append([entry(0)])
    await store.close()
    client = library.Client(
        pulsar.service_url, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    producer = await deferToThread(
        client.create_producer,
        path_of_partition(between.settings).replace("persistent/", "persistent://", 1),
    )
    await deferToThread(producer.send, b"of another writer")
    await deferToThread(client.close)
    again = PulsarStore(between.settings, reactor=reactor)
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    await reopened.append([entry(1)])
    assert bases(await everything(reopened)) == [0, 1]
    await again.close()


@ensureDeferred
async def test_topic_deleted_in_pulsar_is_unknown(store, log, between, pulsar):
    await log.append([entry(0)])
    settings = between.settings
    await deferToThread(
        pulsar.admin,
        "DELETE",
        f"persistent/{settings.tenant}/{settings.namespace}/orders/partitions?force=true",
    )
    assert isinstance(await failure_of(log.append([entry(1)])), Fenced | LogClosed)
    with pytest.raises(UnknownTopic):
        await store.log("orders", 0)
    assert "orders" not in store.topics


@ensureDeferred
async def test_terminated_topic_refuses_appends(store, log, between, pulsar):
    await log.append([entry(0)])
    await deferToThread(pulsar.admin, "POST", f"{path_of_partition(between.settings)}/terminate")
    assert type(await failure_of(log.append([entry(1)]))) is LogClosed
    with pytest.raises(LogClosed):
        await store.log("orders", 0)


@ensureDeferred
async def test_concurrent_opens_share_one_log(store):
    asked = [Deferred.fromCoroutine(store.log("orders", 0)) for _ in range(5)]
    logs = [await one for one in asked]
    assert all(one is logs[0] for one in logs)
    assert logs[0].leader_epoch == 0


@ensureDeferred
async def test_log_is_not_returned_if_topic_is_deleted_while_opening(store):
    opening = Deferred.fromCoroutine(store.log("orders", 0))
    await store.delete_topic("orders")
    with suppress(UnknownTopic, StorageFailed):
        # It may have been open before the topic was deleted.
        assert (await opening).status.end_reason is not None
    assert "orders" not in store.topics
    # Nothing is left in the broker that would conflict with the next topic.
    await store.create_topic(topic())
    again = await store.log("orders", 0)
    await again.append([entry(0)])
    assert bases(await again.read(0, 1)) == [0]


@ensureDeferred
async def test_second_delete_spares_topic_recreated_under_same_name(
    store,
):
    await store.create_topic(topic("bills", 2))
    opening = Deferred.fromCoroutine(store.log("bills", 0))
    deleting = Deferred.fromCoroutine(store.delete_topic("bills"))
    for call in (lambda: store.delete_topic("bills"), lambda: store.log("bills", 1)):
        with pytest.raises(StorageFailed, match="being deleted"):
            await call()
    await deleting
    with suppress(UnknownTopic, StorageFailed):
        await opening
    await store.create_topic(topic("bills", 2))
    await (await store.log("bills", 0)).append([entry(0)])


@ensureDeferred
async def test_replaced_controller_takes_no_partition(pulsar):
    settings = pulsar.settings()
    old, new = PulsarStore(settings, reactor=reactor), PulsarStore(settings, reactor=reactor)
    try:
        await open_with_shards(old)
        await old.create_topic(topic())
        assert not old.may_be_lost
        await open_with_shards(new, takeover=True)
        log = await new.log("orders", 0)
        await log.append([entry(0)])
        with pytest.raises(Fenced):
            await (await old.table("any")).put({b"a": b"1"})
        assert old.may_be_lost
        for call in (old.confirm_held(), old.log("orders", 0), old.open_shard(0, 100)):
            with pytest.raises(Fenced, match="may not write any more"):
                await call
        await log.append([entry(1)])
        assert (log.status.end_reason, await new.log("orders", 0) is log) == (None, True)
    finally:
        await new.close()
        await old.close()


@ensureDeferred
async def test_oversized_append_is_refused_and_log_continues(log):
    with pytest.raises(EntryTooLarge):
        await log.append([sized(0, 5 << 20)])
    await log.append([sized(0, (5 << 20) - 1024)])
    assert [len(one.payload) for one in await log.read(0, 1)] == [(5 << 20) - 1024]


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("assumed", [1 << 20, 9 << 20])
@ensureDeferred
async def test_message_limit_is_read_from_broker_configuration(pulsar, assumed, checks):
    # maxMessageSize is 5 MiB; the default assumption is too small or too large.
    store = PulsarStore(
        pulsar.settings(message_bytes=assumed, checks_at_start=checks), reactor=reactor
    )
    await open_with_shards(store)
    try:
        await store.create_topic(topic())
        log = await store.log("orders", 0)
        await log.append([sized(0, (5 << 20) - 1024)])
        with pytest.raises(EntryTooLarge, match="5241856"):
            await log.append([sized(1, (5 << 20) - 1023)])
    finally:
        await store.close()


@ensureDeferred
async def test_close_stores_end_offsets_of_partitions_concurrently(store, monkeypatch):
    count = 5
    await store.create_topic(topic("bills", count))
    for index in range(count):
        await (await store.log("bills", index)).append([entry(0)])
    begun = 0
    begun_before_each_answer = []

    def recording(put):
        def recording_put(rows):
            nonlocal begun
            begun += 1
            return put(rows).addCallback(lambda _: begun_before_each_answer.append(begun))

        return recording_put

    for shard in store._led._shards.values():
        monkeypatch.setattr(shard.rows, "put", recording(shard.rows.put))
    await store.close()
    assert begun_before_each_answer == [count] * count


@ensureDeferred
async def test_close_ends_in_time_without_pulsar(between):
    hour = 3600.0
    settings = replace(
        between.settings,
        send_timeout_seconds=hour,
        operation_timeout_seconds=hour,
        admin_timeout_seconds=hour,
    )
    store = PulsarStore(settings, reactor=reactor)
    await open_with_shards(store)
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([entry(0)])
    between.close()
    failing = Deferred.fromCoroutine(failure_of(log.append([entry(1)])))
    # At most ten steps, each with a timeout; ten times that on a busy machine. Waiting for Pulsar
    # would take an hour.
    await Deferred.fromCoroutine(store.close()).addTimeout(
        10 * 10 * settings.close_timeout_seconds, reactor
    )
    assert isinstance(await failing.addTimeout(60, reactor), LogClosed | Fenced)


@ensureDeferred
async def test_open_fails_in_time_without_pulsar(between):
    between.close()
    store = PulsarStore(between.settings, reactor=reactor)
    with pytest.raises(StorageFailed):
        await open_with_shards(store)
    await store.close()


@ensureDeferred
async def test_in_flight_appends_are_bounded_and_refused_ones_not_stored(between):
    store = PulsarStore(replace(between.settings, queue_operations=3), reactor=reactor)
    await open_with_shards(store)
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([entry(0)])
    with between.dropping(SEND):
        appends = [log.append([entry(n)]) for n in (1, 2, 3)]
        with pytest.raises(StorageFailed, match="queue_operations"):
            await log.append([entry(4)])
        assert log.next_offset == 4
        for one in appends:
            assert type(await failure_of(one)) is Fenced
    await store.close()


@pytest.mark.slow
@pytest.mark.timeout(1000)
@ensureDeferred
async def test_killed_broker_neither_loses_nor_repeats_appends_in_flight(restartable_pulsar):
    broker = restartable_pulsar
    tenant = broker.tenant()
    # A broker on a busy machine may need three starts.
    store = PulsarStore(tenant.settings(send_timeout_seconds=3 * START_SECONDS), reactor=reactor)
    await open_with_shards(store)
    await store.create_topic(topic())
    log = await store.log("orders", 0)
    await log.append([entry(0)])
    appends = [log.append([sized(n, 2000)]) for n in range(1, 500)]
    await appends.pop(20)
    await deferToThread(broker.kill)
    appends += [log.append([sized(n, 2000)]) for n in range(500, 600)]
    await deferToThread(broker.launch)
    for one in appends:
        await one
    expected = plain([entry(0), *(sized(n, 2000) for n in range(1, 600))])
    assert plain(await everything(log)) == expected
    await store.close()
    again = PulsarStore(
        tenant.settings(
            namespace=store.settings.namespace,
            metadata_namespace=store.settings.metadata_namespace,
        ),
        reactor=reactor,
    )
    await open_with_shards(again)
    reopened = await again.log("orders", 0)
    assert (reopened.start_offset, reopened.end_offset, reopened.size) == (
        0,
        600,
        7 + 599 * 2000,
    )
    assert plain(await everything(reopened)) == expected
    await again.close()
