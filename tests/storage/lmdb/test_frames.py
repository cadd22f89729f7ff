"""The format of segments. Bytes are literal: segments of older versions must stay readable."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from storage.lmdb.frames import (
    FRAME,
    IS_LAST,
    Damage,
    Frame,
    FrameAt,
    SegmentHeader,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    has_payload,
    parse,
)

MARK = b"the mark"


def framed(payload: bytes, burst: int, durable_to: int = 0, base: int = 0) -> bytes:
    frame = Frame(crc32(payload), len(payload), burst, durable_to, IS_LAST, 1, base, base, -1)
    return encode_frame(MARK, frame) + payload


def test_layout_of_frame_is_fixed() -> None:
    header = encode_frame(MARK, Frame(1, 2, 3, 4, 5, 6, 7, 8, -1))
    assert header[:8] == MARK
    assert header[12:].hex() == (
        "00000001" "00000002" "0000000000000003" "00000004" "00000005"
        "0000000000000006" "0000000000000007" "0000000000000008" "ffffffffffffffff"
    )  # fmt: skip
    assert header[8:12].hex() == f"{crc32(header[12:]):08x}"
    assert decode_frame(MARK, header) == Frame(1, 2, 3, 4, 5, 6, 7, 8, -1)


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
    data = framed(b"a", 1) + framed(b"bc", 2, FRAME.size + 1)
    parsed = parse(MARK, data + bytes(1000), 0, 1)
    assert positions(parsed.found) == [0, FRAME.size + 1]
    assert (parsed.end, parsed.last_burst) == (len(data), 2)


def test_frame_of_earlier_burst_ends_the_journal() -> None:
    """What a failed write or an earlier use of the file left."""
    data = framed(b"a", 5)
    parsed = parse(MARK, data + framed(b"b", 4), 0, 1)
    assert (positions(parsed.found), parsed.end) == ([0], len(data))


def test_torn_write_ends_the_journal_although_later_parts_are_there() -> None:
    first, second, third = framed(b"a", 1), framed(b"b" * 100, 2), framed(b"c", 2)
    torn = second[:-50] + bytes(50)
    parsed = parse(MARK, first + torn + third, 0, 1)
    assert (positions(parsed.found), parsed.end) == ([0], len(first))
    assert parsed.greatest_burst == 2


def test_damage_before_a_later_write_is_reported_and_passed() -> None:
    first, second = framed(b"a", 1), framed(b"b" * 100, 2)
    durable = len(first) + len(second)
    third = framed(b"c", 3, durable)
    parsed = parse(MARK, first + bytes(len(second)) + third, 0, 1)
    assert positions(parsed.found) == [0, (len(first), durable), durable]


def test_damaged_payload_is_attributed_to_its_frame() -> None:
    first, second = framed(b"a", 1), framed(b"b" * 100, 2, base=7)
    damaged = second[:-1] + b"x"
    data = first + damaged + framed(b"c", 3, len(first) + len(second))
    found = parse(MARK, data, 0, 1).found
    assert [isinstance(one, FrameAt) and one.is_intact for one in found] == [True, False, True]
    assert isinstance(found[1], FrameAt)
    assert found[1].frame.base_offset == 7


def test_damage_at_the_end_of_a_durable_segment_is_reported() -> None:
    first = framed(b"a", 1)
    parsed = parse(MARK, first + bytes(500), 0, 1, durable_to=len(first) + 100)
    assert positions(parsed.found) == [0, (len(first), len(first) + 100)]
    assert parsed.end == len(first) + 100


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 3), st.integers(0, 1 << 31))
def test_random_bytes_are_no_frames(data: bytes, position: int, burst: int, durable: int) -> None:
    parsed = parse(MARK, data, position, burst, durable)
    assert not [one for one in parsed.found if isinstance(one, FrameAt)]
    assert decode_segment_header(MARK, data) is None


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.just(MARK),
            st.tuples(
                st.binary(max_size=20), st.integers(0, 5), st.integers(0, 500), st.integers(0, 9)
            ),
        ),
        max_size=8,
    ),
    st.integers(0, 300),
    st.integers(0, 4),
    st.integers(0, 600),
    st.integers(0, 1 << 32),
)
def test_any_mixture_of_frames_and_garbage_is_parsed_in_order(
    parts: list[bytes | tuple[bytes, int, int, int]],
    position: int,
    burst: int,
    durable: int,
    seed: int,
) -> None:
    data = bytearray(b"".join(one if isinstance(one, bytes) else framed(*one) for one in parts))
    chance = Random(seed)
    for _ in range(chance.randint(0, 3)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    parsed = parse(MARK, bytes(data), position, burst, durable)
    previous, end = burst, position
    for one in parsed.found:
        assert one.position == end
        assert one.end > one.position
        end = one.end
        if isinstance(one, FrameAt):
            assert one.frame.burst >= previous
            previous = one.frame.burst
            if one.is_intact:
                assert has_payload(one.frame, data, one.position)
    assert parsed.end == end
    assert parsed.greatest_burst >= parsed.last_burst == previous
