"""Shards: the parts of a store that gateways lead independently of each other.

A partition with its logs and rows belongs to one shard, and so does a group with its rows. The
assignment depends only on names, ids and the number of shards, which is fixed when a store is
created.
"""

from __future__ import annotations

from zlib import crc32


def partition_shard(topic_id: bytes, partition: int, shard_count: int) -> int:
    """The shard of a partition, from 0. Consecutive partitions are in consecutive shards."""
    return (crc32(topic_id) + partition) % shard_count


def name_shard(name: str, shard_count: int) -> int:
    """The shard of a group or transactional id, from 0."""
    return crc32(name.encode()) % shard_count
