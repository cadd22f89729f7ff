"""Headers and packed payloads of messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log import Entry
from storage.pulsar.log.entry_messages import (
    ENTRY_FORMAT,
    HEADER,
    Header,
    entry_payload_bytes,
    pack_entries,
    parse_header,
    unpack_entries,
)

INT64 = st.integers(0, (1 << 63) - 1)


def test_header_is_written_as_json_array_of_numbers() -> None:
    assert Header(5, 9, 1700000000000, 4096, 3, 1700000000001).properties("mixed_kafka") == {
        "entry.format": "mixed_kafka",
        "kopgate": "[1,5,9,1700000000000,4096,3,1700000000001,1]",
    }


def test_only_reopened_log_writes_number_of_its_opening():
    """Earlier versions refuse a header with that number."""
    first = Header(1, 2, 3, 4, 5, 6, 7)
    assert first.properties("kafka")["kopgate"] == "[1,1,2,3,4,5,6,7]"
    second = Header(1, 2, 3, 4, 5, 6, 10, opening=1)
    assert second.properties("kafka")["kopgate"] == "[1,1,2,3,4,5,6,10,1]"
    assert [parse_header(one.properties("kafka")) for one in (first, second)] == [first, second]


@given(INT64, st.integers(0, 100), INT64, INT64, st.integers(-1, 1 << 40), st.integers(1, 9))
def test_header_round_trip(
    base: int, more: int, time: int, before: int, epoch: int, entries: int
) -> None:
    header = Header(base, min(base + more, (1 << 63) - 1), time, before, epoch, time, entries)
    assert parse_header(header.properties("kafka")) == header


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "{}",
        "[1]",
        "[2,0,0,0,0,0,0,1]",
        "[1,0,0,0,0]",
        "[1,0,0,0,0,0,0,1,1,1]",
        '[1,"a",0,0,0,0,0,1]',
        "[1,-1,0,0,0,0,0,1]",
        "[1,5,3,0,0,0,0,1]",
        "[1,0,0,5,0,0,4,1]",
        "[1,0,0,0,-1,0,0,1]",
        "[1,0,0,0,0,0,0,0]",
        "[1,0,0,0.5,0,0,1,1]",
        "[1,0,0,0,0,0,0,1",
        "[1,9223372036854775808,9223372036854775808,0,0,0,0,1]",
        "\ud800",
    ],
)
def test_message_with_invalid_header_counts_as_foreign(text: str) -> None:
    assert parse_header({HEADER: text, ENTRY_FORMAT: "kafka"}) is None


@given(st.dictionaries(st.sampled_from([HEADER, ENTRY_FORMAT, "other"]), st.text()))
def test_any_properties_parse_to_header_or_none(properties: dict[str, str]) -> None:
    found = parse_header(properties)
    assert found is None or found.base_offset <= found.last_offset + 1


def test_entries_packed_in_one_message_round_trip() -> None:
    entries = [Entry(5, 7, 3, b"abc"), Entry(8, 8, -1, b""), Entry(9, 20, 1, b"de")]
    payload = pack_entries(entries)
    header = Header(5, 20, 3, 0, 0, 3, 3)
    assert [
        (e.base_offset, e.last_offset, e.max_timestamp, e.payload)
        for e in unpack_entries(header, payload)
    ] == [
        (5, 7, 3, b"abc"),
        (8, 8, -1, b""),
        (9, 20, 1, b"de"),
    ]
    assert entry_payload_bytes(header, payload) == 5


def test_unpacked_entries_do_not_keep_the_message():
    """A cached entry would otherwise hold the memory of all of them."""
    header = Header(0, 1, 3, 0, 0, 3, 2)
    payload = pack_entries([Entry(0, 0, 3, b"abc"), Entry(1, 1, 3, b"de")])
    entries = unpack_entries(header, memoryview(payload))
    assert [entry.payload for entry in entries] == [b"abc", b"de"]
    assert all(isinstance(entry.payload, bytes) for entry in entries)


def test_single_entry_is_stored_without_packing() -> None:
    (only,) = unpack_entries(Header(5, 7, 3, 0, 0, 3), b"abc")
    assert (only.base_offset, only.last_offset, only.max_timestamp, only.payload) == (
        5,
        7,
        3,
        b"abc",
    )
    assert entry_payload_bytes(Header(5, 7, 3, 0, 0, 3), b"abc") == 3


@given(st.integers(1, 1 << 40), st.binary(max_size=200))
def test_payload_that_contradicts_header_is_one_entry(entries: int, payload: bytes) -> None:
    (only,) = unpack_entries(Header(5, 7, 3, 0, 0, 3, entries), payload)
    assert only.payload == payload
