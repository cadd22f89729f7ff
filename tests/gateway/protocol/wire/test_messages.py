"""The schema check before the codec: valid requests are read, malicious ones refused cheaply."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import Refused
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS, decode, encode, topic_id_of, uuid_of
from gateway.protocol.wire.primitives import MAX_ELEMENTS
from tests.gateway.protocol.wire import flexible
from tests.gateway.protocol.wire.values import names, topic_ids

METADATA = REQUESTS[ApiKey.METADATA]
DELETE_RECORDS = REQUESTS[ApiKey.DELETE_RECORDS]
VERSIONS = REQUESTS[ApiKey.API_VERSIONS]
JOIN_GROUP = REQUESTS[ApiKey.JOIN_GROUP]


def asking(version, topics):
    return METADATA(
        version=version,
        topics=None
        if topics is None
        else [METADATA.MetadataRequestTopic(name=name) for name in topics],
    )


@given(version=st.integers(0, 9), topics=st.lists(names, max_size=5), before=st.binary(max_size=3))
def test_request_is_read_at_any_position(version, topics, before):
    frame = bytearray(before + asking(version, topics).encode(version=version))
    assert [topic.name for topic in decode(METADATA, frame, len(before), version).topics] == topics


@given(unknown=st.dictionaries(st.integers(0, 300), st.binary(max_size=150), max_size=3))
def test_unknown_tagged_fields_are_skipped(unknown):
    tags = flexible.tags(unknown)
    topics = [flexible.text(name) + tags for name in ("orders", "bills")]
    frame = bytearray(flexible.array(topics) + b"\x01\0\0" + tags)
    assert [topic.name for topic in decode(METADATA, frame, 0, 9).topics] == ["orders", "bills"]


def test_null_in_nullable_field_is_read():
    assert decode(METADATA, bytearray(b"\xff\xff\xff\xff"), 0, 1).topics is None


@pytest.mark.parametrize(
    ("request_class", "version", "body"),
    [
        # Metadata v0 has no nullable array.
        (METADATA, 0, b"\xff\xff\xff\xff"),
        (METADATA, 1, b"\0\0\0\x01\xff\xff"),
        (VERSIONS, 3, b"\0\x01\0"),
        (DELETE_RECORDS, 0, b"\xff\xff\xff\xff\0\0\0\0"),
        (DELETE_RECORDS, 2, b"\0\0\0\0\0\0"),
    ],
)
def test_null_in_non_nullable_field_is_refused(request_class, version, body):
    with pytest.raises(Refused, match="null"):
        decode(request_class, bytearray(body), 0, version)


@pytest.mark.parametrize(
    ("request_class", "version", "body"),
    [
        (METADATA, 1, b"\0\0\0\x01\0\x05ab"),  # name of five bytes, two present
        (METADATA, 1, b"\0\0\0\x02\0\x02ab"),  # two topics, one present
        (METADATA, 1, b"\0\0\0\x01\0\x02\xff\xff"),  # not UTF-8
        (METADATA, 1, b"\xff\xff\xff\xfe"),  # minus two topics
        (METADATA, 1, b"\x7f\xff\xff\xff" + b"\0\x01a" * 10),
        (METADATA, 9, b"\xff\xff\xff\xff\x0f" + b"\x02a\0" * 10),
        (METADATA, 9, b"\xff" * 50),  # endless varint
        (METADATA, 9, b"\x01\x01\0\0\x01\x00\x09a"),  # tagged field of nine bytes, one present
        (METADATA, 9, b"\x01\x01\0\0\x05\x00\x00"),  # five tagged fields, one present
        (VERSIONS, 3, b"\x03ab\x09c\0"),
    ],
)
def test_wrong_lengths_and_counts_are_refused(request_class, version, body):
    with pytest.raises(Refused):
        decode(request_class, bytearray(body), 0, version)


def test_nested_structure_may_be_null():
    pages = REQUESTS[ApiKey.DESCRIBE_TOPIC_PARTITIONS]
    head = flexible.array([flexible.text("t") + b"\0"]) + flexible.int32(10)
    assert decode(pages, bytearray(head + b"\xff\0"), 0, 0).cursor is None
    there = decode(
        pages, bytearray(head + b"\x01" + flexible.text("t") + flexible.int32(3) + b"\0\0"), 0, 0
    )
    assert (there.cursor.topic_name, there.cursor.partition_index) == ("t", 3)
    with pytest.raises(Refused):
        decode(pages, bytearray(head + b"\x01" + b"\x7fa"), 0, 0)


def spent(request_class, body, version):
    """Return (peak memory in bytes, seconds) of refusing `body`."""
    frame = bytearray(body)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(Refused):
            decode(request_class, frame, 0, version)
        return tracemalloc.get_traced_memory()[1], time.process_time() - began
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, b"\x7f\xff\xff\xff" + b"\0\0" * 1_000_000),
        (1, flexible.int32(1_000_000) + b"\0\0" * 1_000_000),
        (9, flexible.uvarint(1_000_001) + b"\x01\0" * 1_000_000 + b"\x01\0\0\0"),
        (9, b"\xff" * 4_000_000),
        (9, b"\x01\x01\0\0" + flexible.uvarint(1_000_000) + b"\x05\0" * 1_000_000),
        # A tagged field in each topic: for each, the codec copies the rest of the message.
        (9, flexible.uvarint(90_001) + b"\x02a\x01\x05\0" * 90_000 + b"\x01\0\0\0"),
    ],
    ids=[
        "endless count",
        "tiny rows",
        "tiny compact rows",
        "endless varint",
        "tags",
        "tags everywhere",
    ],
)
def test_malicious_request_costs_little_memory_and_time(version, body):
    memory, seconds = spent(METADATA, body, version)
    assert memory < 1 << 20
    assert seconds < 2.0


def test_maximum_number_of_rows_is_read():
    body = flexible.int32(MAX_ELEMENTS) + b"\0\x01a" * MAX_ELEMENTS
    assert len(decode(METADATA, bytearray(body), 0, 1).topics) == MAX_ELEMENTS
    with pytest.raises(Refused, match="topics"):
        decode(
            METADATA,
            bytearray(flexible.int32(MAX_ELEMENTS + 1) + b"\0\x01a" * (MAX_ELEMENTS + 1)),
            0,
            1,
        )


def test_nested_rows_count_towards_limit():
    half = MAX_ELEMENTS // 2
    topic = b"\0\x01t" + flexible.int32(half) + bytes(12 * half)
    assert (
        len(decode(DELETE_RECORDS, bytearray(flexible.int32(1) + topic + bytes(4)), 0, 0).topics)
        == 1
    )
    with pytest.raises(Refused, match="elements"):
        decode(DELETE_RECORDS, bytearray(flexible.int32(2) + topic * 2 + bytes(4)), 0, 0)


@given(topic_id=topic_ids)
def test_topic_id_round_trips(topic_id):
    assert topic_id_of(uuid_of(topic_id.bytes)) == topic_id.bytes


def test_missing_topic_id_is_zeros():
    assert topic_id_of(None) == bytes(16)


def test_encoded_reply_is_bytes():
    assert encode(asking(1, ["a"]), 1) == b"\0\0\0\x01\0\x01a"


def test_string_over_16_bit_length_is_refused_but_bytes_are_read():
    def joining(protocol_type: str, metadata: bytes):
        protocols = [JOIN_GROUP.JoinGroupRequestProtocol(name="range", metadata=metadata)]
        request = JOIN_GROUP(
            version=6, group_id="g", member_id="", protocol_type=protocol_type, protocols=protocols
        )
        return decode(JOIN_GROUP, bytearray(request.encode(version=6)), 0, 6)

    longest = "x" * 32_767
    assert joining(longest, bytes(40_000)).protocol_type == longest
    with pytest.raises(Refused, match="protocol_type has 32768 bytes"):
        joining(longest + "x", b"")
