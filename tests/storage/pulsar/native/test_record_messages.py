"""What a record is as a Pulsar message. The forms are those that KoP's PulsarEntryFormatter and a native pulsar-client write and read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.plain_records import PlainRecord, ProducerSequence
from storage.pulsar.native.record_messages import (
    DETAILS_PROPERTY,
    MessageFields,
    message_from_record,
    record_from_message,
)

PUBLISHED = 1_700_000_000_000


def as_shown(fields: MessageFields) -> MessageFields:
    """The message as pulsar-client shows it to a reader: properties in the order of their names, None for what is no UTF-8."""
    ordering_key = fields.ordering_key
    try:
        (ordering_key or b"").decode()
    except UnicodeDecodeError:
        ordering_key = None
    return replace(
        fields,
        ordering_key=ordering_key,
        properties=dict(sorted((fields.properties or {}).items())),
        publish_time=PUBLISHED,
    )


def test_a_record_of_text_looks_like_a_message_of_a_native_producer():
    fields = message_from_record(
        PlainRecord(b"k", b"v", ((b"a", b"1"), (b"b", "ü".encode())), 1234)
    )
    assert fields == MessageFields(b"v", "k", b"", {"a": "1", "b": "ü"}, 1234)


def test_a_message_of_a_native_producer_is_a_record():
    fields = MessageFields(b"v", "schlüssel", b"", {"a": "1", "b": ""}, 1234, PUBLISHED)
    assert record_from_message(fields) == (
        PlainRecord("schlüssel".encode(), b"v", ((b"a", b"1"), (b"b", b"")), 1234),
        None,
    )


def test_the_ordering_key_comes_before_the_partition_key():
    assert record_from_message(MessageFields(b"v", "p", b"o"))[0].key == b"o"


def test_a_key_as_kop_writes_it_is_read_as_the_ordering_key_that_is_beside_it():
    assert (
        record_from_message(MessageFields(b"v", b64encode(b"key").decode(), b"key"))[0].key
        == b"key"
    )


def test_a_binary_key_of_kop_whose_ordering_key_no_client_can_show_is_in_its_partition_key():
    assert (
        record_from_message(MessageFields(b"v", b64encode(b"\xff\x00").decode(), None))[0].key
        == b"\xff\x00"
    )


def test_a_binary_key_is_written_as_by_kop():
    fields = message_from_record(PlainRecord(b"\xff\x00", b"v"))
    assert (fields.partition_key, fields.ordering_key) == (
        b64encode(b"\xff\x00").decode(),
        b"\xff\x00",
    )


def test_a_text_that_is_base64_is_a_key_of_its_own():
    key = b64encode(b"key")
    assert record_from_message(as_shown(message_from_record(PlainRecord(key, b"v"))))[0].key == key


def test_no_key_and_no_value_are_neither_empty_nor_each_other():
    records = [
        PlainRecord(key, value, timestamp=1)
        for key in (None, b"", b"k")
        for value in (None, b"", b"v")
    ]
    assert [
        record_from_message(as_shown(message_from_record(record)))[0] for record in records
    ] == records


@pytest.mark.parametrize("timestamp", [-1, -2, -(1 << 63)])
def test_without_a_timestamp_a_record_is_as_old_as_its_message(timestamp):
    fields = as_shown(message_from_record(PlainRecord(None, b"v", timestamp=timestamp)))
    assert (fields.event_time, record_from_message(fields)[0].timestamp) == (0, PUBLISHED)


@pytest.mark.parametrize("timestamp", [0, 1, (1 << 63) - 1])
def test_every_other_timestamp_is_kept(timestamp):
    assert (
        record_from_message(
            as_shown(message_from_record(PlainRecord(None, b"v", timestamp=timestamp)))
        )[0].timestamp
        == timestamp
    )


def test_an_event_time_that_no_record_can_bear_counts_as_none():
    assert (
        record_from_message(MessageFields(b"v", event_time=1 << 63, publish_time=PUBLISHED))[
            0
        ].timestamp
        == PUBLISHED
    )


def test_a_binary_header_is_shown_in_base64_and_read_as_it_was():
    record = PlainRecord(None, b"v", ((b"trace", b"\xff\xfe"),), 1)
    fields = message_from_record(record)
    assert fields.properties is not None
    assert fields.properties["trace"] == b64encode(b"\xff\xfe").decode()
    assert record_from_message(as_shown(fields))[0] == record


def test_of_headers_of_one_name_the_last_is_shown():
    fields = message_from_record(PlainRecord(None, b"v", ((b"n", b"1"), (b"n", b"2")), 1))
    assert fields.properties is not None
    assert fields.properties["n"] == "2"


def test_a_producer_can_pass_no_record_off_as_something_else_by_a_header():
    headers = (
        (DETAILS_PROPERTY.encode(), b'{"key":""}'),
        (b"entry.format", b"kafka"),
        (b"kopgate", b"[1,0,0,0,0,0,0,1]"),
    )
    fields = message_from_record(PlainRecord(b"k", b"v", headers, 1))
    assert fields.properties is not None
    assert set(fields.properties) == {DETAILS_PROPERTY}
    assert record_from_message(as_shown(fields))[0] == PlainRecord(b"k", b"v", headers, 1)


def test_the_first_record_of_a_batch_says_whose_sequence_it_bears():
    sequence = ProducerSequence(7, 1, 42)
    assert (
        record_from_message(
            as_shown(message_from_record(PlainRecord(b"k", b"v", timestamp=1), sequence))
        )[1]
        == sequence
    )


@pytest.mark.parametrize(
    "mark",
    [
        "",
        "{",
        "[]",
        '{"key":"other"}',
        '{"headers":[["absent"]]}',
        '{"headers":[[]]}',
        '{"headers":[["a","!"]]}',
        '{"headers":[["\\ud800",null]]}',
        '{"sequence":[-1,0,0]}',
        '{"sequence":[1,2]}',
        '{"timestamp":1}',
    ],
)
def test_what_is_no_mark_of_ours_is_a_property_like_others(mark):
    record, sequence = record_from_message(
        MessageFields(b"v", "k", properties={"a": "1", DETAILS_PROPERTY: mark}, event_time=5)
    )
    assert (record, sequence) == (
        PlainRecord(b"k", b"v", ((b"a", b"1"), (DETAILS_PROPERTY.encode(), mark.encode())), 5),
        None,
    )


names = st.sampled_from(
    [b"", b"a", b"b", "ü".encode(), b"\xff", DETAILS_PROPERTY.encode(), b"entry.format"]
) | st.binary(max_size=4)
values = st.none() | st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
timestamps = st.integers(0, (1 << 63) - 1)


@given(
    st.builds(
        PlainRecord,
        values,
        values,
        st.lists(st.tuples(names, values), max_size=5).map(tuple),
        timestamps,
    )
)
def test_every_record_with_a_timestamp_comes_back_as_it_was(record):
    assert record_from_message(as_shown(message_from_record(record))) == (record, None)


@given(
    st.text(max_size=60),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    st.none() | st.binary(max_size=6),
)
def test_whatever_a_message_bears_it_is_a_record(mark, others, ordering_key):
    properties: Mapping[str, str] = {**others, DETAILS_PROPERTY: mark}
    record, _ = record_from_message(MessageFields(b"v", None, ordering_key, properties))
    assert record.value == b"v"
