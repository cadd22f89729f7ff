"""Unpacking and packing of batches; other libraries read the packed ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.partitions.record_batch import check_batch
from gateway.partitions.record_format import V2BatchFormat
from storage.plain_records import PlainBatch, PlainRecord, ProducerSequence
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.record_sets import TIME, batch, old_set

FORMAT = V2BatchFormat()

times = st.integers(0, (1 << 62))
values = st.none() | st.binary(max_size=300)
record = st.builds(
    PlainRecord,
    values,
    values,
    st.lists(st.tuples(st.text(max_size=9).map(str.encode), values), max_size=3).map(tuple),
    times,
)


def found(payload):
    return [
        (one.key, one.value, one.headers, one.timestamp) for one in FORMAT.unpack(payload).records
    ]


@given(
    st.lists(record, min_size=1, max_size=8),
    st.none()
    | st.builds(ProducerSequence, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_packed_records_unpack_unchanged(some, sequence):
    payload = FORMAT.pack(PlainBatch(some, sequence))
    assert FORMAT.unpack(payload) == PlainBatch(some, sequence)


@pytest.mark.parametrize("read", [read_with_kafka_python, read_with_aiokafka])
def test_other_libraries_read_packed_batch(read):
    some = [
        PlainRecord(b"k", b"v", ((b"h", b"1"), (b"n", None)), TIME),
        PlainRecord(None, None, (), TIME - 5),
        PlainRecord(b"", b"x" * 200, (), TIME + 1),
    ]
    payload = FORMAT.pack(PlainBatch(some))
    FORMAT.stamp(payload, 1000, 3)
    assert read(bytes(payload)) == [
        (1000, TIME, 0, b"k", b"v", ((b"h", b"1"), (b"n", None))),
        (1001, TIME - 5, 0, None, None, ()),
        (1002, TIME + 1, 0, b"", b"x" * 200, ()),
    ]


def test_packed_batch_passes_check_batch():
    checked = check_batch(
        memoryview(
            FORMAT.pack(
                PlainBatch([PlainRecord(None, b"v", (), TIME)] * 3, ProducerSequence(5, 1, 9))
            )
        ),
        9,
    )
    assert (
        checked.count,
        checked.max_timestamp,
        checked.producer_id,
        checked.producer_epoch,
        checked.base_sequence,
    ) == (3, TIME, 5, 1, 9)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batch_of_any_codec_is_unpacked(codec):
    assert FORMAT.unpack(
        batch([(b"k", b"v"), (None, b"w")], codec=codec, producer=(7, 2, 30))
    ) == PlainBatch(
        [PlainRecord(b"k", b"v", (), TIME), PlainRecord(None, b"w", (), TIME)],
        ProducerSequence(7, 2, 30),
    )


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_of_old_format_is_unpacked(magic, codec):
    timestamp = TIME if magic else -1
    assert FORMAT.unpack(
        old_set([(b"k", b"v"), (None, b"w")], magic=magic, codec=codec)
    ) == PlainBatch(
        [PlainRecord(b"k", b"v", (), timestamp), PlainRecord(None, b"w", (), timestamp)]
    )


def test_unreadable_payload_raises_value_error():
    payload = batch(3)
    payload[70] ^= 0x7F
    with pytest.raises(ValueError, match=r"\S"):
        FORMAT.unpack(payload)


def test_payload_above_decompression_limit_is_refused():
    with pytest.raises(ValueError, match="1000"):
        V2BatchFormat(1000).unpack(batch([(None, b"." * 5000)], codec=1))
