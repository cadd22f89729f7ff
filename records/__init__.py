"""Record batches (format 2): header, codecs, reading and rewriting; and the inner loops.

Pure functions over buffers: no I/O, no clock, no shared state, callable from any thread. Invalid
bytes raise RecordsError and nothing else, except in `read_header`. The inner loops run in a
compiled kernel that releases the GIL (`KERNEL` is "cython"), or in plain Python if the kernel is
not available; they include those of `compat.message_sets`. This package imports no other package of
this project.
"""

from records.batch import (
    HEADER_BYTES,
    BatchHeader,
    build_batch,
    read_batch,
    read_header,
    stamp_batch,
)
from records.batch_rewrite import (
    empty_batch,
    filter_records,
    newest_timestamp,
    record_keys,
    zstd_to_gzip,
)
from records.codecs import MAX_DECOMPRESSED_BYTES
from records.errors import (
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    NoMemory,
    RecordsError,
    RecordsTooLarge,
    UnsupportedCodec,
)
from records.kernel import KERNEL, KERNEL_REASON
from records.layout import Codec, peek_magic
from records.record_reader import DecodedRecord, cut, first_at_or_after, read_records

__all__ = [
    "HEADER_BYTES",
    "KERNEL",
    "KERNEL_REASON",
    "MAX_DECOMPRESSED_BYTES",
    "BatchHeader",
    "Codec",
    "CorruptRecords",
    "DecodedRecord",
    "InvalidRecords",
    "InvalidTimestamp",
    "NoMemory",
    "RecordsError",
    "RecordsTooLarge",
    "UnsupportedCodec",
    "build_batch",
    "cut",
    "empty_batch",
    "filter_records",
    "first_at_or_after",
    "newest_timestamp",
    "peek_magic",
    "read_batch",
    "read_header",
    "read_records",
    "record_keys",
    "stamp_batch",
    "zstd_to_gzip",
]
