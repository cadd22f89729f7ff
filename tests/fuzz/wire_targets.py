"""Fuzz targets: the compiled parsers of requests, compared with those in Python.

A compiled parser may leave any input to Python. What it returns must be equal. A target raises if
there is a defect.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import error, pack
from types import ModuleType
from typing import Any
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest as CodecFetch
from kafka.protocol.producer.produce import ProduceRequest as CodecProduce

from gateway.net.framing import FrameSplitter
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import KafkaError, Refused
from gateway.protocol.wire import compiled
from gateway.protocol.wire.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch,
)
from gateway.protocol.wire.header import RequestHeader, read_header
from gateway.protocol.wire.messages import FIRST_FLEXIBLE_VERSION
from gateway.protocol.wire.produce_codec import (
    PartitionRecords,
    ProduceRequest,
    TopicRecords,
    read_produce,
)
from records import BatchHeader
from tests.fuzz.records_targets import repaired
from tests.records.record_sets import batch, pairs

PRODUCE_VERSIONS = 14
FETCH_VERSIONS = 19
MOST_PARTITIONS = 1024

#: What `FrameSplitter` and the codecs use of the compiled module.
_PARSERS = ("batch", "fetch_request", "frames", "header", "request")

extension: ModuleType | None
try:
    extension = importlib.import_module("gateway.protocol.wire._plain")
except ImportError:
    extension = None


@contextmanager
def _in_python() -> Iterator[None]:
    """Without the compiled parsers."""
    used = {name: getattr(compiled, name) for name in _PARSERS}
    for name in _PARSERS:
        setattr(compiled, name, lambda *_: None)
    try:
        yield
    finally:
        for name, function in used.items():
            setattr(compiled, name, function)


def _read(function: Callable[..., Any], *arguments: object) -> Any:
    """The result of the Python implementation, None if it refuses the input."""
    with _in_python():
        try:
            return function(*arguments)
        except (Refused, KafkaError, ValueError, IndexError, OverflowError, error):
            return None


def produce(content: bytes, version: int) -> None:
    assert extension is not None
    version %= PRODUCE_VERSIONS
    frame = bytearray(content)
    expected = repair_records(frame, 0, version)
    found = extension.request(
        frame, 0, version, ProduceRequest, TopicRecords, PartitionRecords, BatchHeader
    )
    if extension.plain_produce(frame, 0, version, MOST_PARTITIONS) is not None:
        assert found is not None
    if found is None:
        return
    assert expected is not None
    assert _without_topics(found) == _without_topics(expected)
    for ours, theirs in zip(found.topics, expected.topics, strict=True):
        assert ours.topic == theirs.topic
        for sent, same in zip(ours.partitions, theirs.partitions, strict=True):
            assert (sent.index, sent.records) == (same.index, same.records)
            assert sent.batch is None or sent.batch == _read(check_batch, same.records, version)


def repair_records(frame: bytearray, position: int, version: int) -> ProduceRequest | None:
    """Set valid checksums in the records of a request. Returns it; None if it is refused."""
    request: ProduceRequest | None = _read(read_produce, frame, position, version)
    for topic in request.topics if request else ():
        for sent in topic.partitions:
            if sent.records is not None:
                sent.records[:] = repaired(bytes(sent.records))
    return request


def _without_topics(request: ProduceRequest) -> tuple[object, ...]:
    return request.version, request.transactional_id, request.acks, request.timeout_ms


def fetch(content: bytes, version: int) -> None:
    assert extension is not None
    version %= FETCH_VERSIONS
    frame = bytearray(content)
    found = extension.fetch_request(frame, 0, version, FetchRequest, FetchTopic, FetchPartition)
    assert found is None or found == _read(read_fetch, frame, 0, version)


def header(content: bytes, _: int) -> None:
    assert extension is not None
    frame = bytearray(content)
    found = extension.header(frame, FIRST_FLEXIBLE_VERSION, RequestHeader)
    assert found is None or found == _read(read_header, frame, FIRST_FLEXIBLE_VERSION)


def frames(content: bytes, limit: int) -> None:
    """The frames of a chunk, and whether a length in it is refused."""
    ours, theirs = FrameSplitter(limit), FrameSplitter(limit)
    found, expected = ours.feed(content), _read(theirs.feed, content)
    assert found == expected
    assert (ours.partial_bytes, ours.refusal) == (theirs.partial_bytes, theirs.refusal)


def one_batch(content: bytes, version: int) -> None:
    assert extension is not None
    records = repaired(content)
    found = extension.batch(records, version % PRODUCE_VERSIONS, BatchHeader)
    assert found is None or found == _read(
        check_batch, memoryview(records), version % PRODUCE_VERSIONS
    )


_PARSED: tuple[Callable[[bytes, int], None], ...] = (produce, fetch, header, frames, one_batch)


def requests(payload: bytes) -> None:
    """The first byte selects the parser, the second the version or the largest frame."""
    if len(payload) < 2 or extension is None:
        return
    _PARSED[payload[0] % len(_PARSED)](payload[2:], payload[1])


TARGETS: dict[str, Callable[[bytes], None]] = {"requests": requests}


def seeds() -> list[bytes]:
    """Requests of each version, a header, frames and a batch, with the two selecting bytes."""
    records = bytes(batch(pairs(2), producer=(12, 3, 40)))
    found = [
        bytes((0, version)) + produce_body(version, records) for version in range(PRODUCE_VERSIONS)
    ]
    found += [bytes((1, version)) + fetch_body(version) for version in range(FETCH_VERSIONS)]
    found += [
        bytes((2, 0)) + pack(">hhih", key, version, 7, 3) + b"app\0" + bytes(8)
        for key, version in ((0, 3), (0, 9), (1, 12), (18, 3))
    ]
    found.append(bytes((3, 40)) + pack(">i", 9) + bytes(9) + pack(">i", 0) + pack(">i", 5) + b"ab")
    found += [bytes((4, version)) + records for version in (3, 9)]
    return found


def produce_body(version: int, records: bytes) -> bytes:
    topic = CodecProduce.TopicProduceData
    rows = [
        topic(
            version=version,
            name=None if version >= 13 else "orders",
            topic_id=UUID(int=1) if version >= 13 else None,
            partition_data=[
                topic.PartitionProduceData(index=index, records=records) for index in range(2)
            ],
        )
    ]
    request = CodecProduce(version=version, acks=-1, timeout_ms=1500, topic_data=rows)
    return bytes(request.encode(version=version))


def fetch_body(
    version: int,
    *,
    index: int = 1,
    leader_epoch: int = 3,
    offset: int = 1 << 40,
    session: tuple[int, int] = (77, 5),
) -> bytes:
    topic = {"topic_id": UUID(int=1)} if version >= 13 else {"topic": "orders"}
    asked = CodecFetch.FetchTopic.FetchPartition(
        partition=index,
        current_leader_epoch=leader_epoch,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    request = CodecFetch(
        version=version,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[CodecFetch.FetchTopic(partitions=[asked], **topic)],
        forgotten_topics_data=[CodecFetch.ForgottenTopic(partitions=[1, 7], **topic)]
        if version >= 7
        else [],
        **({"rack_id": "rack"} if version >= 11 else {}),
    )
    return bytes(request.encode(version=version))
