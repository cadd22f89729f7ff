"""Helpers for compacted topics: produce, compact, and consume with every record format."""

from __future__ import annotations

from typing import Any

from compat.message_sets import check_message_set
from gateway.compaction import LogCleaner
from gateway.partitions.partition import Partition
from gateway.partitions.record_batch import check_batch
from tests.fakes.broker import BrokerEnvironment, ended
from tests.gateway.handlers import fetch_requests
from tests.records.record_sets import TIME, Pair, batch, old_set

#: One Fetch version for each format that a consumer can read.
FETCH_VERSIONS = (1, 3, 12)

#: (format, codec) that kafka-python can write: none, gzip, snappy, lz4 (format 0 has its own
#: variant), zstd.
FORMATS = (
    (0, 0),
    (0, 1),
    (0, 2),
    (1, 0),
    (1, 1),
    (1, 2),
    (1, 3),
    (2, 0),
    (2, 1),
    (2, 2),
    (2, 3),
    (2, 4),
)

Seen = list[tuple[int, bytes | None, bytes | None]]


def table(env: BrokerEnvironment, name: str = "orders", partitions: int = 1, **configs: str) -> Any:
    """Create a topic in which all but the last entry is cleanable, unless `configs` differ."""
    return env.topic(
        name,
        partitions,
        **{
            "cleanup_policy": "compact",
            "segment_bytes": "14",
            "min_cleanable_dirty_ratio": "0",
            **configs,
        },
    )


def put(
    env: BrokerEnvironment,
    *records: Pair,
    written: tuple[int, int] = (2, 0),
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp: int | None = TIME,
    topic: str = "orders",
) -> int:
    """Store these in one request; return the offset of the first."""
    magic, codec = written
    partition = env.partition(topic)
    if magic == 2:
        made = batch(records, codec=codec, producer=producer, timestamp=timestamp)
        return int(
            ended(partition.append_batch(made, check_batch(made, 11), env.now())).base_offset
        )
    made = old_set(records, magic=magic, codec=codec, timestamp=timestamp)
    checked = check_message_set(made, max_decompressed_bytes=1 << 20)
    return int(ended(partition.append_message_set(made, checked, env.now())).base_offset)


def close(env: BrokerEnvironment, topic: str = "orders") -> None:
    """Append a record with a separate key, so that the previous last entry becomes cleanable."""
    put(env, (b"the last", b"entry"), topic=topic)


def compact(env: BrokerEnvironment, **limits: int) -> None:
    """Run a newly started cleaner once."""
    ended(LogCleaner(env.broker, **limits).run_once())
    assert not env.bugs


def consume(
    env: BrokerEnvironment,
    version: int = 12,
    offset: int = 0,
    max_bytes: int = fetch_requests.LARGE,
) -> Seen:
    """Return all records from `offset` on, as a consumer of this Fetch version reads them."""
    found: Seen = []
    end = env.partition().log.end_offset
    offset = max(offset, env.partition().log.start_offset)
    fetches_without_records = 0
    while offset < end:
        asked = fetch_requests.request(
            version, [fetch_requests.from_offset(offset, max_bytes=max_bytes)]
        )
        (row,) = fetch_requests.rows(fetch_requests.start_fetch(env, asked).result).values()
        assert row.error_code == 0
        got = fetch_requests.consume(fetch_requests.payload(row), offset)
        # Long ranges without records take several requests.
        fetches_without_records = 0 if got.next_offset > offset else fetches_without_records + 1
        assert fetches_without_records < 5, f"stuck at {offset}"
        found += got.records
        offset = got.next_offset
    return found


def values(seen: Seen) -> list[tuple[int, bytes | None]]:
    """Return offsets and values, without the record of `close`."""
    return [(offset, value) for offset, key, value in seen if key != b"the last"]


def sizes(partition: Partition) -> list[int]:
    return [
        len(entry.payload)
        for entry in ended(partition.log.read(partition.log.start_offset, fetch_requests.LARGE))
    ]
