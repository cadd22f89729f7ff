import gzip
from contextlib import suppress
from struct import unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import filter_records, newest_timestamp, read_records, record_keys
from records import RecordsError, empty_batch
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.sample_records import (
    GZIP,
    LZ4,
    NONE,
    Sample,
    batch,
    message,
    message_set,
    wrapper,
)
from tests.records.strategies import codecs, legacy_codecs, magics, prop, samples

A = Sample(7, 1000, b"a", b"first", ((b"h", b"x"),))
B = Sample(9, 990, b"b", None)
C = Sample(10, 980, None, b"third")


def only(*offsets):
    return lambda offset, key, is_tombstone: offset in offsets


def test_filter_receives_offset_key_and_tombstone_flag():
    seen = []
    for payload in (
        batch([A, B, C]),
        message_set([A, B, C], magic=1),
        wrapper([A, B, C], GZIP, magic=1),
    ):
        filter_records(payload, lambda *record: seen.append(record) or True)
    assert seen == [(7, b"a", False), (9, b"b", True), (10, None, False)] * 3


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_batch_keeps_offset_range_and_producer(codec):
    filtered = filter_records(batch([A, B, C], codec=codec, producer=(5, 1, 20)), only(9))
    base_offset, last_delta = unpack_from(">q", filtered)[0], unpack_from(">i", filtered, 23)[0]
    assert (base_offset, base_offset + last_delta) == (7, 10)
    assert unpack_from(">qhii", filtered, 43) == (5, 1, 20, 1)
    assert read_with_kafka_python(filtered) == [(9, 990, 0, b"b", None, ())]


def test_max_timestamp_is_that_of_kept_records():
    assert unpack_from(">q", filter_records(batch([A, B, C]), only(10)), 35) == (980,)
    assert unpack_from(">q", filter_records(batch([A, B, C], append_time=5000), only(10)), 35) == (
        5000,
    )


def test_magic_1_wrapper_offsets_are_relative_to_first_kept_record():
    filtered = filter_records(wrapper([A, B, C], GZIP, magic=1), only(9, 10))
    assert unpack_from(">q", filtered) == (10,)
    assert gzip.decompress(filtered[34:]) == message(0, b"b", None, timestamp=990) + message(
        1, None, b"third", timestamp=980
    )


def test_emptied_wrappers_are_removed():
    payload = (
        message_set([Sample(3, 1, b"p", b"q")], magic=1)
        + wrapper([A, B], GZIP, magic=1)
        + message_set([C], magic=1)
    )
    assert filter_records(payload, only(3, 10)) == message_set(
        [Sample(3, 1, b"p", b"q"), C], magic=1
    )


@pytest.mark.parametrize(
    "payload",
    [
        batch([A, B]),
        batch([A, B], codec=GZIP),
        message_set([A, B], magic=0),
        wrapper([A, B], GZIP, magic=0),
    ],
    ids=["batch", "gzip batch", "messages", "gzip wrapper"],
)
def test_keeping_all_changes_nothing_and_keeping_none_leaves_nothing(payload):
    assert filter_records(payload, lambda *_: True) == payload
    assert filter_records(payload, lambda *_: False) is None


def test_control_batch_is_kept():
    marker = batch(
        [Sample(3, 1000, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=0x30, producer=(4, 0, -1)
    )
    assert filter_records(marker, lambda *_: False) == marker


@prop
@given(samples(), codecs, st.data())
def test_other_libraries_read_kept_records_of_batch(found, codec, data):
    left = data.draw(
        st.lists(st.sampled_from(found), unique=True, min_size=1).map(
            lambda some: sorted(some, key=lambda s: s.offset)
        )
    )
    filtered = filter_records(batch(found, codec=codec), only(*(s.offset for s in left)))
    for read in (read_with_kafka_python, read_with_aiokafka):
        assert [(one[0], one[1], one[3], one[4]) for one in read(filtered)] == [
            (s.offset, s.timestamp, s.key, s.value) for s in left
        ]
    assert [r.headers for r in read_records(filtered)] == [s.headers for s in left]


@prop
@given(samples(), magics, legacy_codecs, st.data())
def test_other_libraries_read_kept_records_of_message_set(found, magic, codec, data):
    left = data.draw(
        st.lists(st.sampled_from(found), unique=True, min_size=1).map(
            lambda some: sorted(some, key=lambda s: s.offset)
        )
    )
    payload = wrapper(found, codec, magic=magic) if codec else message_set(found, magic=magic)
    filtered = filter_records(payload, only(*(s.offset for s in left)))
    # aiokafka cannot read lz4 frames of magic 0.
    for read in (
        read_with_kafka_python,
        *([] if (magic, codec) == (0, LZ4) else [read_with_aiokafka]),
    ):
        assert [(one[0], one[3], one[4]) for one in read(filtered)] == [
            (s.offset, s.key, s.value) for s in left
        ]


@prop
@given(samples(), codecs, st.booleans())
def test_batch_keys_equal_those_of_other_libraries(found, codec, is_append_time):
    payload = batch(found, codec=codec, append_time=5000 if is_append_time else None)
    assert list(record_keys(payload)) == [
        (one[0], one[3], one[4] is None) for one in read_with_kafka_python(payload)
    ]


@prop
@given(samples(), magics, legacy_codecs)
def test_message_set_keys_equal_those_of_other_libraries(found, magic, codec):
    payload = wrapper(found, codec, magic=magic) if codec else message_set(found, magic=magic)
    assert list(record_keys(payload)) == [
        (one[0], one[3], one[4] is None) for one in read_with_kafka_python(payload)
    ]


def test_control_markers_have_no_keys():
    assert (
        list(
            record_keys(
                batch(
                    [Sample(3, 1000, b"\0\0\0\1", b"\0\0\0\0\0\0")],
                    attributes=0x30,
                    producer=(4, 0, -1),
                )
            )
        )
        == []
    )


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_emptied_batch_keeps_offsets_producer_and_max_timestamp(codec):
    """The fields of DefaultRecordBatch.writeEmptyHeader at their positions in the protocol
    guide.
    """
    emptied = empty_batch(batch([A, B, C], codec=codec, producer=(5, 1, 20), attributes=0x10))
    assert len(emptied) == 61
    base_offset, size, _, magic = unpack_from(">qiib", emptied)
    attributes, last_delta, base_time, max_time, producer, epoch, sequence, count = unpack_from(
        ">hiqqqhii", emptied, 21
    )
    assert (base_offset, size, magic, last_delta, count) == (7, 49, 2, 3, 0)
    assert (attributes, base_time, max_time) == (0x10, -1, 1000)
    assert (producer, epoch, sequence) == (5, 1, 20)
    assert list(read_records(emptied)) == []
    assert filter_records(emptied, lambda *_: True) is None


@pytest.mark.parametrize(
    ("payload", "timestamp"),
    [
        (batch([A, B]), 1000),
        (batch([A, B], append_time=5000), 5000),
        (empty_batch(batch([A])), -1),
        (message_set([B, A], magic=1), 1000),
        (message_set([A], magic=0), -1),
        (message_set([C], magic=1) + wrapper([A, B], GZIP, magic=1), 1000),
    ],
)
def test_newest_timestamp_is_minus_1_without_records_or_timestamps(payload, timestamp):
    assert newest_timestamp(payload) == timestamp


def damaged(at, byte):
    payload = bytearray(message_set([A, B], magic=1) + wrapper([C], GZIP, magic=1))
    payload[at % len(payload)] = byte
    return bytes(payload)


@prop
@given(st.binary(max_size=120) | st.builds(damaged, st.integers(0, 200), st.integers(0, 255)))
def test_garbage_raises_records_error(payload):
    for read in (
        lambda: list(record_keys(payload)),
        lambda: filter_records(payload, only(7)),
        lambda: empty_batch(payload),
        lambda: newest_timestamp(payload),
    ):
        with suppress(RecordsError):
            read()
