"""Record sets of all formats: message sets (magic 0 and 1) and record batches (magic 2).

Message sets are checked, stamped with offsets, converted and read; batches are converted and read.

Pure functions over buffers: no I/O, no clock, no shared state, callable from any thread. Invalid
bytes raise RecordsError and nothing else. The inner loops run in a compiled kernel that releases
the GIL (`KERNEL` is "cython"), or in plain Python if the kernel is not available.
"""

from compat.records.codecs import MAX_DECOMPRESSED_BYTES
from compat.records.down_conversion import down_convert, down_convert_all, zstd_to_gzip
from compat.records.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    NoMemory,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
)
from compat.records.filtering import empty_batch, filter_records, newest_timestamp, record_keys
from compat.records.kernel import KERNEL, KERNEL_REASON
from compat.records.layout import Codec
from compat.records.legacy_lz4 import fix_lz4_checksums, has_legacy_lz4
from compat.records.message_set import MessageSet, check_message_set, stamp_message_set
from compat.records.reading import DecodedRecord, cut, first_at_or_after, read_records
from compat.records.up_conversion import up_convert

__all__ = [
    "KERNEL",
    "KERNEL_REASON",
    "MAX_DECOMPRESSED_BYTES",
    "Codec",
    "CorruptRecords",
    "DecodedRecord",
    "InvalidRecords",
    "InvalidTimestamp",
    "MessageSet",
    "NoMemory",
    "RecordsError",
    "RecordsTooLarge",
    "UnsupportedCodec",
    "check_message_set",
    "cut",
    "down_convert",
    "down_convert_all",
    "empty_batch",
    "filter_records",
    "first_at_or_after",
    "fix_lz4_checksums",
    "has_legacy_lz4",
    "newest_timestamp",
    "read_records",
    "record_keys",
    "stamp_message_set",
    "up_convert",
    "zstd_to_gzip",
]
