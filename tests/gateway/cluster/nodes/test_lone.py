"""A gateway whose store is not shared leads all shards, in a greater epoch after each start."""

from __future__ import annotations

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import Clock

from gateway.cluster.cluster_start import (
    OPEN_SECONDS,
    NodeIdentity,
    open_cluster,
)
from gateway.cluster.session_timing import SessionTiming
from gateway.cluster.shard_leadership import MAX_RETRY_SECONDS, ShardLeadership
from storage.log import StorageFailed
from tests.fakes.broker import Started, ended, open_environment
from tests.fakes.memory_store import Medium, MemoryStore


def test_all_shards_are_led_with_a_greater_epoch_after_each_start():
    medium = Medium()
    found = []
    for _ in range(3):
        env = open_environment(medium, shard_count=4)
        found.append(env.store.shards_opened)
        assert {env.broker.cluster.epoch_of(shard) for shard in range(4)} == {len(found) - 1}
        ended(env.store.close())
    assert found == [[(shard, epoch) for shard in range(4)] for epoch in range(3)]


def test_cluster_id_is_kept():
    medium = Medium()
    first = open_environment(medium)
    ended(first.store.close())
    medium.tables["cluster"][b"cluster.id"] = b"B" * 22
    assert open_environment(medium).broker.cluster.cluster_id == "B" * 22


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store():
    return MemoryStore(shard_count=2)


@pytest.fixture
def starting(store, clock):
    """The start of a gateway whose store does not open shards yet."""
    store.refuse_shards = StorageFailed("disk")
    ended(store.open())
    leadership = ShardLeadership(store, clock, ensureDeferred)
    membership = ended(
        open_cluster(
            store,
            NodeIdentity(0, {}, "test"),
            SessionTiming.of(3.0),
            clock,
            lambda: leadership,
            lambda: "A" * 22,
            pytest.fail,
        )
    )
    return Started(membership.start())


def test_start_waits_until_all_shards_are_open(store, clock, starting):
    clock.advance(1)
    assert not starting.is_done
    store.refuse_shards = None
    clock.advance(MAX_RETRY_SECONDS)
    assert starting.result is None
    assert {shard for shard, _ in store.shards_opened} == {0, 1}


def test_start_waits_at_most_a_minute_for_its_shards(store, clock, starting, caplog):
    for _ in range(int(OPEN_SECONDS)):
        assert not starting.is_done
        clock.advance(1)
    assert starting.result is None
    assert "not all groups and partitions are loaded yet" in caplog.text
    store.refuse_shards = None
    clock.advance(MAX_RETRY_SECONDS)
    assert {shard for shard, _ in store.shards_opened} == {0, 1}
