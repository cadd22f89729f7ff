"""Conversions in one call: what consumers get of a run is what they get of its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fetch import conversion_calls
from gateway.fetch.conversion_calls import ConvertedRun, RunKey, convert_all, convert_run
from records import _pure, kernel
from tests.records import sample_records
from tests.records.sample_records import GZIP, LZ4, NONE, SNAPPY, ZSTD, Sample
from tests.records.strategies import magics, prop, samples

LARGE = 1 << 30


@dataclass
class _Job:
    is_cancelled: bool = False


def key(
    *, magic: int = 1, offset: int = 0, max_bytes: int = LARGE, at_least_one: bool = False
) -> RunKey:
    return RunKey(b"t" * 16, 0, 0, magic, offset, max_bytes, at_least_one)


def converted(payloads: list[bytes], of: RunKey, *, limit: int = LARGE) -> ConvertedRun:
    run, cpu_us = convert_run(of, payloads, limit, _Job())
    assert run is not None
    assert cpu_us >= 0
    return run


def batches(count: int, codec: int = LZ4) -> list[bytes]:
    """Of two records each."""
    return [
        sample_records.batch(
            [Sample(2 * number + n, 5, b"k", b"value" * 20) for n in range(2)], codec=codec
        )
        for number in range(count)
    ]


def one_by_one(payloads: list[bytes], of: RunKey) -> tuple[bytes, tuple[int, int, int]]:
    """Convert each batch, and select messages as a fetch does."""
    made, _ = convert_all(payloads, of.magic, LARGE, _Job())
    selected, counts, left = b"", [0, 0, 0], of.max_bytes
    for payload, messages in zip(payloads, made, strict=True):
        assert isinstance(messages, bytes)
        start, end = _pure.cut(messages, of.offset, len(messages))
        rest = messages[start:end]
        does_fit = len(rest) <= left
        if not does_fit:
            start, end = _pure.cut(rest, of.offset, max(left, 0))
            rest = rest[start:end]
            if len(rest) > left and (selected or not of.at_least_one):
                rest = b""
        if rest:
            last_delta = int.from_bytes(payload[23:27], "big")
            counts = [counts[0] + 1, counts[1] + last_delta + 1, counts[2] + len(payload)]
        selected += rest
        left -= len(rest)
        if not does_fit:
            break
    return selected, tuple(counts)  # type: ignore[return-value]


kernel.use_snappy()
HANDLED = [codec for codec in (GZIP, SNAPPY, LZ4) if kernel.PACKED_CODECS >> codec & 1]
needs_lz4 = pytest.mark.skipif(LZ4 not in HANDLED, reason="the kernel does not convert lz4")


@needs_lz4
@prop
@given(
    st.lists(
        st.tuples(samples(max_size=5), st.sampled_from([NONE, *HANDLED])), min_size=1, max_size=5
    ),
    magics,
    st.integers(0, 60),
    st.integers(-1, 3000) | st.just(LARGE),
    st.booleans(),
)
def test_run_is_what_its_batches_are_converted_to(found, magic, offset, max_bytes, at_least_one):
    payloads, base = [], 0
    for records, codec in found:
        shift = base - records[0].offset
        moved = [replace(sample, offset=sample.offset + shift) for sample in records]
        payloads.append(sample_records.batch(moved, codec=codec))
        base = moved[-1].offset + 1
    of = key(magic=magic, offset=offset, max_bytes=max_bytes, at_least_one=at_least_one)
    run = converted(payloads, of)
    assert (run.messages, run.counts) == one_by_one(payloads, of)
    assert not run.is_short


@pytest.mark.parametrize("codec", [LZ4, SNAPPY, GZIP])
@pytest.mark.parametrize("change", [lambda payload: payload[:-1] + b"?", lambda payload: b"junk"])
def test_run_with_a_batch_that_the_kernel_does_not_handle_has_no_messages(codec, change):
    payloads = batches(3, codec)
    payloads[1] = change(payloads[1])
    assert converted(payloads, key()) == ConvertedRun(b"", (0, 0, 0))


def test_run_with_a_decompression_bomb_has_no_messages():
    bomb = sample_records.batch([Sample(0, 5, None, bytes(2 << 20))], codec=LZ4)
    assert converted([bomb], key(), limit=1 << 20).messages == b""


@needs_lz4
def test_run_ends_when_16_mib_are_unpacked():
    large = [
        sample_records.batch([Sample(n, 5, None, bytes(6 << 20))], codec=LZ4) for n in range(4)
    ]
    run = converted(large, key())
    assert (run.counts[0], run.is_short) == (3, True)


def test_run_is_none_if_there_is_no_memory(monkeypatch):
    def down_run(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kernel, "down_run", down_run)
    assert convert_run(key(), batches(2), LARGE, _Job())[0] is None


def test_large_units_are_converted_in_separate_calls():
    small = batches(3, NONE)
    (compressed,) = batches(1, ZSTD)
    calls = conversion_calls._split_into_calls([*small, compressed, *small], LARGE)
    assert [len(units) for units in calls] == [3, 1, 3]


@pytest.mark.parametrize(("codec", "expansion"), [(SNAPPY, 22), (LZ4, 255), (GZIP, 1032)])
def test_compressed_units_are_converted_in_one_call_if_they_cannot_unpack_to_more(codec, expansion):
    (small,) = batches(1, codec)
    large = small + bytes(conversion_calls.MAX_CALL_BYTES // expansion)
    calls = conversion_calls._split_into_calls([small, small, small, large, small], LARGE)
    assert [len(units) for units in calls] == [3, 1, 1]
