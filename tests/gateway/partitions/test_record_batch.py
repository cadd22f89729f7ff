"""The header of a v2 batch: validation and stamping."""

from __future__ import annotations

from struct import pack_into

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode, KafkaError
from records import peek_magic, read_header, stamp_batch
from tests.gateway.protocol.wire.implementations import IMPLEMENTATIONS, use
from tests.records.peers import read_with_aiokafka, read_with_kafka_python
from tests.records.record_sets import TIME, batch, batch_of_aiokafka, old_set, pairs

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)


@pytest.fixture(params=IMPLEMENTATIONS, autouse=True)
def implementation(request, monkeypatch):
    """Run with the compiled functions and without them."""
    use(request.param, monkeypatch)


def sealed(records: memoryview) -> memoryview:
    """Return the batch with a correct CRC."""
    pack_into(">I", records, 17, crc32c.crc32c(records[21:]))
    return records


def with_attributes(bits: int) -> memoryview:
    records = batch(3)
    records[22] |= bits
    return sealed(records)


def refused(records: memoryview, version: int = 11) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check_batch(records, version)
    return caught.value.code


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("build", [batch, batch_of_aiokafka], ids=["kafka-python", "aiokafka"])
def test_batch_of_other_library_is_accepted(build, codec):
    records = build(pairs(7), producer=(12, 3, 40), codec=codec)
    found = check_batch(records, 11)
    assert (found.base_offset, found.size, found.count, found.last_offset_delta) == (
        0,
        len(records),
        7,
        6,
    )
    assert (found.producer_id, found.producer_epoch, found.base_sequence, found.last_sequence) == (
        12,
        3,
        40,
        46,
    )
    assert (found.max_timestamp, found.codec) == (TIME, codec)
    assert found.has_producer
    assert not found.is_control
    assert not found.is_transactional


def test_batch_without_producer_id_has_no_producer():
    assert not check_batch(batch(1), 11).has_producer


def test_transactional_bit_is_read():
    assert check_batch(batch(1, producer=(1, 0, 0), is_transactional=True), 11).is_transactional


@pytest.mark.parametrize("length", [1, 17, 60])
def test_batch_shorter_than_header_is_corrupt(length):
    assert refused(batch(1)[:length]) is ErrorCode.CORRUPT_MESSAGE


def test_truncated_batch_is_corrupt():
    assert refused(batch(5)[:-1]) is ErrorCode.CORRUPT_MESSAGE


def test_length_below_header_size_is_corrupt():
    records = batch(1)
    pack_into(">i", records, 8, -1)
    assert refused(records) is ErrorCode.CORRUPT_MESSAGE


def test_two_batches_are_refused():
    assert refused(memoryview(bytearray(batch(1)) + batch(1))) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_is_refused(magic):
    assert refused(old_set(5, magic=magic)) is ErrorCode.INVALID_RECORD


@given(st.integers(21, 200), st.integers(1, 255))
def test_changed_byte_fails_crc_check(at, flip):
    records = batch(5, producer=(1, 0, 0))
    records[at % (len(records) - 21) + 21] ^= flip
    assert refused(records) is ErrorCode.CORRUPT_MESSAGE


def test_control_batch_is_refused():
    assert refused(with_attributes(0x20)) is ErrorCode.INVALID_RECORD


def test_log_append_time_from_producer_is_refused():
    assert refused(with_attributes(0x08)) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec):
    assert refused(with_attributes(codec)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_zstd_requires_produce_v7():
    records = batch(3, codec=ZSTD)
    assert refused(records, 6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert check_batch(records, 7).codec == ZSTD


@pytest.mark.parametrize(("last_delta", "count"), [(2, 2), (2, 4), (-1, 0), (-2, -1), (0, 0)])
def test_record_count_must_match_last_offset_delta(last_delta, count):
    records = batch(3)
    pack_into(">i", records, 23, last_delta)
    pack_into(">i", records, 57, count)
    assert refused(sealed(records)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("producer", [(5, 0, -1), (5, -1, 0)])
def test_producer_id_requires_epoch_and_sequence(producer):
    assert refused(batch(1, producer=producer)) is ErrorCode.INVALID_RECORD


def test_last_sequence_wraps_after_int32_max():
    # DefaultRecordBatch.incrementSequence(2147483646, 3) is 1.
    assert check_batch(batch(4, producer=(5, 0, 2147483646)), 11).last_sequence == 1


@given(st.binary(max_size=200), st.sampled_from([3, 7, 11]))
def test_garbage_is_refused_with_kafka_error(raw, version):
    with pytest.raises(KafkaError):
        check_batch(memoryview(bytearray(raw)), version)


@given(st.integers(0, 100), st.binary(min_size=1, max_size=4))
def test_random_header_is_accepted_or_refused(at, foreign):
    records = batch(2, producer=(1, 0, 0))
    at = min(at, len(records) - len(foreign))
    records[at : at + len(foreign)] = foreign
    try:
        found = check_batch(sealed(records), 11)
    except KafkaError:
        return
    assert found.size == len(records)
    assert found.count == found.last_offset_delta + 1 > 0


@pytest.mark.parametrize("codec", [NONE, GZIP, LZ4])
def test_stamp_sets_offset_and_epoch_only(codec):
    records = batch(5, codec=codec)
    before = read_with_kafka_python(bytes(records))
    stamp_batch(records, 1_000_000_007, 6, None)
    assert [
        (found[0] - 1_000_000_007, *found[1:]) for found in read_with_kafka_python(bytes(records))
    ] == before
    assert (read_header(records).base_offset, read_header(records).leader_epoch) == (
        1_000_000_007,
        6,
    )


@pytest.mark.parametrize("read", [read_with_kafka_python, read_with_aiokafka])
def test_stamped_log_append_time_applies_to_all_records(read):
    records = batch(5, codec=GZIP)
    stamp_batch(records, 10, 0, TIME + 77)
    found = read(bytes(records))
    assert [(offset, timestamp, kind) for offset, timestamp, kind, *_ in found] == [
        (10 + n, TIME + 77, 1) for n in range(5)
    ]


def test_magic_of_short_input_is_minus_one():
    assert peek_magic(b"") == peek_magic(bytes(16)) == -1


def test_magic_is_signed():
    assert peek_magic(bytes(16) + b"\xfe") == -2
    assert [peek_magic(records) for records in (old_set(magic=0), old_set(magic=1), batch())] == [
        0,
        1,
        2,
    ]
