"""The codec of Produce, compared with kafka-python's in every version."""

from __future__ import annotations

from struct import error

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest as CodecRequest
from kafka.protocol.producer.produce import ProduceResponse as CodecResponse

from gateway.protocol.wire.leader_fields import NodeEndpoint
from gateway.protocol.wire.produce_codec import (
    MAX_PARTITIONS,
    PartitionProduced,
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    RecordError,
    TopicRecords,
    read_produce,
    write_produce_response,
)
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

versions = st.integers(0, 13)
CodecTopic = CodecRequest.TopicProduceData
CodecPartition = CodecTopic.PartitionProduceData
CodecProduced = CodecResponse.TopicProduceResponse
CodecPartitionProduced = CodecProduced.PartitionProduceResponse


def topics_of(version):
    return topic_ids if version >= 13 else names


def named(topic, version):
    """The topic's name or id, for both codecs."""
    return ({"topic_id": topic}, topic.bytes) if version >= 13 else ({"name": topic}, topic)


@st.composite
def requests(draw):
    """Version, the codec's request, and the expected one."""
    version = draw(versions)
    transactional_id = draw(texts | st.none()) if version >= 3 else None
    acks, timeout_ms = draw(int16s), draw(int32s)
    rows = draw(
        st.lists(
            st.tuples(
                topics_of(version), st.lists(st.tuples(int32s, blobs | st.none()), max_size=4)
            ),
            max_size=4,
        )
    )
    theirs = CodecRequest(
        version=version,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            CodecTopic(
                version=version,
                partition_data=[CodecPartition(index=i, records=r) for i, r in parts],
                **named(topic, version)[0],
            )
            for topic, parts in rows
        ],
    )
    ours = ProduceRequest(
        version,
        transactional_id,
        acks,
        timeout_ms,
        [
            TopicRecords(named(topic, version)[1], [PartitionRecords(i, r) for i, r in parts])
            for topic, parts in rows
        ],
    )
    return version, theirs, ours


@given(request=requests(), before=st.binary(max_size=4), after=st.binary(max_size=4))
def test_request_encoded_by_kafka_python_is_decoded(request, before, after):
    version, theirs, ours = request
    assert (
        read_produce(
            bytearray(before + theirs.encode(version=version) + after), len(before), version
        )
        == ours
    )


@given(request=requests())
def test_truncated_request_is_refused(request):
    version, theirs, _ = request
    whole = theirs.encode(version=version)
    # The tagged fields at the end are not read.
    end = len(whole) - (1 if version >= 9 else 0)
    for length in {0, 1, end // 3, end // 2, end - 1}:
        with pytest.raises((ValueError, IndexError, error)):
            read_produce(bytearray(whole[:length]), 0, version)


def test_records_are_a_writable_view_of_the_frame():
    frame = bytearray(
        CodecRequest(
            version=7,
            acks=1,
            topic_data=[
                CodecTopic(name="t", partition_data=[CodecPartition(index=0, records=b"abc")])
            ],
        ).encode(version=7)
    )
    records = read_produce(frame, 0, 7).topics[0].partitions[0].records
    records[0:3] = b"xyz"
    assert frame.endswith(b"xyz")


@given(unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=150), max_size=3))
def test_unknown_tagged_fields_are_skipped_everywhere(unknown):
    tags = flexible.tags(unknown)
    partitions = [
        flexible.int32(index) + flexible.blob(records) + tags
        for index, records in [(0, b"first"), (1, None), (2, b"")]
    ]
    topics = [
        flexible.text("orders") + flexible.array(partitions) + tags,
        flexible.text("empty") + flexible.array([]) + tags,
    ]
    frame = (
        flexible.text(None)
        + flexible.int16(-1)
        + flexible.int32(30_000)
        + flexible.array(topics)
        + tags
    )
    assert read_produce(bytearray(frame), 0, 9) == ProduceRequest(
        9,
        None,
        -1,
        30_000,
        [
            TopicRecords(
                "orders",
                [
                    PartitionRecords(0, b"first"),
                    PartitionRecords(1, None),
                    PartitionRecords(2, b""),
                ],
            ),
            TopicRecords("empty", []),
        ],
    )


def test_empty_topic_name_is_refused():
    for topic in (flexible.text(""), flexible.text(None)):
        frame = (
            flexible.text(None)
            + flexible.int16(1)
            + flexible.int32(1)
            + flexible.array([topic + flexible.array([]) + b"\0"])
            + b"\0"
        )
        with pytest.raises(ValueError, match="name"):
            read_produce(bytearray(frame), 0, 9)


def test_total_of_topics_and_partitions_is_limited():
    half = MAX_PARTITIONS // 2
    partitions = flexible.int32(half) + (flexible.int32(0) + flexible.int32(-1)) * half
    head = flexible.int16(1) + flexible.int32(1)
    one = b"\0\x01t" + partitions
    assert (
        len(read_produce(bytearray(head + flexible.int32(1) + one), 0, 0).topics[0].partitions)
        == half
    )
    with pytest.raises(ValueError, match="elements"):
        read_produce(bytearray(head + flexible.int32(2) + one + one), 0, 0)


def _produced(index, code, base, time, start, ending):
    message, records, leader = ending
    return PartitionProduced(
        index, code, base, time, start, message, [RecordError(*one) for one in records], leader
    )


def _leader_fields(leader):
    """The codec's field. Like Kafka, it omits that of an unknown leader (-1, -1)."""
    made = CodecPartitionProduced.LeaderIdAndEpoch
    return {"current_leader": made(leader_id=leader[0], leader_epoch=leader[1])} if leader else {}


@st.composite
def responses(draw):
    """Version, the codec's response, and the gateway's."""
    version = draw(versions)
    throttle = draw(int32s)
    # Record errors and the current leader are set only with a message.
    record = st.tuples(int32s, texts)
    leader = st.none() | st.tuples(st.integers(0, 2**31 - 1), int32s)
    ending = st.tuples(st.none(), st.just([]), st.none()) | st.tuples(
        texts, st.lists(record, max_size=3), leader if version >= 10 else st.none()
    )
    endpoints = draw(
        st.lists(st.tuples(int32s, texts, int32s), max_size=3, unique_by=lambda one: one[0])
        if version >= 10
        else st.just([])
    )
    partition = st.tuples(int32s, int16s, int64s, int64s, int64s, ending)
    rows = draw(
        st.lists(st.tuples(topics_of(version), st.lists(partition, max_size=4)), max_size=4)
    )
    theirs = CodecResponse(
        version=version,
        throttle_time_ms=throttle,
        responses=[
            CodecProduced(
                partition_responses=[
                    CodecPartitionProduced(
                        index=index,
                        error_code=code,
                        base_offset=base,
                        log_append_time_ms=time,
                        log_start_offset=start,
                        record_errors=[
                            CodecPartitionProduced.BatchIndexAndErrorMessage(
                                batch_index=at, batch_index_error_message=text
                            )
                            for at, text in records
                        ],
                        error_message=message,
                        **_leader_fields(leader),
                    )
                    for index, code, base, time, start, (message, records, leader) in partitions
                ],
                **named(topic, version)[0],
            )
            for topic, partitions in rows
        ],
        **(
            {
                "node_endpoints": [
                    CodecResponse.NodeEndpoint(node_id=node_id, host=host, port=port, rack=None)
                    for node_id, host, port in endpoints
                ]
            }
            if endpoints
            else {}
        ),
    )
    ours = ProduceResponse(
        [
            (named(topic, version)[1], [_produced(*row) for row in partitions])
            for topic, partitions in rows
        ],
        throttle,
        [NodeEndpoint(*one) for one in endpoints],
    )
    return version, theirs, ours


@given(response=responses())
def test_response_equals_that_of_codec(response):
    version, theirs, ours = response
    assert bytes(write_produce_response(ours, version)) == bytes(theirs.encode(version=version))


@pytest.mark.parametrize("version", range(14))
def test_response_with_many_partitions_equals_that_of_codec(version):
    topic = named("t", version)[0] if version < 13 else {"topic_id": None}
    ours = ProduceResponse(
        [
            (
                "t" if version < 13 else bytes(16),
                [PartitionProduced(index, 0, index) for index in range(1000)],
            )
        ]
    )
    theirs = CodecResponse(
        version=version,
        responses=[
            CodecProduced(
                partition_responses=[
                    CodecPartitionProduced(
                        index=index,
                        error_code=0,
                        base_offset=index,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                        record_errors=[],
                        error_message=None,
                    )
                    for index in range(1000)
                ],
                **topic,
            )
        ],
    )
    assert bytes(write_produce_response(ours, version)) == bytes(theirs.encode(version=version))
