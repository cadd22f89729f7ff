"""The codec of Fetch, compared with kafka-python's in every version."""

from __future__ import annotations

from struct import error

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest as CodecRequest
from kafka.protocol.consumer.fetch import FetchResponse as CodecResponse

from gateway.protocol.wire.fetch_codec import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionFetched,
    fetch_response_size,
    read_fetch,
    write_fetch_response,
)
from gateway.protocol.wire.leader_fields import NodeEndpoint
from gateway.protocol.wire.primitives import MAX_ELEMENTS
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import (
    blobs,
    int16s,
    int32s,
    int64s,
    names,
    texts,
    topic_ids,
)

versions = st.integers(0, 18)
CodecTopic = CodecRequest.FetchTopic
CodecPartition = CodecTopic.FetchPartition
CodecFetched = CodecResponse.FetchableTopicResponse
CodecPartitionFetched = CodecFetched.PartitionData

#: First version of each field, and its default before (Kafka's FetchRequest.json).
SINCE = {"max_bytes": 3, "isolation_level": 4, "session_id": 7, "session_epoch": 7, "rack_id": 11}
BEFORE = {
    "max_bytes": 0x7FFFFFFF,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "rack_id": "",
}


def topics_of(version):
    return topic_ids if version >= 13 else names


def named(topic, version):
    return ({"topic_id": topic}, topic.bytes) if version >= 13 else ({"topic": topic}, topic)


@st.composite
def partitions(draw, version):
    """(index, leader epoch, offset, last fetched epoch, log start offset, max bytes).

    Fields that the version lacks are -1.
    """
    return (
        draw(int32s),
        draw(int32s) if version >= 9 else -1,
        draw(int64s),
        draw(int32s) if version >= 12 else -1,
        draw(int64s) if version >= 5 else -1,
        draw(int32s),
    )


@st.composite
def requests(draw):
    """Version, the codec's request, and the expected one."""
    version = draw(versions)
    drawn = {
        "max_bytes": int32s,
        "isolation_level": st.integers(0, 127),
        "session_id": int32s,
        "session_epoch": int32s,
        "rack_id": texts,
    }
    fields = {
        name: draw(values) if version >= SINCE[name] else BEFORE[name]
        for name, values in drawn.items()
    }
    replica_id = draw(int32s) if version < 15 else -1
    max_wait_ms, min_bytes = draw(int32s), draw(int32s)
    rows = draw(
        st.lists(
            st.tuples(topics_of(version), st.lists(partitions(version), max_size=4)), max_size=4
        )
    )
    forgotten = (
        draw(st.lists(st.tuples(topics_of(version), st.lists(int32s, max_size=4)), max_size=3))
        if version >= 7
        else []
    )
    theirs = CodecRequest(
        version=version,
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[
            CodecTopic(
                partitions=[_codec_partition(*row) for row in rows_of], **named(topic, version)[0]
            )
            for topic, rows_of in rows
        ],
        forgotten_topics_data=[
            CodecRequest.ForgottenTopic(partitions=indexes, **named(topic, version)[0])
            for topic, indexes in forgotten
        ],
        **fields,
    )
    ours = FetchRequest(
        version=version,
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[
            FetchTopic(
                named(topic, version)[1],
                [
                    FetchPartition(index, offset, size, epoch, last)
                    for index, epoch, offset, last, _, size in rows_of
                ],
            )
            for topic, rows_of in rows
        ],
        forgotten=[(named(topic, version)[1], indexes) for topic, indexes in forgotten],
        **fields,
    )
    return version, theirs, ours


def _codec_partition(index, epoch, offset, last, start, size):
    return CodecPartition(
        partition=index,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last,
        log_start_offset=start,
        partition_max_bytes=size,
    )


@given(request=requests(), before=st.binary(max_size=4), after=st.binary(max_size=4))
def test_request_encoded_by_kafka_python_is_decoded(request, before, after):
    version, theirs, ours = request
    assert (
        read_fetch(bytearray(before + theirs.encode(version=version) + after), len(before), version)
        == ours
    )


@given(request=requests())
def test_truncated_request_is_refused(request):
    version, theirs, _ = request
    whole = theirs.encode(version=version)
    # The tagged fields at the end are not read.
    end = len(whole) - (1 if version >= 12 else 0)
    for length in {0, 1, end // 3, end // 2, end - 1}:
        with pytest.raises((ValueError, IndexError, error)):
            read_fetch(bytearray(whole[:length]), 0, version)


@given(unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=150), max_size=3))
def test_tagged_fields_are_skipped_everywhere(unknown):
    tags = flexible.tags(unknown)
    topic_id = bytes(range(16))
    partition = (
        b"".join(map(flexible.int32, [4, 9]))
        + flexible.int64(77)
        + flexible.int32(8)
        + flexible.int64(5)
        + flexible.int32(1000)
    )
    topics = flexible.array(
        [topic_id + flexible.array([partition + tags, partition + tags]) + tags]
    )
    forgotten = flexible.array([topic_id + flexible.array([flexible.int32(3)]) + tags])
    head = (
        b"".join(map(flexible.int32, [500, 1, 2000]))
        + b"\x01"
        + flexible.int32(6)
        + flexible.int32(2)
    )
    asked = FetchPartition(4, 77, 1000, 9, 8)
    assert read_fetch(
        bytearray(head + topics + forgotten + flexible.text("rack-1") + tags), 0, 17
    ) == FetchRequest(
        17,
        -1,
        500,
        1,
        2000,
        1,
        6,
        2,
        [FetchTopic(topic_id, [asked, asked])],
        [(topic_id, [3])],
        "rack-1",
    )


def test_total_of_topics_and_partitions_is_limited():
    half = MAX_ELEMENTS // 2
    one = b"\0\x01t" + flexible.int32(half) + bytes(16 * half)
    head = b"".join(map(flexible.int32, [-1, 0, 0]))
    assert (
        len(read_fetch(bytearray(head + flexible.int32(1) + one), 0, 0).topics[0].partitions)
        == half
    )
    with pytest.raises(ValueError, match="elements"):
        read_fetch(bytearray(head + flexible.int32(2) + one + one), 0, 0)


@st.composite
def rows(draw, version):
    """One partition for both codecs, with records in several buffers."""
    index, code, high = draw(int32s), draw(int16s), draw(int64s)
    stable = draw(int64s) if version >= 4 else -1
    start = draw(int64s) if version >= 5 else -1
    aborted = (
        draw(st.none() | st.lists(st.tuples(int64s, int64s), max_size=3)) if version >= 4 else None
    )
    # Like Kafka, the codec omits the tagged field of a struct with default values (-1, -1).
    diverging = (
        draw(st.none() | st.tuples(st.integers(0, 2**31 - 1), int64s)) if version >= 12 else None
    )
    pieces = draw(st.lists(blobs, max_size=3))
    fields = (
        {
            "diverging_epoch": CodecPartitionFetched.EpochEndOffset(
                epoch=diverging[0], end_offset=diverging[1]
            )
        }
        if diverging
        else {}
    )
    leader = draw(st.none() | st.tuples(st.integers(0, 2**31 - 1), int32s))
    leader = leader if version >= 12 else None
    if leader:
        fields["current_leader"] = CodecPartitionFetched.LeaderIdAndEpoch(
            leader_id=leader[0], leader_epoch=leader[1]
        )
    theirs = CodecPartitionFetched(
        partition_index=index,
        error_code=code,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted_transactions=None
        if aborted is None
        else [
            CodecPartitionFetched.AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first in aborted
        ],
        preferred_read_replica=-1,
        records=b"".join(pieces),
        **fields,
    )
    return theirs, PartitionFetched(
        index, code, high, stable, start, pieces, aborted, diverging, leader
    )


@st.composite
def responses(draw):
    """Version, the codec's response, and the gateway's."""
    version = draw(versions)
    throttle, code, session = draw(int32s), draw(int16s), draw(int32s)
    topics = draw(
        st.lists(st.tuples(topics_of(version), st.lists(rows(version), max_size=4)), max_size=4)
    )
    endpoints = draw(
        st.lists(st.tuples(int32s, texts, int32s), max_size=3, unique_by=lambda one: one[0])
        if version >= 16
        else st.just([])
    )
    tagged = [
        CodecResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=None)
        for node_id, host, port in endpoints
    ]
    theirs = CodecResponse(
        **({"node_endpoints": tagged} if tagged else {}),
        version=version,
        throttle_time_ms=throttle,
        error_code=code,
        session_id=session,
        responses=[
            CodecFetched(partitions=[row for row, _ in of_topic], **named(topic, version)[0])
            for topic, of_topic in topics
        ],
    )
    ours = FetchResponse(
        [(named(topic, version)[1], [row for _, row in of_topic]) for topic, of_topic in topics],
        code,
        session,
        throttle,
        [NodeEndpoint(*one) for one in endpoints],
    )
    return version, theirs, ours


@given(response=responses())
def test_response_equals_that_of_codec(response):
    version, theirs, ours = response
    written = b"".join(write_fetch_response(ours, version))
    assert written == bytes(theirs.encode(version=version))
    # As in Kafka, the size is that without the addresses of leaders.
    without = b"".join(write_fetch_response(FetchResponse(ours.topics), version))
    assert fetch_response_size(ours.topics, version) == len(without)


@pytest.mark.parametrize("version", range(19))
@pytest.mark.parametrize("size", [0, 126, 127, 16_382, 16_383, 2_097_150, 2_097_151])
def test_size_of_response_follows_lengths_of_varints(version, size):
    topic = "t" * 127 if version < 13 else bytes(16)
    rows = [PartitionFetched(index, 0, records=[bytes(size)], aborted=()) for index in range(127)]
    rows[1:] = [PartitionFetched(index, 0) for index in range(1, 127)]
    written = write_fetch_response(FetchResponse([(topic, rows)]), version)
    assert fetch_response_size([(topic, rows)], version) == sum(map(len, written))


@pytest.mark.parametrize("version", range(19))
def test_records_are_not_copied(version):
    records = [bytearray(b"a" * 1000), memoryview(b"b" * 1000), b"c" * 1000]
    topic = "t" if version < 13 else bytes(16)
    buffers = write_fetch_response(
        FetchResponse(
            [
                (
                    topic,
                    [
                        PartitionFetched(0, 0, records=records),
                        PartitionFetched(1, 0, records=[b"d" * 9]),
                    ],
                )
            ]
        ),
        version,
    )
    assert [buffer for buffer in buffers if buffer in records] == records
    assert all(any(buffer is record for buffer in buffers) for record in records)


@pytest.mark.parametrize("version", [0, 4, 11, 12, 18])
def test_empty_record_set_is_not_null(version):
    topic = "t" if version < 13 else bytes(16)
    written = b"".join(
        write_fetch_response(FetchResponse([(topic, [PartitionFetched(0, 1)])]), version)
    )
    (read,) = CodecResponse.decode(written, version=version).responses[0].partitions
    assert read.records == b""
