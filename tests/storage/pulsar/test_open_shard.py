"""The partitions of a shard that its former leader wrote to."""

from __future__ import annotations

from typing import Any

from storage.pulsar.log.partition_rows import (
    Epochs,
    PartitionRow,
    PartitionState,
    partition_key,
)
from storage.pulsar.open_shard import LedShard

TOPIC = bytes(range(16))
NOTHING: Any = None


def written(leader_epoch: int, *epochs: Epochs) -> list[int]:
    """Indexes of the partitions; `epochs` has those of partition 0, 1 and so on."""
    keys = [partition_key(TOPIC, index) for index in range(len(epochs))]
    partitions = {
        key: PartitionState(NOTHING, key, PartitionRow(epochs=one))
        for key, one in zip(keys, epochs, strict=True)
    }
    shard = LedShard(3, leader_epoch, NOTHING, NOTHING, partitions)
    found = shard.written_before()
    assert all(topic_id == TOPIC for topic_id, _ in found)
    return [index for _, index in found]


def test_partitions_of_the_last_epoch_with_writes_were_in_use():
    assert written(9, ((5, 0), (7, 10)), ((5, 0),), ((7, 0),), ()) == [0, 2]


def test_writes_of_this_leader_do_not_count():
    assert written(9, ((7, 0), (9, 10)), ((7, 0), (9, 3, 1)), ((6, 0),), ((9, 0),)) == [0, 1]


def test_new_shard_has_none():
    assert written(9) == []
    assert written(9, (), ((9, 0),)) == []
