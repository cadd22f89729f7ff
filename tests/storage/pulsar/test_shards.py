"""Shards of stores on a real broker: fencing, leader epochs, and handover to another process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList

from storage.bridge import sleep
from storage.log import Fenced, LogClosed, ShardNotOpen, StorageFailed
from storage.pulsar.admin.admin_api import NotFound
from storage.pulsar.compaction.side_topic import side_topic_name
from storage.pulsar.log.partition_rows import TABLE, partition_key
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.store import PulsarStore
from storage.pulsar.topics.pulsar_names import path_of
from storage.shards import partition_shard
from tests.storage.entries import bases, entry, everything, topic
from tests.storage.open_shards import open_as_controller
from tests.testkit.settle import settle, until
from tests.testkit.tenant import Tenant

pytestmark = pytest.mark.peer


@pytest.fixture
def settings(pulsar: Tenant) -> PulsarSettings:
    return pulsar.settings(shards=2)


@pytest.fixture
def first(settings: PulsarSettings) -> Iterator[PulsarStore]:
    """An open store with the topic `orders`, whose partitions 0 and 1 are in different shards."""
    store = PulsarStore(settings, reactor=reactor)
    settle(open_as_controller(store))
    settle(store.create_topic(topic("orders", 2)))
    yield store
    settle(store.close())


@pytest.fixture
def second(first: PulsarStore, settings: PulsarSettings) -> Iterator[PulsarStore]:
    """Another open store on the same cluster, not the controller; both may write."""
    store = PulsarStore(settings, reactor=reactor)
    settle(store.open())
    for one in (first, store):
        one.may_write = lambda: True
    yield store
    settle(store.close())


def shard_of(store: PulsarStore, index: int) -> int:
    return partition_shard(store.topics["orders"].topic_id, index, 2)


@ensureDeferred
async def test_nothing_of_a_closed_shard_is_served(first):
    with pytest.raises(ShardNotOpen):
        await first.log("orders", 0)
    with pytest.raises(ShardNotOpen):
        await first.shard_table(0, "groups")
    await first.open_shard(shard_of(first, 0), 3)
    log = await first.log("orders", 0)
    table = await first.shard_table(shard_of(first, 0), "groups")
    with pytest.raises(ShardNotOpen):
        await first.log("orders", 1)
    await first.close_shard(shard_of(first, 0))
    for call in (log.append([entry(0)]), log.read(0, 1), table.put({b"a": b"1"}), table.items()):
        with pytest.raises(LogClosed):
            await call
    with pytest.raises(ShardNotOpen):
        await first.log("orders", 0)


@ensureDeferred
async def test_unknown_shard_is_refused(first):
    with pytest.raises(ValueError, match="no shard 2"):
        await first.open_shard(2, 0)


@ensureDeferred
async def test_process_that_opens_a_shard_fences_it_and_no_other(first, second):
    lost: list[int] = []
    first.when_shard_lost(lambda shard, reason: lost.append(shard))
    taken, kept = shard_of(first, 0), shard_of(first, 1)
    for shard in (taken, kept):
        await first.open_shard(shard, 1)
    table = await first.shard_table(taken, "groups")
    logs = [await first.log("orders", index) for index in range(2)]
    for log in logs:
        await log.append([entry(0)])
    await table.put({b"a": b"1"})
    await second.open_shard(taken, 2)
    assert await (await second.shard_table(taken, "groups")).items() == [(b"a", b"1")]
    with pytest.raises(Fenced):
        await table.put({b"a": b"2"})
    assert lost == [taken]
    assert isinstance(logs[0].status.end_reason, LogClosed)
    with pytest.raises(ShardNotOpen):
        await first.log("orders", 0)
    await logs[1].append([entry(1)])
    assert await first.log("orders", 1) is logs[1]


@ensureDeferred
async def test_next_leader_knows_the_partitions_that_were_written_to(first, second):
    shard, topic_id = shard_of(first, 0), first.topics["orders"].topic_id
    await first.open_shard(shard, 1)
    log = await first.log("orders", 0)
    assert first.written_partitions(shard) == []
    await log.append([entry(0)])
    assert first.written_partitions(shard) == []
    await second.open_shard(shard, 2)
    assert second.written_partitions(shard) == [(topic_id, 0)]
    # Nothing is written in epoch 2.
    await second.log("orders", 0)
    await first.open_shard(shard, 3)
    assert first.written_partitions(shard) == [(topic_id, 0)]
    assert first.written_partitions(1 - shard) == []


@ensureDeferred
async def test_closed_shard_continues_elsewhere_without_loss_or_gap(first, second):
    shard = shard_of(first, 0)
    await first.open_shard(shard, 1)
    log = await first.log("orders", 0)
    appends = [log.append([entry(n)]) for n in range(50)]
    await appends.pop(0)
    await first.close_shard(shard)
    for one in appends:
        await one
    # The reserved offset of the row is the end offset: a trimmed partition continues there.
    assert log.partition.row.reserved == 50
    await second.open_shard(shard, 4)
    again = await second.log("orders", 0)
    await again.append([entry(50)])
    assert bases(await everything(again)) == list(range(51))
    assert again.leader_epoch == 4
    assert again.end_offset_for_epoch(1) == (1, 50)
    assert again.end_offset_for_epoch(4) == (4, 51)


@ensureDeferred
async def test_shard_with_another_epoch_is_closed_and_reopened(first):
    shard = shard_of(first, 0)
    await first.open_shard(shard, 1)
    log = await first.log("orders", 0)
    await log.append([entry(0)])
    await first.open_shard(shard, 2)
    assert isinstance(log.status.end_reason, LogClosed)
    again = await first.log("orders", 0)
    assert (again.leader_epoch, again.next_offset) == (2, 1)


@ensureDeferred
async def test_partition_written_in_greater_epoch_is_not_opened(first):
    shard = shard_of(first, 0)
    await first.open_shard(shard, 5)
    await (await first.log("orders", 0)).append([entry(0)])
    await first.close_shard(shard)
    await first.open_shard(shard, 4)
    with pytest.raises(StorageFailed, match="written with leader epoch 5, greater than 4"):
        await first.log("orders", 0)


@ensureDeferred
async def test_nothing_is_written_if_process_may_not_write_after_fencing(first, second):
    shard = shard_of(first, 0)
    answers = [True, False]
    second.may_write = lambda: answers.pop(0)
    with pytest.raises(Fenced):
        await second.open_shard(shard, 1)
    answers += [True, True, True, False]
    await second.open_shard(shard, 1)
    with pytest.raises(Fenced):
        await second.log("orders", 0)
    assert answers == []
    # The producers were closed: the other process is not fenced by opening them again.
    await first.open_shard(shard, 2)
    log = await first.log("orders", 0)
    await log.append([entry(0)])
    assert bases(await everything(log)) == [0]


@ensureDeferred
async def test_topic_is_deleted_once_no_gateway_can_create_it_again(
    first, second, pulsar, monkeypatch
):
    """The broker creates topics automatically. Another gateway is about to open a reader of one
    partition, and a producer of the other one.
    """
    namespace = f"namespaces/{second.settings.tenant}/{second.settings.namespace}"
    automatic = {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
    pulsar.admin("POST", f"{namespace}/autoTopicCreation", automatic)

    async def all_replayed() -> None:
        revision = first.medium.log.revision
        while second.applied_revision < revision:
            await sleep(reactor, 0.05)

    first.lead(all_replayed)
    for index in range(2):
        await second.open_shard(shard_of(first, index), 1)
    log = await second.log("orders", 0)
    await log.append([entry(0)])
    may_connect, waiting = threading.Event(), []

    def when_permitted(connect: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any, **more: Any) -> Any:
            waiting.append(connect)
            may_connect.wait(60)
            return connect(*given, **more)

        return wait

    for name in ("bulk_reader", "partition_producer"):
        monkeypatch.setattr(second._client, name, when_permitted(getattr(second._client, name)))
    connecting = [
        Deferred.fromCoroutine(log.position_of(0)),
        Deferred.fromCoroutine(second.log("orders", 1)),
    ]
    deleting = None
    try:
        await until(lambda: len(waiting) == 2)
        deleting = Deferred.fromCoroutine(first.delete_topic("orders"))
        await until(lambda: "orders" not in second.topics)
        assert second.applied_revision < second.medium.log.revision
        assert not deleting.called
    finally:
        may_connect.set()
        await DeferredList(connecting, consumeErrors=True)
    await deleting
    listed = f"persistent/{second.settings.tenant}/{second.settings.namespace}"
    for path in (listed, f"{listed}/partitioned"):
        assert [name for name in pulsar.admin("GET", path) if "orders" in name] == []


@ensureDeferred
async def test_number_of_shards_is_fixed(first, settings, caplog):
    await first.close()
    again: Any = PulsarStore(replace(settings, shards=7), reactor=reactor)
    await open_as_controller(again)
    assert (again.shard_count, again.first_epoch) == (2, 0)
    assert [
        record.getMessage() for record in caplog.records if "shards" in record.getMessage()
    ] == ["this store was created with 2 shards; offsets_shards=7 is ignored"]
    await again.close()


@ensureDeferred
async def test_opened_shard_drops_what_topics_left_that_were_deleted_while_it_was_closed(
    first, second
):
    shard = shard_of(first, 0)
    key = partition_key(first.topics["orders"].topic_id, 0)
    await second.open_shard(shard, 1)
    log = await second.log("orders", 0)
    await log.append([entry(0)])
    await second._side_topics.create(key, 0)
    await log.partition.change(written=1)
    await second.close_shard(shard)
    await first.delete_topic("orders")
    await second.medium.log.wait_for(first.medium.log.revision)
    side_topic = path_of(side_topic_name(second.settings, key, 0))
    await second._admin.get(f"{side_topic}/stats", Any)
    await second.open_shard(shard, 2)
    rows = await second.shard_table(shard, TABLE)
    for _ in range(100):
        if not await rows.items():
            break
        await sleep(reactor, 0.1)
    else:
        pytest.fail("the rows of the partition are still there")
    with pytest.raises(NotFound):
        await second._admin.get(f"{side_topic}/stats", Any)
