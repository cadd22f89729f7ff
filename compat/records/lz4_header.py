"""The lz4 frame header and its historic quirk.

Kafka's clients before 0.10 computed the header checksum over the frame's magic number as well. Writers for magic 0 have to repeat that, since old
consumers verify it; readers take either (KAFKA-3160). Layout: the LZ4 Frame Format, "Frame Descriptor"; hash: the XXH32 specification.
"""

from __future__ import annotations

from functools import lru_cache
from struct import unpack

from compat.records.errors import CorruptRecords, InvalidRecords
from compat.records.layout import Buffer

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_INDEPENDENT_BLOCKS = 0x20
_CONTENT_SIZE = 0x08
_DICTIONARY = 0x01
_VERSION_MASK = 0xC0
_VERSION_ONE = 0x40
_SHORTEST = 7

_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_MASK = 0xFFFFFFFF


def read(frame: Buffer) -> bytes:
    """The frame's header, with the checksum that the specification wants, whichever of the two it bears. Raises CorruptRecords."""
    size = _header_size(frame)
    descriptor, found = bytes(frame[: size - 1]), frame[size - 1]
    right, historic = _checksums(descriptor)
    if found not in (right, historic):
        raise CorruptRecords("lz4: the checksum of the frame header does not match")
    return descriptor + bytes((right,))


def with_historic_checksum(frame: Buffer) -> bytes:
    """The same frame for a consumer of magic 0."""
    size = _header_size(frame)
    descriptor = bytes(frame[: size - 1])
    return b"".join((descriptor, bytes((_checksums(descriptor)[1],)), memoryview(frame)[size:]))


def has_historic_checksum(frame: Buffer) -> bool:
    """Whether a consumer of magic 1 or 2 would refuse the frame. Raises CorruptRecords."""
    size = _header_size(frame)
    right, historic = _checksums(bytes(frame[: size - 1]))
    return frame[size - 1] == historic != right


def with_standard_checksum(frame: Buffer) -> bytes:
    """The same frame for a reader that knows the specification only. Raises CorruptRecords."""
    header = read(frame)
    return b"".join((header, memoryview(frame)[len(header) :]))


def has_content_size(frame: Buffer) -> bool:
    """Whether the header claims how much the frame holds. Only of a frame that `read` has taken."""
    return bool(frame[4] & _CONTENT_SIZE)


def require_independent_blocks(frame: Buffer) -> None:
    """No Java client reads blocks that depend on each other, so none may be stored. Raises InvalidRecords, CorruptRecords."""
    _header_size(frame)
    if not frame[4] & _INDEPENDENT_BLOCKS:
        raise InvalidRecords("lz4: the blocks of the frame depend on each other")


def _header_size(frame: Buffer) -> int:
    """The length of the header: magic number, two flag bytes, what they announce, the checksum."""
    if len(frame) < _SHORTEST or bytes(frame[:4]) != _FRAME_MAGIC:
        raise CorruptRecords("lz4: this is no frame")
    flags = frame[4]
    if flags & _VERSION_MASK != _VERSION_ONE:
        raise CorruptRecords("lz4: the version of the frame is unknown")
    size = _SHORTEST + (8 if flags & _CONTENT_SIZE else 0) + (4 if flags & _DICTIONARY else 0)
    if len(frame) < size:
        raise CorruptRecords("lz4: the frame header is cut short")
    return size


@lru_cache(maxsize=64)
def _checksums(descriptor: bytes) -> tuple[int, int]:
    """(as specified, as Kafka once did)"""
    return _xxh32(descriptor[4:]) >> 8 & 0xFF, _xxh32(descriptor) >> 8 & 0xFF


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> (32 - bits)) & _MASK


def _xxh32(content: bytes) -> int:
    """XXH32 with seed 0."""
    one, two, three, four, five = _PRIMES
    position = 0
    if len(content) >= 16:
        lanes = [(one + two) & _MASK, two, 0, -one & _MASK]
        while position + 16 <= len(content):
            for lane, word in enumerate(unpack("<4I", content[position : position + 16])):
                lanes[lane] = _rotate(lanes[lane] + word * two, 13) * one & _MASK
            position += 16
        total = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        total = five
    total = (total + len(content)) & _MASK
    while position + 4 <= len(content):
        (word,) = unpack("<I", content[position : position + 4])
        total = _rotate(total + word * three, 17) * four & _MASK
        position += 4
    for byte in content[position:]:
        total = _rotate(total + byte * five, 11) * one & _MASK
    total = (total ^ total >> 15) * two & _MASK
    total = (total ^ total >> 13) * three & _MASK
    return total ^ total >> 16
