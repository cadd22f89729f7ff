"""Record batches (format 2): header, codecs, iteration and the inner loops of all formats.

Pure functions over buffers: no I/O, no clock, no shared state, callable from any thread. Invalid
bytes raise RecordsError and nothing else. The inner loops run in a compiled kernel that releases
the GIL (`KERNEL` is "cython"), or in plain Python if the kernel is not available. Imports no other
package of this project.
"""

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
from records.layout import Codec

__all__ = [
    "KERNEL",
    "KERNEL_REASON",
    "MAX_DECOMPRESSED_BYTES",
    "Codec",
    "CorruptRecords",
    "InvalidRecords",
    "InvalidTimestamp",
    "NoMemory",
    "RecordsError",
    "RecordsTooLarge",
    "UnsupportedCodec",
]
