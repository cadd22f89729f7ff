"""The file format. Bytes are literal: files of older versions must stay readable."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.lmdb.layout import (
    CHECKPOINT,
    LOG_ROW,
    SEGMENT_USE,
    SLOT_PREFIX,
    LogRow,
    Place,
    SegmentUse,
    Slot,
    TopicRow,
    decode_topic,
    encode_topic,
    key_of,
    slot_of,
)
from storage.log import Topic


def test_layout_of_entry_key_of_format_1_is_fixed() -> None:
    slot = Slot(1, 2, 3, -1, 5, 6, 7)
    assert key_of(slot) == bytes.fromhex(
        "000000000000000100000000000000020000000000000003ffffffffffffffff0000000000000005000000000000000600000007"
    )
    assert slot_of(key_of(slot)) == slot


def test_layout_of_entry_key_with_place_is_fixed() -> None:
    slot = Slot(1, 2, 3, -1, 5, 6, 7, 8, 9)
    assert key_of(slot) == bytes.fromhex(
        "000000000000000100000000000000020000000000000003ffffffffffffffff0000000000000005000000000000000600000007"
        "000000000000000800000009"
    )
    assert slot_of(key_of(slot)) == slot


def test_layout_of_rows_about_the_journal_is_fixed() -> None:
    assert CHECKPOINT.pack(*Place(1, 2)) == bytes.fromhex("000000000000000100000002")
    assert SEGMENT_USE.pack(*SegmentUse(1, 2, 3)) == bytes.fromhex(
        "0000000000000001000000000000000200000003"
    )


def test_layout_of_log_row_is_fixed() -> None:
    assert LOG_ROW.pack(*LogRow(1, 2, -1, 4, -2, 6)) == bytes.fromhex(
        "00000000000000010000000000000002ffffffffffffffff0000000000000004fffffffffffffffe0000000000000006"
    )


def test_layout_of_topic_row_is_fixed() -> None:
    row = TopicRow(Topic("t", bytes(range(16)), 2, {"a": "b"}), (4, 9))
    assert (
        encode_topic(row)
        == b'{"topic_id":"000102030405060708090a0b0c0d0e0f","configs":{"a":"b"},"log_ids":[4,9]}'
    )
    assert decode_topic("t", encode_topic(row)) == row


OFFSETS = st.integers(0, (1 << 63) - 1)


@given(
    st.lists(
        st.tuples(OFFSETS, OFFSETS, OFFSETS, st.integers(-1, 1 << 62), st.integers(0, 9)),
        max_size=8,
    )
)
def test_keys_sort_by_log_and_base_offset(rows: list[tuple[int, int, int, int, int]]) -> None:
    slots = [
        Slot(log_id, base, last, time, time, 0, 0, segment)
        for log_id, base, last, time, segment in rows
    ]
    keys = sorted(key_of(slot) for slot in slots)
    assert [slot_of(key)[:2] for key in keys] == sorted(slot[:2] for slot in slots)
    assert all(key.startswith(SLOT_PREFIX.pack(*slot_of(key)[:2])) for key in keys)
