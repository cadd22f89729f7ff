"""Hand-calculated shards."""

from __future__ import annotations

from collections import Counter

from storage.shards import name_shard, partition_shard


def test_consecutive_partitions_are_in_consecutive_shards() -> None:
    # crc32 of 16 zero bytes is 0xECBB4B55; modulo 8 that is 5.
    assert [partition_shard(bytes(16), index, 8) for index in range(4)] == [5, 6, 7, 0]


def test_shard_of_a_name_is_its_crc32() -> None:
    # The check value of CRC-32 is 0xCBF43926 for these digits; modulo 32 that is 6.
    assert name_shard("123456789", 32) == 6


def test_names_spread_over_all_shards() -> None:
    counts = Counter(name_shard(f"group-{number}", 32) for number in range(3200))
    assert len(counts) == 32
    assert max(counts.values()) < 200
