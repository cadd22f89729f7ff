"""Record sets as producers send them, built by client libraries."""

from __future__ import annotations

from collections.abc import Sequence

import aiokafka.record.default_records
import kafka.record.default_records
import kafka.record.legacy_records

from gateway.partitions.record_batch import check_batch
from records import BatchHeader

Pair = tuple[bytes | None, bytes | None]

TIME = 1_600_000_000_000


def pairs(count: int, size: int = 10) -> list[Pair]:
    return [(b"k%d" % n, b"v%d" % n + b"." * size) for n in range(count)]


def batch(
    records: int | Sequence[Pair] = 1,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    timestamp: int | None = TIME,
    is_transactional: bool = False,
) -> memoryview:
    """A v2 batch built by kafka-python, writable like the frame of a request.

    `producer` is (id, epoch, first sequence).
    """
    builder = kafka.record.default_records.DefaultRecordBatchBuilder(
        2, codec, is_transactional, *producer, 1 << 20
    )
    for offset, (key, value) in enumerate(pairs(records) if isinstance(records, int) else records):
        builder.append(offset, timestamp, key, value, [])
    return memoryview(bytearray(builder.build()))


def batch_of_aiokafka(
    records: Sequence[Pair], *, producer: tuple[int, int, int] = (-1, -1, -1), codec: int = 0
) -> memoryview:
    """A v2 batch built by aiokafka."""
    id_, epoch, sequence = producer
    builder = aiokafka.record.default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=id_,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 20,
    )
    for offset, (key, value) in enumerate(records):
        builder.append(offset, TIME, key, value, [])
    return memoryview(bytearray(builder.build()))


def old_set(
    records: int | Sequence[Pair] = 1, *, magic: int, codec: int = 0, timestamp: int | None = TIME
) -> memoryview:
    """A message set of format 0 or 1 built by kafka-python."""
    builder = kafka.record.legacy_records.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, (key, value) in enumerate(pairs(records) if isinstance(records, int) else records):
        builder.append(offset, timestamp, key, value)
    return memoryview(bytearray(builder.build()))


def checked(records: memoryview) -> tuple[memoryview, BatchHeader]:
    """The batch as the produce handler passes it to the partition."""
    return records, check_batch(records, 11)
