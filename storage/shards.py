"""Shards: the parts of a store that gateways lead independently of each other.

A partition's logs and rows, and the rows of a group, belong to one shard. The assignment depends on
nothing but names, ids and the number of shards, which is fixed when a store is created.
"""

from __future__ import annotations

from zlib import crc32


def partition_shard(topic_id: bytes, partition: int, shard_count: int) -> int:
    """The shard of a partition. Consecutive partitions of a topic are in different shards."""
    return (crc32(topic_id) + partition) % shard_count


def name_shard(name: str, shard_count: int) -> int:
    """The shard of a group or transactional id."""
    return crc32(name.encode()) % shard_count
