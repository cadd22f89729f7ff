"""Recompression of zstd batches for consumers that know magic 2 but not zstd."""

import pytest

from compat.message_sets import read_records
from records import RecordsError, zstd_to_gzip
from tests.records.sample_records import GZIP, ZSTD, Sample, batch

SAMPLES = [Sample(offset, 1_000 + offset, b"k", b"v" * 50) for offset in range(3)]


def test_only_codec_length_and_crc_differ():
    stored = batch(SAMPLES, codec=ZSTD)
    made = zstd_to_gzip(stored)
    assert list(read_records(made)) == list(read_records(stored))
    assert (made[22] & 7, stored[22] & 7) == (GZIP, ZSTD)
    # Base offset and epoch, magic, and the fields from last offset delta to record count.
    assert (made[:8], made[12:17], made[23:61]) == (stored[:8], stored[12:17], stored[23:61])


@pytest.mark.parametrize("at", [0, 8, 17, 22, 60, 61, -1])
def test_incomplete_batch_is_rejected(at):
    stored = bytearray(batch(SAMPLES, codec=ZSTD))
    stored[at] ^= 0xFF
    if at == 0:
        # The checksum does not cover the base offset, but it cannot be negative.
        assert stored[0] == 0xFF
    with pytest.raises(RecordsError):
        zstd_to_gzip(bytes(stored))


def test_content_over_the_limit_is_rejected():
    with pytest.raises(RecordsError):
        zstd_to_gzip(
            batch([Sample(0, 0, b"", b"0" * 100_000)], codec=ZSTD), max_decompressed_bytes=1000
        )
