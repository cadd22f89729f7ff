"""Runs of batches, uncompressed or in gzip, lz4 or snappy, converted in one kernel call: what the
general path returns.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import read_records
from compat.message_sets.down_conversion import convert_single
from records import _pure
from tests.compat.message_sets.whole_batches import HANDLED, LIMIT, kernel
from tests.records.kernels import kernel_only
from tests.records.sample_records import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Sample,
    batch,
    message_set,
)
from tests.records.strategies import contents, magics, prop, samples

pytestmark = kernel_only


def converted(
    payloads,
    batches=None,
    *,
    magic=1,
    offset=0,
    max_bytes=LIMIT,
    at_least_one=False,
    most_records=1000,
    limit=0,
):
    count = len(payloads) if batches is None else batches
    found = kernel.down_run(
        payloads, count, magic, offset, max_bytes, at_least_one, most_records, limit
    )
    if found is None:
        return None
    messages, counts, is_short = found
    assert not is_short
    return messages, counts


def by_general_path(
    batches: list[bytes], magic: int, offset: int, max_bytes: int, *, at_least_one: bool
) -> tuple[bytes, tuple[int, int, int]] | None:
    """Convert each batch, and select whole messages as a Fetch does."""
    selected, counts, left = b"", [0, 0, 0], max_bytes
    for one in batches:
        rest = convert_single(one, magic, LIMIT)
        if one[22] & 7 in (GZIP, LZ4, SNAPPY):
            # It does not compress with the same parameters.
            (rest,) = kernel.down_all([one], magic, LIMIT)
        start, end = _pure.cut(rest, offset, len(rest))
        rest = rest[start:end]
        does_fit = len(rest) <= left
        if not does_fit:
            start, end = _pure.cut(rest, offset, max(left, 0))
            piece = rest[start:end]
            rest = piece if len(piece) <= left or (at_least_one and not selected) else b""
        if rest:
            last_delta = int.from_bytes(one[23:27], "big")
            counts = [counts[0] + 1, counts[1] + last_delta + 1, counts[2] + len(one)]
        selected += rest
        left -= len(rest)
        if not does_fit:
            break
    return (selected, tuple(counts)) if selected else None


@st.composite
def runs(draw) -> list[list[Sample]]:
    """Records of one to four consecutive batches."""
    found, base = [], 0
    for _ in range(draw(st.integers(1, 4))):
        one = draw(samples(max_size=5))
        shift = base - one[0].offset
        found.append([replace(sample, offset=sample.offset + shift) for sample in one])
        base = found[-1][-1].offset + draw(st.integers(1, 3))
    return found


@prop
@given(
    runs(),
    magics,
    st.integers(0, 60),
    st.integers(0, 3000) | st.just(LIMIT),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 2**42),
)
def test_output_equals_general_path(
    found, magic, offset, max_bytes, at_least_one, is_joined, append_time
):
    batches = [batch(one, codec=NONE, append_time=append_time) for one in found]
    payloads = [b"".join(batches)] if is_joined else batches
    assert converted(
        payloads,
        len(batches),
        magic=magic,
        offset=offset,
        max_bytes=max_bytes,
        at_least_one=at_least_one,
    ) == by_general_path(batches, magic, offset, max_bytes, at_least_one=at_least_one)


@prop
@given(
    st.lists(st.tuples(samples(max_size=5), st.sampled_from(HANDLED)), min_size=1, max_size=4),
    magics,
    st.integers(0, 60),
    st.integers(0, 3000) | st.just(LIMIT),
    st.booleans(),
    st.booleans(),
)
def test_output_with_codecs_equals_general_path(
    found, magic, offset, max_bytes, at_least_one, is_joined
):
    batches, base = [], 0
    for one, codec in found:
        shift = base - one[0].offset
        moved = [replace(sample, offset=sample.offset + shift) for sample in one]
        batches.append(batch(moved, codec=codec))
        base = moved[-1].offset + 1
    assert converted(
        [b"".join(batches)] if is_joined else batches,
        len(batches),
        magic=magic,
        offset=offset,
        max_bytes=max_bytes,
        at_least_one=at_least_one,
        limit=LIMIT,
    ) == by_general_path(batches, magic, offset, max_bytes, at_least_one=at_least_one)


@pytest.mark.parametrize("codec", HANDLED[1:])
def test_run_ends_with_the_batch_with_which_16_mib_are_unpacked(codec):
    large = [
        batch([Sample(n, 1000, None, bytes(6 << 20))], codec=codec, base_offset=n) for n in range(4)
    ]
    for batches, expected in ((large, (3, True)), (large[:2], (2, False))):
        _, counts, is_short = kernel.down_run(
            batches, len(batches), 1, 0, 1 << 30, False, 1000, 100 * LIMIT
        )
        assert (counts[0], is_short) == expected
    assert converted(large, max_bytes=1 << 30, limit=LIMIT) is None


@pytest.mark.parametrize("codec", HANDLED[1:])
def test_compressed_run_may_need_more_room_than_its_limit(codec):
    """The room for the result is guessed from the stored sizes."""
    batches = [
        batch([Sample(n, 1000, None, b"text " * (200 << 10))], codec=codec, base_offset=n)
        for n in range(3)
    ]
    for max_bytes in (1, LIMIT):
        messages, _ = converted(batches, max_bytes=max_bytes, at_least_one=True, limit=100 * LIMIT)
        found = [one.offset for one in read_records(messages)]
        assert found == ([0] if max_bytes == 1 else [0, 1, 2])


@pytest.mark.parametrize("codec", HANDLED[1:])
def test_run_with_an_invalid_compressed_batch_is_left_to_the_general_path(codec):
    damaged = bytearray(batch(some(3), codec=codec))
    damaged[-1] ^= 1
    batches = [batch(some(0), codec=codec), bytes(damaged), batch(some(6), codec=LZ4)]
    assert converted(batches, limit=LIMIT) is None
    assert converted(batches[:1], limit=LIMIT) is not None


@pytest.mark.parametrize("codec", HANDLED[1:])
def test_compressed_run_is_left_to_the_general_path_without_a_limit(codec):
    assert converted([batch(some(0), codec=codec)]) is None


def test_run_with_another_codec_is_left_to_the_general_path():
    assert converted([batch(some(0), codec=LZ4), batch(some(3), codec=ZSTD)], limit=LIMIT) is None


def some(base: int, count: int = 3) -> list[Sample]:
    return [Sample(base + n, 1000 + n, b"k", b"v" * 100) for n in range(count)]


def test_run_ends_at_the_last_message_that_fits():
    batches = [batch(some(0)), batch(some(3))]
    size = len(convert_single(batches[0], 1, LIMIT)) // 3
    messages, counts = converted(batches, offset=1, max_bytes=4 * size - 1)
    assert [one.offset for one in read_records(messages)] == [1, 2, 3]
    assert counts == (2, 6, len(batches[0]) + len(batches[1]))


def test_first_message_is_returned_on_demand_if_it_does_not_fit():
    batches = [batch(some(0)), batch(some(3))]
    assert converted(batches, max_bytes=10) is None
    messages, _ = converted(batches, max_bytes=10, at_least_one=True)
    assert [one.offset for one in read_records(messages)] == [0]


CONTROL = bytearray(batch(some(3)))
CONTROL[22] |= 0x20
DAMAGED = bytearray(batch(some(3)))
DAMAGED[-1] ^= 1
LONGER = bytearray(batch(some(3)))
LONGER[11] += 1


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"junk",
        batch(some(3), codec=LZ4),
        message_set(some(3), magic=0),
        batch(some(3))[:-1],
        batch(some(3)) + b"x",
        CONTROL,
        LONGER,
    ],
    ids=[
        "empty",
        "junk",
        "compressed",
        "messages",
        "truncated",
        "trailing",
        "control",
        "longer",
    ],
)
@pytest.mark.parametrize("is_joined", [False, True], ids=["apart", "joined"])
def test_run_with_another_unit_is_left_to_the_general_path(other, is_joined):
    first = batch(some(0))
    payloads = [first + bytes(other)] if is_joined else [first, other]
    assert converted(payloads, 2) is None


@pytest.mark.parametrize("is_joined", [False, True], ids=["apart", "joined"])
def test_run_with_an_invalid_batch_is_left_to_the_general_path(is_joined):
    """Otherwise its consumer would get less than it waits for."""
    batches = [batch(some(0)), bytes(DAMAGED), batch(some(6))]
    assert converted([b"".join(batches)] if is_joined else batches, 3) is None


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_another_number_of_batches_is_left_to_the_general_path(batches):
    assert converted([batch(some(0)) + batch(some(3))], batches) is None


def test_too_many_records_are_left_to_the_general_path():
    batches = [batch(some(0)), batch(some(3))]
    assert converted(batches, most_records=5) is None
    assert converted(batches, most_records=6) is not None


@prop
@given(contents)
def test_foreign_bytes_are_left_to_the_general_path(content):
    assert converted([content or b""], 1) is None


def test_buffers_are_released():
    """A bytearray with an exported buffer cannot be resized."""
    payloads = [bytearray(batch(some(0))), bytearray(b"junk")]
    converted(payloads[:1])
    converted(payloads)
    with pytest.raises(TypeError):
        converted([payloads[0], 7])
    for payload in payloads:
        payload.append(0)
