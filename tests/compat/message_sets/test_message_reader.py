import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import cut, first_at_or_after, read_records
from records import DecodedRecord
from tests.records.sample_records import GZIP, Sample, batch, message_set, wrapper
from tests.records.strategies import codecs, legacy_codecs, magics, prop, samples

A = Sample(7, 1000, b"k", b"first", ((b"h", b"x"), (b"h", None)))
B = Sample(9, 990, None, None)


def test_batch_yields_all_fields():
    assert list(read_records(batch([A, B]))) == [
        DecodedRecord(7, 1000, b"k", b"first", ((b"h", b"x"), (b"h", None)), 0),
        DecodedRecord(9, 990, None, None, (), 0),
    ]


def test_log_append_time_applies_to_each_record():
    assert [
        (r.timestamp, r.timestamp_type) for r in read_records(batch([A, B], append_time=5))
    ] == [
        (5, 1),
        (5, 1),
    ]
    assert [
        (r.timestamp, r.timestamp_type)
        for r in read_records(wrapper([A, B], GZIP, magic=1, timestamp=5, append_time=True))
    ] == [
        (5, 1),
        (5, 1),
    ]
    assert [
        (r.timestamp, r.timestamp_type)
        for r in read_records(message_set([A, B], magic=1, attributes=8))
    ] == [(1000, 1), (990, 1)]


def test_magic_0_has_no_timestamp_and_no_type():
    assert list(read_records(message_set([A], magic=0))) == [
        DecodedRecord(7, -1, b"k", b"first", (), -1)
    ]


def test_wrapper_offset_zero_leaves_inner_offsets_unchanged():
    assert [
        r.offset
        for r in read_records(wrapper([A, B], GZIP, magic=1, offset=0, inner_offsets=[0, 1]))
    ] == [0, 1]


@prop
@given(samples(), codecs)
def test_batches_round_trip(found, codec):
    assert [
        (r.offset, r.timestamp, r.key, r.value, r.headers)
        for r in read_records(batch(found, codec=codec))
    ] == [(s.offset, s.timestamp, s.key, s.value, s.headers) for s in found]


@prop
@given(samples(), magics, legacy_codecs)
def test_message_sets_round_trip(found, magic, codec):
    payload = wrapper(found, codec, magic=magic) if codec else message_set(found, magic=magic)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read_records(payload)] == [
        (s.offset, s.timestamp if magic else -1, s.key, s.value) for s in found
    ]


@prop
@given(samples(), st.integers(0, 3), st.integers(-1, 2**42))
def test_first_record_at_or_after_timestamp_is_found(found, shape, timestamp):
    payload = [
        batch(found),
        batch(found, codec=GZIP),
        message_set(found, magic=1),
        wrapper(found, GZIP, magic=1),
    ][shape]
    expected = next(((s.offset, s.timestamp) for s in found if s.timestamp >= timestamp), None)
    assert first_at_or_after(payload, timestamp) == expected


def test_magic_0_has_no_record_at_or_after_a_timestamp():
    assert first_at_or_after(message_set([A], magic=0), -1) is None


@prop
@given(samples(), magics, st.data())
def test_cut_starts_at_offset_and_fits_or_is_one_message(found, magic, data):
    payload = message_set(found, magic=magic)
    offset = data.draw(st.integers(found[0].offset, found[-1].offset + 1))
    max_bytes = data.draw(st.integers(0, len(payload) + 10))
    rest = [s for s in found if s.offset >= offset]
    part = bytes(cut(payload, offset, max_bytes))
    taken = [
        s
        for s in rest
        if payload and s.offset <= (list(read_records(part))[-1].offset if part else -1)
    ]
    assert part == message_set(taken, magic=magic)
    assert bool(taken) == bool(rest)
    assert len(part) <= max_bytes or len(taken) == 1
    if len(taken) < len(rest):
        assert (
            len(part) + len(message_set(rest[len(taken) : len(taken) + 1], magic=magic)) > max_bytes
        )


def test_cut_returns_whole_wrapper():
    payload = wrapper([A, B], GZIP, magic=1) + message_set([Sample(10, 0, None, None)], magic=1)
    assert cut(payload, 8, 1) == wrapper([A, B], GZIP, magic=1)
    assert cut(payload, 10, 1) == message_set([Sample(10, 0, None, None)], magic=1)


@pytest.mark.parametrize("offset", [0, A.offset, B.offset])
def test_cut_returns_whole_batch(offset):
    assert cut(batch([A, B]), offset, 1) == batch([A, B])


def test_cut_skips_batch_before_offset():
    assert cut(batch([A, B]), B.offset + 1, 100) == b""


def test_cut_of_empty_input_is_empty():
    assert cut(b"", 5, 100) == b""


def test_header_names_need_not_be_utf8():
    assert next(read_records(batch([Sample(0, 0, None, None, ((b"\xff", b""),))]))).headers == (
        (b"\xff", b""),
    )
