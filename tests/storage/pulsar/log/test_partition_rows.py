"""Rows of partitions, and leader epochs."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.log.partition_rows import (
    MAX_EPOCHS,
    PartitionRow,
    add_epoch,
    decode_row,
    encode_row,
    epoch_end_offset,
    next_opening,
    partition_key,
    split_partition_key,
)


def test_row_key_is_topic_id_and_partition():
    assert partition_key(b"i" * 16, 258) == b"iiiiiiiiiiiiiiii\0\0\1\2"
    assert split_partition_key(b"iiiiiiiiiiiiiiii\0\0\1\2range") == (b"i" * 16, 258)
    with pytest.raises(ValueError):
        split_partition_key(bytes(19))


@given(
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.lists(st.tuples(st.integers(0), st.integers(0, 9))),
)
def test_row_round_trip(start, size, reserved, epochs):
    epochs = [(epoch % (1 << 62), first) for epoch, first in epochs]
    row = PartitionRow(start, size, reserved, tuple(epochs))
    assert decode_row(encode_row(row)) == row


@given(st.binary())
def test_invalid_row_is_refused(garbage):
    with suppress(ValueError):
        assert isinstance(decode_row(garbage), PartitionRow)


def test_epoch_begins_at_given_offset():
    assert add_epoch(((0, 0), (1, 10)), 4, 30, 0) == ((0, 0), (1, 10), (4, 30))


def test_epoch_without_records_is_dropped():
    assert add_epoch(((0, 0), (1, 10)), 2, 10, 0) == ((0, 0), (2, 10))


def test_reopened_log_keeps_start_of_its_epoch():
    epochs = add_epoch(((0, 0),), 4, 30, 0)
    assert next_opening(epochs, 4) == 1
    epochs = add_epoch(epochs, 4, 35, 0, 1)
    assert epochs == ((0, 0), (4, 30), (4, 35, 1))
    assert next_opening(epochs, 4) == 2
    assert next_opening(epochs, 5) == next_opening((), 5) == 0
    assert epoch_end_offset(epochs, 4, 50) == (4, 50)
    assert epoch_end_offset(epochs, 0, 50) == (0, 30)
    assert epoch_end_offset(add_epoch(epochs, 5, 40, 0), 4, 50) == (4, 40)


def test_opening_without_records_is_replaced_by_next():
    assert add_epoch(((0, 0), (4, 30)), 4, 30, 0, 1) == ((0, 0), (4, 30, 1))


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3, 4)])
def test_row_with_malformed_epoch_is_refused(numbers):
    with pytest.raises(ValueError, match="two or three numbers"):
        decode_row(encode_row(PartitionRow(epochs=(numbers,))))


def test_epochs_before_log_start_are_dropped():
    assert add_epoch(((0, 0), (1, 10), (2, 20)), 3, 30, 20) == ((2, 20), (3, 30))


def test_oldest_epochs_are_dropped_above_limit():
    epochs = ()
    for n in range(MAX_EPOCHS + 7):
        epochs = add_epoch(epochs, n, n, 0)
    assert len(epochs) == MAX_EPOCHS
    assert epochs[0] == (7, 7)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (2, (2, 100)),
        (3, (3, 150)),
        (4, (3, 150)),
        (5, (5, 200)),
        (6, (5, 200)),
        (7, (7, 250)),
        (8, (-1, -1)),
    ],
)
def test_epoch_ends_where_next_begins(epoch, expected):
    """Expectations follow LeaderEpochFileCache.endOffsetFor.

    Epochs 3, 5 and 7 began at 100, 150 and 200, and the log ends at 250.
    """
    assert epoch_end_offset(((3, 100), (5, 150), (7, 200)), epoch, 250) == expected


def test_log_without_epochs_has_no_epoch_end():
    assert epoch_end_offset((), 0, 5) == (-1, -1)
