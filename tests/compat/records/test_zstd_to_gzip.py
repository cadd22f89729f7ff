"""Batches in zstd for consumers that know the format and not the codec."""

import pytest

from compat.records import RecordsError, read_records, zstd_to_gzip
from tests.compat.records.building import GZIP, ZSTD, Sample, batch

SAMPLES = [Sample(offset, 1_000 + offset, b"k", b"v" * 50) for offset in range(3)]


def test_only_codec_length_and_crc_differ():
    stored = batch(SAMPLES, codec=ZSTD)
    made = zstd_to_gzip(stored)
    assert list(read_records(made)) == list(read_records(stored))
    assert (made[22] & 7, stored[22] & 7) == (GZIP, ZSTD)
    # Base offset and epoch, magic, and everything from the last offset delta to the number of records.
    assert (made[:8], made[12:17], made[23:61]) == (stored[:8], stored[12:17], stored[23:61])


@pytest.mark.parametrize("at", [0, 8, 17, 22, 60, 61, -1])
def test_a_batch_that_is_not_whole_is_refused(at):
    stored = bytearray(batch(SAMPLES, codec=ZSTD))
    stored[at] ^= 0xFF
    if at == 0:
        # The base offset is not under the checksum, but it cannot be negative.
        assert stored[0] == 0xFF
    with pytest.raises(RecordsError):
        zstd_to_gzip(bytes(stored))


def test_what_unpacks_to_more_than_the_limit_is_refused():
    with pytest.raises(RecordsError):
        zstd_to_gzip(
            batch([Sample(0, 0, b"", b"0" * 100_000)], codec=ZSTD), max_decompressed_bytes=1000
        )
