"""Invalid bytes raise RecordsError and nothing else, without hanging or exceeding the memory
limit.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import (
    check_message_set,
    cut,
    down_convert,
    filter_records,
    first_at_or_after,
    fix_lz4_checksums,
    newest_timestamp,
    read_records,
    record_keys,
    up_convert,
)
from records import RecordsError, empty_batch
from tests.records.sample_records import Sample, batch, message_set, wrapper
from tests.records.strategies import prop

pytestmark = pytest.mark.long

LIMIT = 100_000
FOUND = [
    Sample(
        n,
        1000 - n,
        b"k" * (n % 3) or None,
        b"value" * n if n % 4 else None,
        ((b"h", b"v"),) * (n % 2),
    )
    for n in range(6)
]
VALID = [
    *(batch(FOUND, codec=codec) for codec in range(5)),
    *(message_set(FOUND, magic=magic) for magic in (0, 1)),
    *(wrapper(FOUND, codec, magic=magic) for codec in (1, 2, 3) for magic in (0, 1)),
    message_set(FOUND, magic=1) + wrapper(FOUND, 1, magic=1),
]


def check_and_stamp(payload):
    checked = check_message_set(payload, max_decompressed_bytes=LIMIT)
    checked.stamp(bytearray(payload), 5, 7)


ENTRANCES = {
    "check_and_stamp": check_and_stamp,
    "down_convert_0": lambda payload: down_convert(payload, 0, max_decompressed_bytes=LIMIT),
    "down_convert_1": lambda payload: down_convert(payload, 1, max_decompressed_bytes=LIMIT),
    "up_convert": lambda payload: up_convert(payload, max_decompressed_bytes=LIMIT),
    "up_convert_at": lambda payload: up_convert(
        payload, base_offset=9, max_decompressed_bytes=LIMIT
    ),
    "read_records": lambda payload: list(read_records(payload, max_decompressed_bytes=LIMIT)),
    "first_at_or_after": lambda payload: first_at_or_after(
        payload, 2**62, max_decompressed_bytes=LIMIT
    ),
    "filter_records": lambda payload: filter_records(
        payload, lambda offset, *_: offset % 2 == 0, max_decompressed_bytes=LIMIT
    ),
    "record_keys": lambda payload: list(record_keys(payload, max_decompressed_bytes=LIMIT)),
    "newest_timestamp": newest_timestamp,
    "empty_batch": empty_batch,
    "fix_lz4_checksums": fix_lz4_checksums,
    "cut": lambda payload: cut(payload, 3, 50),
}


@st.composite
def mutated(draw) -> bytes:
    """A valid set with some bytes changed, removed or inserted."""
    payload = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(payload) - 1, 0)))
        match draw(st.integers(0, 2)):
            case 0 if payload:
                payload[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
            case 1:
                del payload[at : at + draw(st.integers(1, 9))]
            case _:
                payload[at:at] = draw(st.binary(min_size=1, max_size=9))
    return bytes(payload)


@pytest.mark.parametrize("entrance", ENTRANCES)
@prop
@given(payload=st.binary(max_size=200) | mutated())
def test_garbage_is_converted_or_raises_records_error(entrance, payload):
    with contextlib.suppress(RecordsError):
        ENTRANCES[entrance](payload)
