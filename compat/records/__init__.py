"""Record sets of every format: message sets (magic 0 and 1) are checked, stamped, converted and read; batches (magic 2) converted and read.

Pure functions over buffers: no I/O, no clock, nothing shared, any thread. Whatever the bytes, nothing but RecordsError is raised for them. The heavy
loops run in a compiled kernel that releases the GIL where there is one (`KERNEL` is then "cython"), in plain Python elsewhere.
"""

from compat.records.down import down_convert, down_convert_all, gzip_for_zstd
from compat.records.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    NoMemory,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
)
from compat.records.filtering import empty_batch, filter_records, keys, newest
from compat.records.layout import Codec
from compat.records.limits import MAX_DECOMPRESSED_BYTES
from compat.records.loops import KERNEL, KERNEL_REASON
from compat.records.message_set import MessageSet, check_message_set, stamp_message_set
from compat.records.old_lz4 import has_old_lz4, with_right_lz4
from compat.records.reading import Record, cut, first_at_or_after, records
from compat.records.up import up_convert

__all__ = [
    "KERNEL",
    "KERNEL_REASON",
    "MAX_DECOMPRESSED_BYTES",
    "Codec",
    "CorruptRecords",
    "InvalidRecords",
    "InvalidTimestamp",
    "MessageSet",
    "NoMemory",
    "Record",
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
    "gzip_for_zstd",
    "has_old_lz4",
    "keys",
    "newest",
    "records",
    "stamp_message_set",
    "up_convert",
    "with_right_lz4",
]
