"""The compiled codec functions: used for common input, with the same results as in Python."""

from __future__ import annotations

from struct import error, pack_into
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest as CodecFetch
from kafka.protocol.producer.produce import ProduceRequest as CodecRequest
from msgspec import structs

from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import KafkaError, Refused
from gateway.protocol.wire import compiled
from gateway.protocol.wire.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionFetched,
    read_fetch,
    write_fetch_response,
)
from gateway.protocol.wire.header import read_header
from gateway.protocol.wire.leader_fields import NodeEndpoint
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    read_produce,
)
from records import HEADER_BYTES, BatchHeader, stamp_batch
from tests.gateway.protocol.wire.implementations import unavailable, use
from tests.records.record_sets import batch, pairs

FIRST_FLEXIBLE = {0: 9}
VERSIONS = range(14)
FETCH_VERSIONS = range(19)

BATCH = bytes(batch(pairs(3), producer=(12, 3, 40)))

Topic = CodecRequest.TopicProduceData
Partition = Topic.PartitionProduceData


@pytest.fixture(autouse=True)
def implementation(monkeypatch):
    use("cython", monkeypatch)


def produce_body(version, topics=2, partitions=2, records=b"records"):
    rows = [
        Topic(
            version=version,
            name=f"topic-{number}" if version < 13 else None,
            topic_id=None if version < 13 else UUID(int=number + 1),
            partition_data=[Partition(index=index, records=records) for index in range(partitions)],
        )
        for number in range(topics)
    ]
    return bytes(
        CodecRequest(version=version, acks=-1, timeout_ms=30_000, topic_data=rows).encode(
            version=version
        )
    )


def in_python(function, *arguments):
    """The result of the Python implementation, None if it refuses the input."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("batch", "fetch_reply", "fetch_request", "header", "request"):
            patch.setattr(compiled, name, unavailable)
        try:
            return function(*arguments)
        except (Refused, KafkaError, ValueError, IndexError, OverflowError, error):
            return None


def read_compiled(frame, version):
    return compiled.request(
        frame, 0, version, ProduceRequest, TopicRecords, PartitionRecords, BatchHeader
    )


def fetch_body(version, topics=2, partitions=2, rack_id="rack-1"):
    def named(number):
        if version >= 13:
            return {"topic_id": UUID(int=number + 1)}
        return {"topic": f"topic-{number}"}

    fields = {"rack_id": rack_id} if version >= 11 else {}
    asked = [
        CodecFetch.FetchTopic.FetchPartition(
            partition=index,
            current_leader_epoch=3 + index,
            fetch_offset=1 << 40 | index,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        for index in range(partitions)
    ]
    forgotten = [CodecFetch.ForgottenTopic(partitions=[1, 7], **named(9))]
    return CodecFetch(
        version=version,
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=1,
        session_id=77,
        session_epoch=5,
        topics=[
            CodecFetch.FetchTopic(partitions=asked, **named(number)) for number in range(topics)
        ],
        forgotten_topics_data=forgotten if version >= 7 else [],
        **fields,
    ).encode(version=version)


def read_fetch_compiled(frame, version):
    return compiled.fetch_request(frame, 0, version, FetchRequest, FetchTopic, FetchPartition)


def unchecked(request):
    """A request without the headers that compiled code adds; each must be that of `check_batch`."""
    if request is None:
        return None
    topics = []
    for topic in request.topics:
        rows = []
        for sent in topic.partitions:
            if sent.batch is not None:
                assert sent.batch == in_python(check_batch, sent.records, request.version)
            rows.append(PartitionRecords(sent.index, sent.records))
        topics.append(TopicRecords(topic.topic, rows))
    return structs.replace(request, topics=topics)


@pytest.mark.parametrize("version", VERSIONS)
def test_common_produce_requests_are_read_by_compiled_code(version):
    frame = bytearray(produce_body(version))
    found = read_compiled(frame, version)
    assert found is not None
    assert found == in_python(read_produce, frame, 0, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_of_common_requests_are_checked_while_they_are_read(version):
    records = bytes(batch(pairs(3), producer=(12, 3, 40)))
    frame = bytearray(produce_body(version, records=records))
    found = read_compiled(frame, version)
    for topic in found.topics:
        for sent in topic.partitions:
            assert sent.batch == (check_batch(sent.records, version) if version >= 3 else None)
    assert unchecked(found) == in_python(read_produce, frame, 0, version)


def test_only_some_mib_of_a_request_are_checked_while_it_is_read():
    """The peer may not even be authorized to write."""
    records = bytes(batch([(b"", bytes(1_500_000))]))
    frame = bytearray(produce_body(9, records=records))
    found = read_compiled(frame, 9)
    checked = [sent.batch is not None for topic in found.topics for sent in topic.partitions]
    assert checked == [True, True, False, False]
    assert unchecked(found) == in_python(read_produce, frame, 0, 9)


@pytest.mark.parametrize(("size", "is_expected"), [(1_000_000, True), (1_500_000, False)])
def test_only_requests_of_some_mib_are_served_at_once(size, is_expected):
    records = bytes(batch([(b"", bytes(size))]))
    frame = bytearray(produce_body(9, records=records))
    found = compiled.plain_produce(frame, 0, 9, 100)
    assert (found is not None) == is_expected


@pytest.mark.parametrize("rack_id", ["", "rack-1"])
@pytest.mark.parametrize("topics", [0, 1, 2])
@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_common_fetch_requests_are_read_by_compiled_code(version, topics, rack_id):
    frame = bytearray(fetch_body(version, topics, rack_id=rack_id))
    found = read_fetch_compiled(frame, version)
    assert found is not None
    assert found == in_python(read_fetch, frame, 0, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_common_fetch_replies_are_written_by_compiled_code(version):
    rows = [
        PartitionFetched(3, 0, 1 << 40, 7, 5, [b"first", memoryview(b"second")], ()),
        PartitionFetched(4, 1),
        PartitionFetched(5, 0, records=[bytes(20_000)]),
    ]
    topic = "topic" if version < 13 else bytes(16)
    response = FetchResponse([(topic, rows), (topic, [])], 8, 9, 10)
    found = compiled.fetch_reply(response, version)
    assert found is not None
    assert b"".join(found) == b"".join(in_python(write_fetch_response, response, version))


@pytest.mark.parametrize(
    "row",
    [
        PartitionFetched(0, 0, aborted=[(1, 2)]),
        PartitionFetched(0, 0, diverging=(1, 2)),
        PartitionFetched(0, 6, current_leader=(1, 2)),
    ],
)
def test_fetch_replies_with_rare_fields_are_written_in_python(row):
    topics = [(bytes(16), [row])]
    assert compiled.fetch_reply(FetchResponse(topics), 17) is None
    endpoints = [NodeEndpoint(1, "host", 9092)]
    assert compiled.fetch_reply(FetchResponse((), node_endpoints=endpoints), 17) is None


@pytest.mark.parametrize("version", [0, 8, 9, 12])
def test_common_headers_are_read_by_compiled_code(version):
    frame = bytearray(
        b"\0\0\0"
        + bytes([version])
        + b"\0\0\0\x07\0\x02me"
        + (b"\0" if version >= 9 else b"")
        + b"body"
    )
    made = compiled.header(frame, FIRST_FLEXIBLE, lambda *fields: fields)
    assert made == (0, version, 7, "me", len(frame) - 4)


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_producers_are_checked_by_compiled_code(codec):
    records = batch(pairs(3), producer=(12, 3, 40), codec=codec)
    assert compiled.batch(records, 11, lambda *fields: fields) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_without_error_message_are_written_by_compiled_code(version):
    topic = "t" if version < 13 else bytes(16)
    assert (
        compiled.reply(ProduceResponse([(topic, [PartitionProduced(0, 6)])]).topics, 0, version)
        is not None
    )
    assert (
        compiled.reply(
            ProduceResponse([(topic, [PartitionProduced(0, 6, error_message="no")])]).topics,
            0,
            version,
        )
        is None
    )


@st.composite
def mutated(draw, whole):
    """`whole` with some bytes changed, perhaps truncated or extended."""
    malformed = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        malformed[draw(st.integers(0, len(malformed) - 1))] = draw(
            st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        )
    end = draw(st.integers(0, len(malformed)) | st.just(len(malformed)))
    return malformed[:end] + draw(st.sampled_from([b"", b"\0\0\0"]))


@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_compiled_and_python_agree_on_malformed_requests(data, version):
    frame = data.draw(mutated(produce_body(version, records=BATCH)))
    found = unchecked(read_compiled(frame, version))
    assert found is None or found == in_python(read_produce, frame, 0, version)


@given(st.lists(st.binary(max_size=20)))
def test_total_is_that_of_all_buffers(buffers):
    views = [memoryview(buffer) for buffer in buffers]
    assert compiled.total(views) == compiled.total(iter(buffers)) == len(b"".join(buffers))


@given(data=st.data(), version=st.sampled_from(FETCH_VERSIONS))
def test_compiled_and_python_agree_on_malformed_fetch_requests(data, version):
    frame = data.draw(mutated(fetch_body(version)))
    found = read_fetch_compiled(frame, version)
    assert found is None or found == in_python(read_fetch, frame, 0, version)


@given(frame=st.binary(max_size=60).map(bytearray), version=st.sampled_from(FETCH_VERSIONS))
def test_compiled_and_python_agree_on_random_fetch_requests(frame, version):
    found = read_fetch_compiled(frame, version)
    assert found is None or found == in_python(read_fetch, frame, 0, version)


@given(frame=st.binary(max_size=60).map(bytearray), version=st.sampled_from(VERSIONS))
def test_compiled_and_python_agree_on_random_bytes(frame, version):
    found = unchecked(read_compiled(frame, version))
    assert found is None or found == in_python(read_produce, frame, 0, version)


@given(data=st.data())
def test_compiled_and_python_agree_on_malformed_headers(data):
    frame = data.draw(mutated(b"\0\0\0\x09\0\0\0\x07\0\x02me\0"))
    with pytest.MonkeyPatch.context() as patch:
        whole = in_python(read_header, frame, FIRST_FLEXIBLE)
        patch.setattr(compiled, "header", unavailable)
    found = (
        compiled.header(frame, FIRST_FLEXIBLE, type(whole))
        if whole is not None
        else compiled.header(frame, FIRST_FLEXIBLE, tuple)
    )
    assert found is None or found == whole


@given(data=st.data(), version=st.sampled_from([3, 6, 7, 11]), is_sealed=st.booleans())
def test_compiled_and_python_agree_on_malformed_batches(data, version, is_sealed):
    malformed = data.draw(mutated(BATCH))
    if is_sealed and len(malformed) > 21:
        pack_into(">I", malformed, 17, crc32c(bytes(malformed[21:])))
    records = memoryview(malformed)
    expected = in_python(check_batch, records, version)
    found = compiled.batch(records, version, lambda *fields: fields)
    assert found is None or (
        expected is not None
        and found == tuple(getattr(expected, name) for name in expected.__struct_fields__)
    )


@given(
    offset=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, (1 << 31) - 1),
    size=st.just(len(BATCH)) | st.integers(0, len(BATCH)),
)
def test_compiled_and_python_stamp_alike(offset, epoch, size):
    stamped, expected = bytearray(BATCH[:size]), bytearray(BATCH[:size])
    if compiled.stamp(memoryview(stamped), offset, epoch):
        stamp_batch(expected, offset, epoch, None)
        assert stamped == expected
    else:
        assert size < HEADER_BYTES
        assert stamped == expected


@given(data=st.data())
def test_every_batch_accepted_by_python_is_accepted_by_compiled_code(data):
    attributes = data.draw(st.sampled_from([0, 1, 2, 3, 4, 0x10, 0x11]))
    malformed = bytearray(BATCH)
    malformed[22] = attributes
    pack_into(">I", malformed, 17, crc32c(bytes(malformed[21:])))
    taken = in_python(check_batch, memoryview(malformed), 11)
    assert (compiled.batch(memoryview(malformed), 11, lambda *fields: fields) is not None) == (
        taken is not None
    )
