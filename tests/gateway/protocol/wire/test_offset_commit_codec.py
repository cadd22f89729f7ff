"""The codec of OffsetCommit, compared with kafka-python's in every version."""

from __future__ import annotations

from struct import error

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.group import OffsetCommitRequest as CodecRequest
from kafka.protocol.consumer.group import OffsetCommitResponse as CodecResponse

from gateway.protocol.wire.offset_commit_codec import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    read_offset_commit,
    write_offset_commit_response,
)
from gateway.protocol.wire.primitives import MAX_ELEMENTS
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import int16s, int32s, int64s, texts, topic_ids

versions = st.integers(0, 10)
CodecTopic = CodecRequest.OffsetCommitRequestTopic
CodecPartition = CodecTopic.OffsetCommitRequestPartition
CodecCommitted = CodecResponse.OffsetCommitResponseTopic
CodecResult = CodecCommitted.OffsetCommitResponsePartition


def topics_of(version):
    return topic_ids if version >= 10 else texts


def named(topic, version):
    """The topic's name or id, for both codecs."""
    return ({"topic_id": topic}, topic.bytes) if version >= 10 else ({"name": topic}, topic)


@st.composite
def partitions(draw, version):
    """One partition for both codecs."""
    index, offset, metadata = draw(int32s), draw(int64s), draw(texts | st.none())
    epoch = draw(int32s) if version >= 6 else -1
    time = draw(int64s) if version == 1 else -1
    theirs = CodecPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=epoch,
        commit_timestamp=time,
        committed_metadata=metadata,
    )
    return theirs, CommittedPartition(index, offset, metadata, epoch, time)


@st.composite
def requests(draw):
    """Version, the codec's request, and the expected one."""
    version = draw(versions)
    group = draw(texts)
    generation, member = (draw(int32s), draw(texts)) if version >= 1 else (-1, "")
    instance = draw(texts | st.none()) if version >= 7 else None
    retention = draw(int64s) if 2 <= version <= 4 else -1
    rows = draw(
        st.lists(
            st.tuples(topics_of(version), st.lists(partitions(version), max_size=4)), max_size=4
        )
    )
    theirs = CodecRequest(
        version=version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time_ms=retention,
        topics=[
            CodecTopic(partitions=[one for one, _ in parts], **named(topic, version)[0])
            for topic, parts in rows
        ],
    )
    topics = [
        CommittedTopic(named(topic, version)[1], [one for _, one in parts]) for topic, parts in rows
    ]
    return (
        version,
        theirs,
        OffsetCommitRequest(group, topics, generation, member, instance, retention),
    )


@given(request=requests(), before=st.binary(max_size=4), after=st.binary(max_size=4))
def test_request_encoded_by_kafka_python_is_decoded(request, before, after):
    version, theirs, ours = request
    assert (
        read_offset_commit(
            bytearray(before + theirs.encode(version=version) + after), len(before), version
        )
        == ours
    )


@given(request=requests())
def test_truncated_request_is_refused(request):
    version, theirs, _ = request
    whole = theirs.encode(version=version)
    for length in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
        with pytest.raises((ValueError, IndexError, error)):
            read_offset_commit(bytearray(whole[:length]), 0, version)


@given(unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=150), max_size=3))
def test_unknown_tagged_fields_are_skipped_everywhere(unknown):
    tags = flexible.tags(unknown)
    rows = [(0, 7, "mine"), (1, 9, None)]
    partitions = [
        flexible.int32(index)
        + flexible.int64(offset)
        + flexible.int32(-1)
        + flexible.text(metadata)
        + tags
        for index, offset, metadata in rows
    ]
    topics = [
        flexible.text("orders") + flexible.array(partitions) + tags,
        flexible.text("empty") + flexible.array([]) + tags,
    ]
    head = flexible.text("g") + flexible.int32(3) + flexible.text("m") + flexible.text(None)
    assert read_offset_commit(
        bytearray(head + flexible.array(topics) + tags), 0, 8
    ) == OffsetCommitRequest(
        "g",
        [
            CommittedTopic("orders", [CommittedPartition(*row) for row in rows]),
            CommittedTopic("empty", []),
        ],
        3,
        "m",
    )


@pytest.mark.parametrize("null", ["group", "member", "topics", "topic", "partitions"])
def test_null_in_non_nullable_field_is_refused(null):
    partitions = b"\0" if null == "partitions" else flexible.array([])
    topics = flexible.array([flexible.text(None if null == "topic" else "t") + partitions + b"\0"])
    frame = (
        flexible.text(None if null == "group" else "g")
        + flexible.int32(3)
        + flexible.text(None if null == "member" else "m")
        + flexible.text(None)
        + (b"\0" if null == "topics" else topics)
        + b"\0"
    )
    with pytest.raises(ValueError, match=r"null|array"):
        read_offset_commit(bytearray(frame), 0, 9)


def test_total_of_topics_and_partitions_is_limited():
    half = MAX_ELEMENTS // 2
    one = (
        b"\0\x01t"
        + flexible.int32(half)
        + (flexible.int32(0) + flexible.int64(7) + flexible.int16(-1)) * half
    )
    head = flexible.int16(1) + b"g"
    assert (
        len(
            read_offset_commit(bytearray(head + flexible.int32(1) + one), 0, 0).topics[0].partitions
        )
        == half
    )
    with pytest.raises(ValueError, match="elements"):
        read_offset_commit(bytearray(head + flexible.int32(2) + one + one), 0, 0)


@given(data=st.data(), version=versions)
def test_response_equals_that_of_codec(data, version):
    rows = data.draw(
        st.dictionaries(topics_of(version), st.dictionaries(int32s, int16s, max_size=4), max_size=4)
    )
    theirs = CodecResponse(
        topics=[
            CodecCommitted(
                partitions=[
                    CodecResult(partition_index=index, error_code=code)
                    for index, code in codes.items()
                ],
                **named(topic, version)[0],
            )
            for topic, codes in rows.items()
        ]
    )
    ours = OffsetCommitResponse({named(topic, version)[1]: codes for topic, codes in rows.items()})
    assert write_offset_commit_response(ours, version) == bytes(theirs.encode(version=version))
