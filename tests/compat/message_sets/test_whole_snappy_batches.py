"""Batches in snappy, as all producers write them, converted in one kernel call."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import read_records
from compat.message_sets.down_conversion import convert_single
from records import CorruptRecords
from tests.compat.message_sets.streams import BLOCK, GOOD, XERIAL_HEADER, snappy_block, xerial
from tests.compat.message_sets.whole_batches import (
    LIMIT,
    convert_twice,
    convert_whole,
    fields_of,
    is_left_or_equal,
    needs,
    snappy_blocks,
    value_of,
)
from tests.records.kernels import kernel_only
from tests.records.sample_records import SNAPPY, Sample, batch, random_samples, records_of
from tests.records.strategies import magics, prop, samples

pytestmark = [kernel_only, needs(SNAPPY)]


def stored(found: list[Sample], stream: bytes) -> bytes:
    return batch(found, content=stream, attributes=SNAPPY)


@prop
@given(samples(), magics, st.lists(st.integers(0, 3000), max_size=4))
def test_output_equals_general_path_with_blocks_that_end_anywhere(found, magic, cuts):
    content = records_of(found)
    ends = sorted(min(end, len(content)) for end in (0, *cuts, len(content)))
    blocks = [snappy_block(content[start:end]) for start, end in itertools.pairwise(ends)]
    ours, ordinary = convert_twice(stored(found, xerial(*blocks)), magic)
    assert list(read_records(ours)) == list(read_records(ordinary))
    assert fields_of(ours) == fields_of(ordinary)


@pytest.mark.parametrize("letters", [b"ab", bytes(range(256))], ids=["shrinks", "does not shrink"])
@pytest.mark.parametrize(
    ("count", "size"), [(1, 0), (15, 1024), (1, 32_768), (3, 65_000), (300, 1024)]
)
@pytest.mark.parametrize("magic", [0, 1])
def test_output_is_in_blocks_of_32_kib(letters, count, size, magic):
    found = random_samples(count, size, letters=letters)
    ours = convert_whole(stored(found, xerial(snappy_block(records_of(found)))), magic)
    sizes = [len(block) for block in snappy_blocks(value_of(ours))]
    assert sizes[:-1] == [32 * 1024] * (sum(sizes) // (32 * 1024))


@prop
@given(
    st.binary(max_size=100),
    st.sampled_from([b"", XERIAL_HEADER, XERIAL_HEADER + b"\0\0\0\x20"]),
)
def test_foreign_bytes_are_converted_as_by_the_general_path(content, header):
    assert is_left_or_equal(stored(GOOD, header + content))


def test_stream_of_too_many_blocks_is_left_to_the_general_path():
    empty = snappy_block(b"")
    blocks = [BLOCK, *[empty] * 99_999]
    assert convert_whole(stored(GOOD, xerial(*blocks))) is not None
    payload = stored(GOOD, xerial(*blocks, empty))
    assert convert_whole(payload) is None
    with pytest.raises(CorruptRecords):
        convert_single(payload, 1, LIMIT)
