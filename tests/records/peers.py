"""Reads record sets with other Kafka libraries, which also verify CRCs."""

from __future__ import annotations

import aiokafka.record.memory_records
import kafka.record.memory_records

Found = tuple[
    int, int | None, int | None, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]
]
"""(offset, timestamp, timestamp type, key, value, headers)"""


def read_with_kafka_python(payload: bytes) -> list[Found]:
    """Reads all formats (snappy, and lz4 in magic 0, need python-snappy and xxhash)."""
    found: list[Found] = []
    batches = kafka.record.memory_records.MemoryRecords(payload)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        for record in batch:
            if batch.magic < 2:
                assert record.validate_crc()
            found.append(_found(record))
    return found


def read_with_aiokafka(payload: bytes) -> list[Found]:
    """Reads all formats except lz4 in magic 0."""
    found: list[Found] = []
    batches = aiokafka.record.memory_records.MemoryRecords(payload)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        found += [_found(record) for record in batch]
    return found


def _found(record: object) -> Found:
    headers = tuple(
        (name.encode() if isinstance(name, str) else name, value) for name, value in record.headers
    )
    return (
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        headers,
    )
