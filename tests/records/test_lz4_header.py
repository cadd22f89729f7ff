import pytest

from records import CorruptRecords
from records.lz4_header import _xxh32, has_historic_checksum, read, with_historic_checksum
from tests.records.sample_records import lz4_frame


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),  # prose: quoted
    ],
)
def test_xxh32_equals_reference_library(content, expected):
    assert _xxh32(content) == expected


def test_header_with_either_checksum_is_read_and_fixed():
    assert read(lz4_frame(b"x")) == read(lz4_frame(b"x", historic=True)) == lz4_frame(b"x")[:7]


def test_historic_checksum_is_written_and_detected():
    assert with_historic_checksum(lz4_frame(b"x")) == lz4_frame(b"x", historic=True)
    assert [
        has_historic_checksum(lz4_frame(b"x", historic=historic)) for historic in (False, True)
    ] == [False, True]


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x04\x22\x4d\x18\x60\x40",
        b"PK\x03\x04\x60\x40\x82",
        b"\x04\x22\x4d\x18\x20\x40\x82",
        b"\x04\x22\x4d\x18\x68\x40\x82",
    ],
)
def test_non_frame_is_rejected(frame):
    with pytest.raises(CorruptRecords):
        read(frame)
