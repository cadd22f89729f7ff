import pytest
from hypothesis import given
from hypothesis import strategies as st

from compat.message_sets import up_convert
from records import CorruptRecords, InvalidRecords, RecordsTooLarge
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.sample_records import GZIP, LZ4, NONE, Sample, batch, message_set, wrapper
from tests.records.strategies import legacy_codecs, magics, prop, samples

A = Sample(7, 1000, b"k", b"first")
B = Sample(9, 990, None, None)


def test_plain_messages_become_one_batch():
    assert up_convert(message_set([A, B], magic=1)) == with_epoch(batch([A, B]), -1)


def with_epoch(payload, epoch):
    """The CRC does not cover the leader epoch."""
    return payload[:12] + epoch.to_bytes(4, "big", signed=True) + payload[16:]


def test_magic_0_has_no_timestamp():
    found = read_with_kafka_python(up_convert(message_set([A], magic=0)))
    assert found == [(7, -1, 0, b"k", b"first", ())]


def test_base_offset_renumbers_records():
    payload = wrapper([A, B, A], GZIP, magic=1, inner_offsets=[0, 0, 0], offset=0) + message_set(
        [B], magic=1
    )
    assert [one[0] for one in read_with_kafka_python(up_convert(payload, base_offset=50))] == [
        50,
        51,
        52,
        53,
    ]


def test_log_append_time_replaces_all_timestamps():
    found = read_with_kafka_python(up_convert(message_set([A, B], magic=1), log_append_time=7777))
    assert [one[1:3] for one in found] == [(7777, 1), (7777, 1)]


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_stored_log_append_time_is_kept(codec):
    stamped = [Sample(s.offset, 5000, s.key, s.value) for s in (A, B)]
    payload = (
        wrapper([A, B], codec, magic=1, timestamp=5000, append_time=True)
        if codec
        else message_set(stamped, magic=1, attributes=8)
    )
    assert [one[1:3] for one in read_with_kafka_python(up_convert(payload))] == [
        (5000, 1),
        (5000, 1),
    ]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        pytest.param(b"", InvalidRecords, id="nothing"),
        pytest.param(batch([A]), InvalidRecords, id="a batch"),
        pytest.param(message_set([A], magic=1)[:-1], CorruptRecords, id="cut short"),
        pytest.param(message_set([B, A], magic=1), CorruptRecords, id="descending offsets"),
        pytest.param(
            message_set([A, Sample(2**32, 0, None, None)], magic=1),
            CorruptRecords,
            id="offsets too far apart",
        ),
        pytest.param(
            message_set([B], magic=1) + wrapper([A], GZIP, magic=1),
            CorruptRecords,
            id="descending over segments",
        ),
        pytest.param(
            message_set([Sample(-4, 0, None, None)], magic=1), CorruptRecords, id="negative offset"
        ),
    ],
)
def test_invalid_set_is_rejected(payload, error):
    with pytest.raises(error):
        up_convert(payload)


def test_bomb_is_rejected():
    with pytest.raises(RecordsTooLarge):
        up_convert(
            wrapper([Sample(0, 0, None, b"\0" * 1_000_000)], LZ4, magic=1),
            max_decompressed_bytes=100_000,
        )


@prop
@given(samples(), magics, legacy_codecs, st.none() | st.integers(0, 2**62))
def test_other_libraries_read_same_records_from_batch(found, magic, codec, base_offset):
    payload = wrapper(found, codec, magic=magic) if codec else message_set(found, magic=magic)
    converted = up_convert(payload, base_offset=base_offset)
    offsets = [s.offset if base_offset is None else base_offset + n for n, s in enumerate(found)]
    expected = [
        (offset, s.timestamp if magic else -1, 0, s.key, s.value, ())
        for offset, s in zip(offsets, found, strict=True)
    ]
    assert read_with_kafka_python(converted) == expected
    assert read_with_aiokafka(converted) == expected
