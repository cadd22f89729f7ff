"""What can be wrong with the bytes of a record set, and the one place that words it."""

from __future__ import annotations

from enum import IntEnum


class RecordsError(ValueError):
    """The base of everything that the functions of this package raise for bytes they will not take."""


class CorruptRecords(RecordsError):
    """A length, a checksum or the structure is wrong. Kafka: CORRUPT_MESSAGE."""


class InvalidRecords(RecordsError):
    """Well-formed, but not allowed: a wrapper within a wrapper, mixed formats. Kafka: INVALID_RECORD."""


class UnsupportedCodec(RecordsError):
    """The attributes name a codec that this format does not have. Kafka: UNSUPPORTED_COMPRESSION_TYPE."""


class InvalidTimestamp(RecordsError):
    """A producer claimed a timestamp that only the broker may give. Kafka: INVALID_TIMESTAMP."""


class RecordsTooLarge(RecordsError):
    """Decompressed, the records exceed the limit: a compression bomb, or a limit that is too small. Kafka: MESSAGE_TOO_LARGE."""


class NoMemory(RecordsTooLarge):
    """There was no memory to decompress them: another time there may be."""


class Fault(IntEnum):
    """What an inner loop found. Both implementations report faults by these numbers, so that they also agree in words."""

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
    Fault.TRUNCATED: (CorruptRecords, "the record ends after the bytes do"),
    Fault.SIZE: (CorruptRecords, "the size is below the smallest record's"),
    Fault.MAGIC: (InvalidRecords, "the magic byte is not one of a message set's"),
    Fault.MIXED: (InvalidRecords, "the magic byte is not that of the other messages"),
    Fault.CHECKSUM: (CorruptRecords, "the checksum does not match"),
    Fault.FIELDS: (CorruptRecords, "key, value and headers do not fill the record"),
    Fault.CODEC: (UnsupportedCodec, "the attributes name an unknown codec"),
    Fault.NESTED: (InvalidRecords, "a compressed message lies within a compressed message"),
    Fault.COUNT: (CorruptRecords, "there are more or fewer records than announced"),
    Fault.OFFSET: (CorruptRecords, "the offset is out of order or out of range"),
    Fault.TIMESTAMP: (CorruptRecords, "the timestamp is out of range"),
}


def error_of(fault: int, position: int) -> RecordsError:
    """The error for `fault`, found in the record that begins `position` bytes into the set."""
    kind, text = _WORDING[Fault(fault)]
    return kind(f"record at byte {position}: {text}")
