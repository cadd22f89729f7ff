"""Batches in lz4, as Kafka clients write them, converted in one kernel call."""

from __future__ import annotations

import lz4.frame
import pytest

from compat.message_sets import read_records
from tests.compat.message_sets.whole_batches import content_of, convert_whole, needs, value_of
from tests.records.kernels import kernel_only
from tests.records.sample_records import (
    LZ4,
    LZ4_HISTORIC,
    LZ4_RIGHT,
    batch,
    lz4_frame,
    random_samples,
    records_of,
)

pytestmark = [kernel_only, needs(LZ4)]


@pytest.mark.parametrize(("magic", "checksum"), [(0, LZ4_HISTORIC), (1, LZ4_RIGHT)])
def test_header_checksum_matches_consumer_format(magic, checksum):
    ours = convert_whole(batch(random_samples(3, 100), codec=LZ4), magic)
    assert value_of(ours)[:7] == b"\x04\x22\x4d\x18\x60\x40" + bytes((checksum,))


def test_uncompressible_records_are_compressed_after_conversion_overhead():
    found = random_samples(200, 12)
    content = records_of(found)
    header, end = lz4_frame(b"")[:7], bytes(4)
    frame = header + (len(content) | 1 << 31).to_bytes(4, "little") + content + end
    ours = convert_whole(batch(found, content=frame, attributes=LZ4))
    assert len(ours) < len(content_of(ours)) * 0.8


@pytest.mark.parametrize("size", [4, 5, 6, 7], ids=["64 KiB", "256 KiB", "1 MiB", "4 MiB"])
def test_all_block_sizes_are_handled(size):
    found = random_samples(100, 1024, letters=b"abcdefgh")
    frame = lz4.frame.compress(
        records_of(found), block_size=size, block_linked=False, store_size=False
    )
    ours = convert_whole(batch(found, content=frame, attributes=LZ4))
    assert [one.value for one in read_records(ours)] == [one.value for one in found]
