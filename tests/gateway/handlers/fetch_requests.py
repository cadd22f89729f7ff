"""Fetch requests of any version for handler tests, and what a consumer reads from the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kafka.record.memory_records

from gateway import handlers as handlers  # importing them routes them
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionFetched,
    write_fetch_response,
)
from storage.log import Entry
from tests.fakes.broker import BrokerEnvironment, Started
from tests.records import sample_records
from tests.records.sample_records import Sample

LARGE = 1 << 30


def request(
    version: int,
    partitions: Sequence[FetchPartition] = (),
    *,
    topic: str | bytes = "orders",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = LARGE,
    session: tuple[int, int] = (0, -1),
    forgotten: Sequence[int] = (),
    isolation_level: int = 0,
) -> FetchRequest:
    topics = [FetchTopic(topic, partitions)] if partitions else []
    gone = [(topic, forgotten)] if forgotten else []
    return FetchRequest(
        version, -1, max_wait_ms, min_bytes, max_bytes, isolation_level, *session, topics, gone
    )


def start_fetch(env: BrokerEnvironment, asked: FetchRequest) -> Started:
    """Start the handler of the request's version."""
    route = ROUTES[ApiKey.FETCH, asked.version]

    async def serve() -> Any:
        return await route.handler(asked, env.caller(asked.version))

    return Started(serve())


def rows(response: FetchResponse) -> dict[tuple[str | bytes, int], PartitionFetched]:
    return {(topic, row.index): row for topic, partitions in response.topics for row in partitions}


def from_offset(offset: int, index: int = 0, max_bytes: int = LARGE) -> FetchPartition:
    return FetchPartition(index, offset, max_bytes)


def payload(row: PartitionFetched) -> bytes:
    return b"".join(map(bytes, row.records))


def encoded(response: FetchResponse, version: int) -> bytes:
    return b"".join(map(bytes, write_fetch_response(response, version)))


@dataclass
class Consumed:
    """Records that a consumer reads from one reply, and its next fetch offset."""

    records: list[tuple[int, bytes | None, bytes | None]]
    next_offset: int


def consume(records: bytes, offset: int) -> Consumed:
    """Read records like a client.

    Records below the offset and control batches are skipped. The next offset follows the last
    batch.
    """
    found = []
    position = offset
    batches = kafka.record.memory_records.MemoryRecords(records)
    while batches.has_next():
        batch: Any = batches.next_batch()
        assert batch.validate_crc()
        if not (batch.magic == 2 and batch.is_control_batch):
            for record in batch:
                if record.offset >= offset:
                    found.append((record.offset, record.key, record.value))
                    position = max(position, record.offset + 1)
        if batch.magic == 2:
            position = max(position, batch.base_offset + batch.last_offset_delta + 1)
    return Consumed(found, position)


def stored_entry(base_offset: int, last_offset: int, raw: bytes) -> Entry:
    return Entry(base_offset, last_offset, 5, raw)


def control_batch(offset: int) -> Entry:
    marker = Sample(offset, 5, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return stored_entry(
        offset, offset, sample_records.batch([marker], attributes=0x30, producer=(1, 0, -1))
    )


def batch_entry(base_offset: int, count: int, size: int = 20) -> Entry:
    """A stored v2 batch."""
    records = [Sample(base_offset + n, 5, b"k", b"v" * size) for n in range(count)]
    return stored_entry(base_offset, base_offset + count - 1, sample_records.batch(records))
