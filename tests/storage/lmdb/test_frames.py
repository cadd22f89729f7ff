"""The format of segments. Bytes are literal: segments of older versions must stay readable."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from storage.lmdb import frames as frames_module
from storage.lmdb.frames import (
    IS_LAST,
    Damage,
    Frame,
    FrameAt,
    SegmentHeader,
    adjacent,
    append_frames,
    cached_entries,
    decode_frame,
    decode_segment_header,
    decode_table_rows,
    encode_append,
    encode_appends,
    encode_frame,
    encode_segment_header,
    encode_table_rows,
    entries_in,
    entries_of,
    find_adjacent,
    find_run,
    has_payload,
    parse,
    read_cached,
    read_frames,
    read_run,
    select_run,
)
from storage.lmdb.layout import Row, Slot, key_of, slot_of
from storage.lmdb.write_burst import Append, DurableLog, Operation, Task
from storage.log import Entry, LogClosed
from tests.storage.entries import compiled_frames

MARK = b"the mark"


SEGMENT = 5


def framed(at: int, payload: bytes, durable_to: int = 0, base: int = 0) -> bytes:
    frame = Frame(crc32(payload), len(payload), durable_to, IS_LAST, 1, base, base, -1)
    return encode_frame(MARK, SEGMENT, at, frame) + payload


def test_layout_of_frame_is_fixed() -> None:
    header = encode_frame(MARK, 8, 9, Frame(1, 2, 3, 4, 5, 6, 7, -1))
    assert header[:8] == MARK
    assert header[12:].hex() == (
        "00000001" "00000002" "00000003" "00000004"
        "0000000000000005" "0000000000000006" "0000000000000007" "ffffffffffffffff"
    )  # fmt: skip
    place = bytes.fromhex("0000000000000008" "00000009")  # fmt: skip
    assert header[8:12].hex() == f"{crc32(place + header[12:]):08x}"
    assert decode_frame(MARK, 8, 9, header) == Frame(1, 2, 3, 4, 5, 6, 7, -1)


def test_frame_counts_only_at_its_place() -> None:
    """A copy of a segment may be the payload of an entry."""
    header = encode_frame(MARK, 8, 9, Frame(1, 2, 3, 4, 5, 6, 7, -1))
    assert decode_frame(MARK, 8, 10, header) is None
    assert decode_frame(MARK, 7, 9, header) is None
    assert decode_frame(b"another!", 8, 9, header) is None


@pytest.mark.parametrize(("base", "last"), [(5, 4), (0, (1 << 63) - 1), (1 << 63, 1 << 63)])
def test_frame_with_impossible_offsets_is_damage(base: int, last: int) -> None:
    payload = b"payload"
    frame = Frame(crc32(payload), len(payload), 0, IS_LAST, 1, base, last, -1)
    data = encode_frame(MARK, SEGMENT, 0, frame) + payload
    later = framed(len(data), b"later", len(data))
    assert positions(parse(MARK, SEGMENT, data + later, 0).found) == [(0, len(data)), len(data)]


def test_layout_of_segment_header_is_fixed() -> None:
    header = encode_segment_header(MARK, SegmentHeader(1, 2, 3))
    assert header[:16] == b"kopgate1" + MARK
    assert header[16:-4].hex() == "0000000000000001" "0000000000000002" "00000003"  # fmt: skip
    assert header[-4:].hex() == f"{crc32(header[:-4]):08x}"
    assert decode_segment_header(MARK, header) == SegmentHeader(1, 2, 3)
    assert decode_segment_header(b"another!", header) is None


def positions(found: list[FrameAt | Damage]) -> list[int | tuple[int, int]]:
    return [(one.position, one.end) if isinstance(one, Damage) else one.position for one in found]


def test_frames_are_found_up_to_zeros() -> None:
    first = framed(0, b"a")
    data = first + framed(len(first), b"bc", len(first))
    parsed = parse(MARK, SEGMENT, data + bytes(1000), 0)
    assert positions(parsed.found) == [0, len(first)]
    assert parsed.end == len(data)


def test_torn_write_ends_the_journal_although_later_parts_are_there() -> None:
    first = framed(0, b"a")
    second = framed(len(first), b"b" * 100, len(first))
    third = framed(len(first) + len(second), b"c", len(first))
    torn = second[:-50] + bytes(50)
    parsed = parse(MARK, SEGMENT, first + torn + third, 0)
    assert (positions(parsed.found), parsed.end) == ([0], len(first))


def test_damage_before_a_later_write_is_reported_and_passed() -> None:
    first = framed(0, b"a")
    durable = 2 * len(first)
    third = framed(durable, b"c", durable)
    parsed = parse(MARK, SEGMENT, first + bytes(len(first)) + third, 0)
    assert positions(parsed.found) == [0, (len(first), durable), durable]


def test_damaged_payload_is_attributed_to_its_frame() -> None:
    first = framed(0, b"a")
    second = framed(len(first), b"b" * 100, base=7)
    durable = len(first) + len(second)
    data = first + second[:-1] + b"x" + framed(durable, b"c", durable)
    found = parse(MARK, SEGMENT, data, 0).found
    assert [isinstance(one, FrameAt) and one.is_intact for one in found] == [True, False, True]
    assert isinstance(found[1], FrameAt)
    assert found[1].frame.base_offset == 7


def test_damage_at_the_end_of_a_durable_segment_is_reported() -> None:
    """Also if the file is shorter than it was."""
    first = framed(0, b"a")
    for rest in (bytes(500), b""):
        parsed = parse(MARK, SEGMENT, first + rest, 0, durable_to=len(first) + 100)
        assert positions(parsed.found) == [0, (len(first), len(first) + 100)]
        assert parsed.end == len(first) + 100


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 1 << 31))
def test_random_bytes_are_no_frames(data: bytes, position: int, durable: int) -> None:
    parsed = parse(MARK, SEGMENT, data, position, durable)
    assert not [one for one in parsed.found if isinstance(one, FrameAt)]
    assert decode_segment_header(MARK, data) is None


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.just(MARK),
            st.tuples(st.binary(max_size=20), st.integers(0, 500), st.integers(0, 9)),
        ),
        max_size=8,
    ),
    st.integers(0, 300),
    st.integers(0, 600),
    st.integers(0, 1 << 32),
)
def test_any_mixture_of_frames_and_garbage_is_parsed_in_order(
    parts: list[bytes | tuple[bytes, int, int]], position: int, durable: int, seed: int
) -> None:
    data = bytearray()
    for part in parts:
        data += part if isinstance(part, bytes) else framed(len(data), *part)
    chance = Random(seed)
    for _ in range(chance.randint(0, 3)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    parsed = parse(MARK, SEGMENT, bytes(data), position, durable)
    end = position
    for one in parsed.found:
        assert one.position == end
        assert one.end > one.position
        end = one.end
        if isinstance(one, FrameAt) and one.is_intact:
            assert has_payload(one.frame, data, one.position)
    assert parsed.end == end


PAYLOADS = st.binary(max_size=100) | st.sampled_from([bytes(70_000), b"\xff" * 65_536])
U32, U64 = st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 64) - 1)
OFFSET = st.integers(0, (1 << 63) - 1)
TIMESTAMPS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.lists(
        st.builds(
            Entry,
            OFFSET,
            OFFSET,
            TIMESTAMPS,
            st.builds(
                lambda kind, data: kind(data),
                st.sampled_from([bytes, bytearray, memoryview]),
                PAYLOADS,
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    st.tuples(U64, U32, U32, U64),
    TIMESTAMPS,
    U32,
)
def test_compiled_function_encodes_the_same(
    entries: list[Entry], place: tuple[int, int, int, int], running: int, position: int
) -> None:
    compiled = compiled_frames()
    arguments = (MARK, *place, entries, running, position)
    assert compiled.encode_append(*arguments) == encode_append(*arguments)


def test_compiled_function_refuses_what_has_no_place_in_a_segment() -> None:
    compiled = compiled_frames()
    one = Entry(0, 0, -1, b"some")
    for at, mark in (((1 << 32), MARK), (0, b"short")):
        with pytest.raises((OverflowError, ValueError)):
            compiled.encode_append(mark, 1, at, 0, 1, [one], -1, 0)
    strided = memoryview(b"some")[::2]
    with pytest.raises((BufferError, TypeError)):
        compiled.encode_append(MARK, 1, 0, 0, 1, [Entry(0, 0, -1, strided)], -1, 0)


class NoLog:
    """Appends that are only encoded are not completed."""

    def append_completed(self, *_: object) -> None:
        raise NotImplementedError


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4),
            st.lists(st.tuples(st.integers(0, 3), TIMESTAMPS, PAYLOADS), min_size=1, max_size=3),
            st.integers(0, 9),
        ),
        max_size=8,
    )
)
def test_compiled_function_encodes_a_burst_the_same(
    appends: list[tuple[int, list[tuple[int, int, bytes]], int]],
) -> None:
    """Log 4 does not exist; some appends are not at the end of their log."""
    compiled = frames_module.compiled
    if compiled is None:
        pytest.skip("not compiled")
    ends = dict.fromkeys(range(1, 5), 10)
    burst: list[Operation] = []
    for log_id, sent, gap in appends:
        entries, end = [], ends[log_id] + (not gap)
        for delta, timestamp, payload in sent:
            entries.append(Entry(end, end + delta, timestamp, payload))
            end += delta + 1
        ends[log_id] = end if gap else ends[log_id]
        size = sum(len(entry.payload) for entry in entries)
        burst.append(Append(log_id, entries, size, NoLog()))

    def encode(function: Any) -> Any:
        logs: dict[int, DurableLog] = {}

        def find(log_id: int) -> DurableLog:
            if log_id == 4:
                raise LogClosed("no such log")
            found = logs[log_id] = DurableLog(log_id, 0, 10, -1, 500, 100)
            return found

        buffers, rows = [b"before"], [(9, [b"row"])]
        at, outcomes = function(MARK, 8, 100, 90, logs, find, iter(burst), buffers, rows)
        told = [(id(one), value, repr(refusal)) for one, value, refusal in outcomes]
        return at, told, logs, buffers, rows

    found = encode(compiled.encode_appends)
    assert found == encode(encode_appends)
    refusals = [refusal == "None" for _, _, refusal in found[1]]
    assert refusals == [log_id < 4 and gap > 0 for log_id, _, gap in appends]

    # As for the flusher, which writes no burst with a refused append.
    known = {log_id: DurableLog(log_id, 0, 10, -1, 500, 100) for log_id in range(1, 4)}
    unchanged = deepcopy(known)

    def stage(limit: int) -> Any:
        return compiled.stage_appends(burst, known, MARK, 8, 100, 90, limit)

    end, _, logs, (_, *buffers), (_, *rows) = found
    staged = stage(end)
    assert known == unchanged
    assert (staged is not None) is all(refusals)
    if staged is not None:
        expected: dict[int, list[bytes]] = {}
        for log_id, keys in rows:
            expected.setdefault(log_id, []).extend(keys)
        assert (staged.at, staged.buffers) == (end, buffers)
        assert (staged.rows, staged.logs) == (expected, logs)
        assert stage(end - 1) is None
        burst.append(Task(lambda _: None))
        assert stage(end) is None


def test_append_has_a_frame_and_a_row_for_each_entry() -> None:
    entries = [Entry(7, 9, 50, b"first"), Entry(10, 10, 40, b"the second")]
    logs = {3: DurableLog(3, 0, 7, 45, 1000, 80)}
    buffers: list[Any] = []
    added: list[tuple[int, list[bytes]]] = []
    append = Append(3, entries, 15, NoLog())
    at, outcomes = append_frames(MARK, 8, 100, 90, logs, logs.__getitem__, [append], buffers, added)
    assert outcomes == [(append, None, None)]
    ((log_id, rows),) = added
    assert (log_id, logs[3]) == (3, DurableLog(3, 0, 11, 50, 1015, 95))
    assert [buffers[1], buffers[3]] == [b"first", b"the second"]
    assert [decode_frame(MARK, 8, place, buffers[n]) for place, n in ((100, 0), (165, 2))] == [
        Frame(crc32(b"first"), 5, 90, 0, 3, 7, 9, 50),
        Frame(crc32(b"the second"), 10, 90, IS_LAST, 3, 10, 10, 40),
    ]
    assert [slot_of(row) for row in rows] == [
        Slot(3, 7, 9, 50, 50, 1005, 5, 8, 100),
        Slot(3, 10, 10, 40, 50, 1015, 10, 8, 165),
    ]
    assert at == 235


@st.composite
def stored(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A part of a segment and rows of its frames. Both may be damaged."""
    data, rows = bytearray(), []
    for base, (payload, gap) in enumerate(
        draw(st.lists(st.tuples(PAYLOADS, st.integers(0, 300)), max_size=4))
    ):
        at = 1000 + len(data)
        data += framed(at, payload, base=base)
        rows.append(key_of(Slot(1, base, base, -5, 9, 100, len(payload), SEGMENT, at)))
        data += bytes(gap)
    changed = draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2))
    for position, byte in changed:
        if position < len(data):
            data[position] = byte
    fields = ("base_offset", "last_offset", "size", "segment", "at")
    for number, name in draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(fields)), max_size=1)
    ):
        if number < len(rows):
            slot = slot_of(rows[number])
            rows[number] = key_of(slot._replace(**{name: getattr(slot, name) + 1}))
    return bytes(data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 50]))]), rows


@given(stored(), st.sampled_from([1000, 1000, 1000, 999, 1010, 0]))
def test_compiled_function_reads_the_same(case: tuple[bytes, list[bytes]], at: int) -> None:
    compiled = compiled_frames()
    expected = read_frames(MARK, at, *case)
    found = compiled.read_frames(MARK, at, *case)
    assert found == expected
    assert [type(entry.payload) for entry in found] == [type(entry.payload) for entry in expected]


def row(base: int, at: int, segment: int = SEGMENT, size: int = 10) -> bytes:
    return key_of(Slot(1, base, base, -1, -1, 100, size, segment, at))


ROW_BEHIND_OVERFLOW = [row(0, 100), row(1, 170, size=(1 << 32) - 30), row(2, 250)]
"""In 32 bits the second frame would end at 200."""


@given(stored(), st.integers(0, 300), st.integers(0, 80_000), st.integers(0, 3))
@example((b"", ROW_BEHIND_OVERFLOW), 300, 1 << 33, 0)
def test_compiled_function_finds_the_same_adjacent_frames(
    case: tuple[bytes, list[bytes]], largest_gap: int, largest_read: int, inline: int
) -> None:
    compiled = compiled_frames()
    rows: list[Row] = [*case[1], Entry(9, 9, -1, b"stored with its key"), *case[1][:inline]]
    for first, row in enumerate(rows):
        if isinstance(row, bytes):
            assert compiled.adjacent(rows, first, largest_gap, largest_read) == adjacent(
                rows, first, largest_gap, largest_read
            )


def test_compiled_functions_refuse_malformed_rows() -> None:
    compiled = compiled_frames()
    with pytest.raises(ValueError, match="64 or 52 bytes"):
        compiled.read_frames(MARK, 0, b"", [b"short"])
    with pytest.raises(ValueError, match="a mark has 8 bytes"):
        compiled.read_frames(b"short", 0, b"", [])
    with pytest.raises(ValueError, match="64 or 52 bytes"):
        compiled.take_rows([(b"short", b"")], 1, 1, 1, 1)
    with pytest.raises(TypeError):
        compiled.read_frames(MARK, 0, b"", [None])


@pytest.mark.parametrize("malformed", [b"short", row(0, 100, segment=0)])
def test_first_of_adjacent_rows_must_have_a_place(malformed: bytes) -> None:
    for find in (adjacent, find_adjacent):
        with pytest.raises(ValueError, match="bytes"):
            find([malformed], 0, 0, 0)


def test_adjacent_frames_end_at_a_gap_another_segment_and_the_largest_read() -> None:
    second = 100 + 60 + 10
    rows: list[Row] = [row(0, 100), row(1, second), row(2, second + 70 + 5)]
    assert find_adjacent(rows, 0, 4, 1000) == (2, SEGMENT, 100, 140)
    assert find_adjacent(rows, 0, 5, 1000) == (3, SEGMENT, 100, 215)
    assert find_adjacent(rows, 0, 5, 100) == (2, SEGMENT, 100, 140)
    assert find_adjacent(rows, 2, 5, 1000) == (3, SEGMENT, second + 75, 70)
    assert find_adjacent([row(0, 100), row(1, second, 6)], 0, 5, 1000)[0] == 1
    assert find_adjacent([row(0, second), row(1, 100)], 0, 5, 1000)[0] == 1
    assert find_adjacent([row(0, 100), Entry(1, 1, -1, b"")], 0, 5, 1000)[0] == 1


def test_frames_are_read_up_to_the_first_that_is_not_where_its_row_says() -> None:
    data = framed(100, b"x" * 10) + framed(170, b"y" * 10, base=1)
    rows = [row(0, 100), row(1, 170)]
    expected = [Entry(0, 0, -1, b"x" * 10), Entry(1, 1, -1, b"y" * 10)]
    assert entries_in(MARK, 100, data, rows) == expected
    assert entries_in(MARK, 100, data[:-1], rows) == expected[:1]
    assert entries_in(MARK, 100, data[:-1] + b"z", rows) == expected[:1]
    assert entries_in(MARK, 100, data, [rows[0], row(2, 170)]) == expected[:1]
    assert entries_in(MARK, 100, data, [row(0, 40)]) == []


@pytest.mark.parametrize(("gap", "kind"), [(165, memoryview), (166, bytes)])
def test_payloads_keep_at_most_an_eighth_that_is_not_theirs(gap: int, kind: type) -> None:
    """A reader of one partition of many would otherwise hold the other partitions' records, too.

    The two payloads have 2,000 bytes, their frames' headers 120.
    """
    payload = b"x" * 1000
    second = 100 + 60 + 1000 + gap
    data = framed(100, payload) + bytes(gap) + framed(second, payload, base=1)
    slots = [
        Slot(1, base, base, -1, -1, 100, 1000, SEGMENT, at) for base, at in [(0, 100), (1, second)]
    ]
    rows = [key_of(slot) for slot in slots]
    for read in (read_frames, entries_in):
        found = read(MARK, 100, data, rows)
        assert [(type(entry.payload), entry.payload) for entry in found] == [(kind, payload)] * 2


ROW_KEYS = st.binary(min_size=1, max_size=484)


@given(st.dictionaries(ROW_KEYS, st.none() | st.binary(max_size=300), max_size=8))
def test_table_rows_are_read_as_they_were_written(rows: dict[bytes, bytes | None]) -> None:
    assert decode_table_rows(encode_table_rows(rows)) == rows


@pytest.mark.parametrize("payload", [b"short", bytes(15), bytes.fromhex("00000002 ffffffff 6b")])
def test_other_bytes_are_no_table_rows(payload: bytes) -> None:
    assert decode_table_rows(payload) is None


def test_table_rows_have_the_documented_layout() -> None:
    """Lengths of key and value, key, value; all ones for a deleted row."""
    assert encode_table_rows({b"\0\0\0\1k": b"value", b"\0\0\0\2gone": None}) == bytes.fromhex(
        "00000005 00000005 00000001 6b 76616c7565 00000008 ffffffff 00000002 676f6e65"
    )


# Runs of entries, from joined rows


@contextmanager
def segment_of(data: bytes) -> Iterator[int]:
    """A file, in the page cache, and its descriptor."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


needs_nowait = pytest.mark.skipif(
    not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what the page cache has"
)

READS: list[Callable[..., bytes | None]] = [read_run, read_cached]


@needs_nowait
@pytest.mark.parametrize("read", READS)
def test_run_is_the_payloads_of_its_frames(read: Callable[..., bytes | None]) -> None:
    frames = (
        framed(0, b"first"),
        bytes(7),
        framed(72, b"the second", base=1),
        framed(142, b"", base=2),
    )
    rows = row(0, 0, size=5) + row(1, 72) + row(2, 142, size=0)
    with segment_of(b"".join(frames)) as descriptor:
        assert read(descriptor, MARK, rows, 0, 3) == b"firstthe second"
        assert read(descriptor, MARK, rows, 1, 2) == b"the second"
        assert read(descriptor, MARK, rows + row(3, 202), 3, 4) is None
        assert read(descriptor, MARK, row(0, 0, size=6), 0, 1) is None
        assert read(descriptor, MARK, row(1, 0, size=5), 0, 1) is None
        assert read(descriptor, b"another!", rows, 0, 1) is None
    assert read(-1, MARK, rows, 0, 1) is None


@needs_nowait
def test_large_run_is_read_in_parts() -> None:
    """One system call takes a limited number of buffers, and a limited number of skipped bytes."""
    data, rows, payloads = bytearray(), b"", []
    for base in range(300):
        rows += row(base, len(data), size=300)
        payloads.append(os.urandom(300))
        data += framed(len(data), payloads[-1], base=base)
        data += bytes(20_000 if base % 50 == 0 else 0)
    with segment_of(data) as descriptor:
        assert read_cached(descriptor, MARK, rows, 0, 300) == b"".join(payloads)
        os.pwrite(descriptor, b"?", len(data) - 1)
        assert read_cached(descriptor, MARK, rows, 0, 300) is None
        assert read_cached(descriptor, MARK, rows, 0, 299) == b"".join(payloads[:299])


def bytes_read() -> int:
    """What this thread has read from files, and the size of what this reads."""
    text = Path("/proc/thread-self/io").read_text()
    return int(text.split()[1])


@needs_nowait
@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="reads are not counted")
def test_only_short_gaps_between_entries_are_read() -> None:
    data, rows = bytearray(), b""
    for base in range(200):
        rows += row(base, len(data), size=100)
        data += framed(len(data), bytes(100), base=base)
        data += bytes(3000 if base % 2 else 50)
    with segment_of(data) as descriptor:
        before = bytes_read()
        nothing = bytes_read() - before
        before = bytes_read()
        assert read_cached(descriptor, MARK, rows, 0, 200)
        assert bytes_read() - before - nothing <= 200 * (60 + 100 + 50)


@needs_nowait
@given(stored())
def test_compiled_function_reads_the_same_run(case: tuple[bytes, list[bytes]]) -> None:
    compiled = compiled_frames()
    data, rows = bytes(1000) + case[0], case[1]
    with segment_of(data) as descriptor:
        for first in range(len(rows) + 1):
            for stop in range(first, len(rows) + 1):
                found = [
                    read(descriptor, MARK, b"".join(rows), first, stop)
                    for read in (read_run, compiled.read_run)
                ]
                assert found[0] == found[1]
                intact = entries_in(MARK, 1000, case[0], rows[first:stop])
                expected = b"".join(entry.payload for entry in intact)
                assert found[0] == (expected if len(intact) == stop - first else None)


def test_selected_run_is_what_fits_but_at_least_one_entry() -> None:
    rows = b"".join(
        key_of(Slot(1, base, base + 9, -1, -1, 100, 50, SEGMENT + base // 40, 100 + 11 * base))
        for base in range(0, 80, 10)
    )

    def find(*given: int) -> tuple[int, ...] | None:
        *others, most = given
        found = find_run(rows, *others, 1 << 20, most)
        assert found is None or found[5] == 50 * (found[1] - found[0])
        return found and found[:5]

    assert find(0, 80, 0, 1000, 100) == (0, 1, SEGMENT, 0, 9)
    assert find(15, 80, 149, 1000, 100) == (1, 3, SEGMENT, 10, 29)
    assert find(15, 80, 149, 1000, 1) == (1, 2, SEGMENT, 10, 19)
    assert find(45, 80, 1000, 1000, 100) == (4, 8, SEGMENT + 1, 40, 79)
    assert find(45, 70, 1000, 1000, 100) == (4, 7, SEGMENT + 1, 40, 69)
    # Rows of two segments, too many bytes, and rows that end before the log does.
    assert find(0, 80, 300, 1000, 100) is None
    assert find(0, 80, 100, 99, 100) is None
    assert find(45, 90, 1000, 1000, 100) is None
    assert find(80, 90, 1000, 1000, 100) is None
    assert find(50, 50, 1000, 1000, 100) is None


@pytest.mark.parametrize("find", [select_run, find_run])
def test_gaps_in_a_selected_run_are_limited(find: Callable[..., Any]) -> None:
    rows = row(0, 5000, size=50) + row(1, 5150, size=50) + row(2, 9000, size=50)

    def stop(most_gaps: int) -> int:
        found = find(rows, 0, 3, 1000, 1000, most_gaps, 100)
        return int(found[1])

    # Gaps of 40 and 3,740 bytes. The second one is not read.
    assert list(map(stop, (0, 39, 40, 2087, 2088))) == [1, 1, 2, 2, 3]
    # Entries that the cleaner has moved may be before earlier ones.
    rows = row(0, 5000, size=50) + row(1, 100, size=50) + row(2, 9000, size=50)
    assert list(map(stop, (0, 2047, 2048, 4095, 4096))) == [1, 1, 2, 2, 3]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 40), st.integers(0, 9)),
        max_size=8,
    ),
    st.integers(0, 30),
    st.integers(0, 40),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 9000),
    st.integers(1, 9),
)
def test_compiled_function_selects_the_same_run(
    shape: list[tuple[int, int, int, int]],
    offset: int,
    end: int,
    max_bytes: int,
    most_bytes: int,
    most_gaps: int,
    most: int,
) -> None:
    compiled = compiled_frames()
    rows, base, at = b"", 0, 0
    for hole, count, size, segment in shape:
        base += hole
        last = base + count - 1
        rows += key_of(Slot(1, base, last, 7, 9, 100, size, SEGMENT + segment // 9, at))
        base, at = last + 1, at + 60 + size + 1000 * hole
    arguments = (rows, offset, end, max_bytes, most_bytes, most_gaps, most)
    expected = select_run(*arguments)
    assert compiled.select_run(*arguments) == expected
    payloads = os.urandom(400)
    if expected is not None:
        first, stop, *_ = expected
        found = compiled.entries_of(rows, first, stop, payloads)
        assert found == entries_of(rows, first, stop, payloads)
        assert [entry.base_offset for entry in found][:1] == [expected[3]]


def test_entries_of_a_run_are_views_of_it() -> None:
    rows = row(0, 0, size=5) + row(1, 65, size=3)
    for make in (entries_of, cached_entries):
        assert make(rows, 0, 2, b"firstnew") == [
            Entry(0, 0, -1, memoryview(b"first")),
            Entry(1, 1, -1, memoryview(b"new")),
        ]


def test_compiled_functions_refuse_rows_that_do_not_exist() -> None:
    compiled = compiled_frames()
    for first, stop in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="no such rows"):
            compiled.read_run(0, MARK, row(0, 0), first, stop)
    with pytest.raises(ValueError, match="no such rows"):
        compiled.entries_of(row(0, 0), 0, 2, b"")
    with pytest.raises(ValueError, match="a mark has 8 bytes"):
        compiled.read_run(0, b"short", row(0, 0), 0, 1)
