"""Conversion between records and Pulsar messages.

The expected forms are those of KoP's PulsarEntryFormatter and of native pulsar-client.
"""

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
    """The message as pulsar-client shows it: properties sorted by name, None for invalid UTF-8."""
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


def test_text_record_looks_like_native_message():
    fields = message_from_record(
        PlainRecord(b"k", b"v", ((b"a", b"1"), (b"b", "ü".encode())), 1234)
    )
    assert fields == MessageFields(b"v", "k", b"", {"a": "1", "b": "ü"}, 1234)


def test_native_message_is_converted_to_record():
    fields = MessageFields(b"v", "schlüssel", b"", {"a": "1", "b": ""}, 1234, PUBLISHED)
    assert record_from_message(fields) == (
        PlainRecord("schlüssel".encode(), b"v", ((b"a", b"1"), (b"b", b"")), 1234),
        None,
    )


def test_ordering_key_takes_precedence_over_partition_key():
    assert record_from_message(MessageFields(b"v", "p", b"o"))[0].key == b"o"


def test_key_written_by_kop_is_read_from_ordering_key():
    assert (
        record_from_message(MessageFields(b"v", b64encode(b"key").decode(), b"key"))[0].key
        == b"key"
    )


def test_undecodable_kop_key_is_read_from_partition_key():
    assert (
        record_from_message(MessageFields(b"v", b64encode(b"\xff\x00").decode(), None))[0].key
        == b"\xff\x00"
    )


def test_binary_key_is_written_as_by_kop():
    fields = message_from_record(PlainRecord(b"\xff\x00", b"v"))
    assert (fields.partition_key, fields.ordering_key) == (
        b64encode(b"\xff\x00").decode(),
        b"\xff\x00",
    )


def test_text_key_in_base64_form_is_kept():
    key = b64encode(b"key")
    assert record_from_message(as_shown(message_from_record(PlainRecord(key, b"v"))))[0].key == key


def test_null_and_empty_keys_and_values_are_distinct():
    records = [
        PlainRecord(key, value, timestamp=1)
        for key in (None, b"", b"k")
        for value in (None, b"", b"v")
    ]
    assert [
        record_from_message(as_shown(message_from_record(record)))[0] for record in records
    ] == records


@pytest.mark.parametrize("timestamp", [-1, -2, -(1 << 63)])
def test_record_without_timestamp_gets_publish_time(timestamp):
    fields = as_shown(message_from_record(PlainRecord(None, b"v", timestamp=timestamp)))
    assert (fields.event_time, record_from_message(fields)[0].timestamp) == (0, PUBLISHED)


@pytest.mark.parametrize("timestamp", [0, 1, (1 << 63) - 1])
def test_other_timestamps_are_kept(timestamp):
    assert (
        record_from_message(
            as_shown(message_from_record(PlainRecord(None, b"v", timestamp=timestamp)))
        )[0].timestamp
        == timestamp
    )


def test_event_time_out_of_range_counts_as_none():
    assert (
        record_from_message(MessageFields(b"v", event_time=1 << 63, publish_time=PUBLISHED))[
            0
        ].timestamp
        == PUBLISHED
    )


def test_binary_header_becomes_base64_property_and_round_trips():
    record = PlainRecord(None, b"v", ((b"trace", b"\xff\xfe"),), 1)
    fields = message_from_record(record)
    assert fields.properties is not None
    assert fields.properties["trace"] == b64encode(b"\xff\xfe").decode()
    assert record_from_message(as_shown(fields))[0] == record


def test_last_of_duplicate_headers_becomes_the_property():
    fields = message_from_record(PlainRecord(None, b"v", ((b"n", b"1"), (b"n", b"2")), 1))
    assert fields.properties is not None
    assert fields.properties["n"] == "2"


def test_headers_cannot_forge_reserved_properties():
    headers = (
        (DETAILS_PROPERTY.encode(), b'{"key":""}'),
        (b"entry.format", b"kafka"),
        (b"kopgate", b"[1,0,0,0,0,0,0,1]"),
    )
    fields = message_from_record(PlainRecord(b"k", b"v", headers, 1))
    assert fields.properties is not None
    assert set(fields.properties) == {DETAILS_PROPERTY}
    assert record_from_message(as_shown(fields))[0] == PlainRecord(b"k", b"v", headers, 1)


def test_first_record_of_batch_has_producer_sequence():
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
def test_invalid_record_details_are_an_ordinary_property(mark):
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
def test_any_record_with_timestamp_round_trips(record):
    assert record_from_message(as_shown(message_from_record(record))) == (record, None)


@given(
    st.text(max_size=60),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
    st.none() | st.binary(max_size=6),
)
def test_any_message_converts_to_record(mark, others, ordering_key):
    properties: Mapping[str, str] = {**others, DETAILS_PROPERTY: mark}
    record, _ = record_from_message(MessageFields(b"v", None, ordering_key, properties))
    assert record.value == b"v"
