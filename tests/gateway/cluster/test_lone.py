"""A gateway alone: it leads all shards, with a greater epoch after each start."""

from __future__ import annotations

from tests.fakes.broker import ended, open_environment
from tests.fakes.memory_store import Medium


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
