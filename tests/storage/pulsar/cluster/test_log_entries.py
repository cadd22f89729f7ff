"""Bursts are complete with their revision, and entries that were compacted are recognized."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.pulsar.cluster.log_entries import (
    REVISION_KEY,
    BurstReader,
    EndMarker,
    LogBurst,
    LogEvent,
    MissingRevision,
    encode_revision,
)
from storage.pulsar.tables.row_messages import END_KEY, payload

REVISION = REVISION_KEY.decode()


def read(*messages: tuple[int, str, bytes]) -> list[LogEvent]:
    """Events of messages, each with the number of its entry."""
    reader = BurstReader()
    return [event for entry, key, data in messages for event in reader.add((1, entry), key, data)]


def revision(number: int) -> bytes:
    return payload(encode_revision(number))


def test_burst_is_complete_with_its_revision() -> None:
    assert read((0, "a", b"\x011"), (0, "b", b"")) == []
    assert read((0, "a", b"\x011"), (0, "b", b""), (0, REVISION, revision(7))) == [
        LogBurst(7, {b"a": b"1", b"b": None})
    ]


def test_revision_is_eight_bytes_big_endian() -> None:
    assert encode_revision(258) == b"\0\0\0\0\0\0\1\2"


def test_entry_without_revision_is_reported_with_the_next_one() -> None:
    assert read((0, "a", b"\x011"), (1, "b", b"\x012"), (1, REVISION, revision(2))) == [
        MissingRevision(),
        LogBurst(2, {b"b": b"2"}),
    ]
    assert read((0, "a", b"\x011"), (1, END_KEY, b"t")) == [MissingRevision(), EndMarker(b"t")]


def test_entry_delivered_again_after_a_part_is_one_burst() -> None:
    """As after a reconnection within an entry."""
    assert read(
        (0, "a", b"\x011"), (0, "a", b"\x011"), (0, "b", b"\x011"), (0, REVISION, revision(1))
    ) == [LogBurst(1, {b"a": b"1", b"b": b"1"})]


def test_place_is_that_of_the_last_complete_burst() -> None:
    reader = BurstReader()
    reader.add((3, 4), "a", b"\x011")
    assert reader.place is None
    reader.add((3, 4), REVISION, revision(1))
    reader.add((3, 5), "a", b"\x011")
    assert reader.place == (3, 4)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.text(max_size=5), st.sampled_from([REVISION, END_KEY, ""])),
            st.binary(max_size=10),
        )
    )
)
def test_foreign_messages_are_counted_or_read(messages: list[tuple[int, str, bytes]]) -> None:
    read(*messages)
