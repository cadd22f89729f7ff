"""Errors in the bytes of record sets, and their messages."""

from __future__ import annotations

from enum import IntEnum


class RecordsError(ValueError):
    """Base class of the errors that this package raises for invalid or unsupported bytes."""


class CorruptRecords(RecordsError):
    """A length, a checksum or the structure is wrong. Kafka: CORRUPT_MESSAGE."""


class InvalidRecords(RecordsError):
    """Well-formed but not allowed: nested compressed messages, mixed formats. Kafka:
    INVALID_RECORD.
    """


class UnsupportedCodec(RecordsError):
    """The format does not have this codec. Kafka: UNSUPPORTED_COMPRESSION_TYPE."""


class InvalidTimestamp(RecordsError):
    """A producer set a timestamp type that only the broker may set. Kafka: INVALID_TIMESTAMP."""


class RecordsTooLarge(RecordsError):
    """The decompressed records exceed the limit. Kafka: MESSAGE_TOO_LARGE."""


class NoMemory(RecordsTooLarge):
    """Memory for decompression could not be allocated; retryable."""


class Fault(IntEnum):
    """Fault codes of the inner loops, shared by both implementations so that their messages are the
    same.
    """

    TRUNCATED = 1
    SIZE = 2
    MAGIC = 3
    MIXED = 4
    CHECKSUM = 5
    FIELDS = 6
    CODEC = 7
    NESTED = 8
    COUNT = 9
    OFFSET = 10
    TIMESTAMP = 11


_WORDING: dict[Fault, tuple[type[RecordsError], str]] = {
    Fault.TRUNCATED: (CorruptRecords, "record extends beyond the end of the data"),
    Fault.SIZE: (CorruptRecords, "size is below the minimum"),
    Fault.MAGIC: (InvalidRecords, "magic byte is neither 0 nor 1"),
    Fault.MIXED: (InvalidRecords, "magic byte differs from that of the other messages"),
    Fault.CHECKSUM: (CorruptRecords, "checksum does not match"),
    Fault.FIELDS: (CorruptRecords, "key, value and headers do not fill the record"),
    Fault.CODEC: (UnsupportedCodec, "unknown codec in the attributes"),
    Fault.NESTED: (InvalidRecords, "compressed message inside a compressed message"),
    Fault.COUNT: (CorruptRecords, "number of records differs from the record count"),
    Fault.OFFSET: (CorruptRecords, "offset is out of order or out of range"),
    Fault.TIMESTAMP: (CorruptRecords, "timestamp is out of range"),
}


def error_of(fault: int, position: int) -> RecordsError:
    """The error for `fault` in the record that starts at byte `position` of the set."""
    kind, text = _WORDING[Fault(fault)]
    return kind(f"record at byte {position}: {text}")
