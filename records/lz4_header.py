"""The lz4 frame header and the incorrect header checksum of old Kafka clients.

Kafka clients before 0.10 included the frame's magic number in the header checksum. Frames in magic
0 must repeat this, because old consumers verify it; readers accept both (KAFKA-3160). Layout:
"Frame Descriptor" in the LZ4 Frame Format; hash: the XXH32 specification.
"""

from __future__ import annotations

from functools import lru_cache
from struct import unpack

from records.errors import CorruptRecords, InvalidRecords
from records.layout import Buffer

LZ4_HEADER_BYTES = 7
KAFKA_HEADERS = frozenset(
    b"\x04\x22\x4d\x18\x60" + rest for rest in (b"\x40\x82", b"\x50\xfb", b"\x60\x51", b"\x70\x73")
)
"""Headers of the frames of Java clients and librdkafka, which the kernel handles: independent
blocks of 64 KiB, 256 KiB, 1 MiB or 4 MiB, no other options, and the checksum.
"""

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
    """Return the frame's header with the standard checksum, whichever of the two it has. Raises
    CorruptRecords.
    """
    size = _header_size(frame)
    descriptor, found = bytes(frame[: size - 1]), frame[size - 1]
    right, historic = _checksums(descriptor)
    if found not in (right, historic):
        raise CorruptRecords("lz4: frame header checksum does not match")
    return descriptor + bytes((right,))


def with_historic_checksum(frame: Buffer) -> bytes:
    """The same frame for a consumer of magic 0."""
    size = _header_size(frame)
    descriptor = bytes(frame[: size - 1])
    return b"".join((descriptor, bytes((_checksums(descriptor)[1],)), memoryview(frame)[size:]))


def has_historic_checksum(frame: Buffer) -> bool:
    """Whether a consumer of magic 1 or 2 would reject the frame. Raises CorruptRecords."""
    size = _header_size(frame)
    right, historic = _checksums(bytes(frame[: size - 1]))
    return frame[size - 1] == historic != right


def with_standard_checksum(frame: Buffer) -> bytes:
    """The same frame with the standard checksum. Raises CorruptRecords."""
    header = read(frame)
    return b"".join((header, memoryview(frame)[len(header) :]))


def has_content_size(frame: Buffer) -> bool:
    """Whether the header states the content size. Only for frames accepted by `read`."""
    return bool(frame[4] & _CONTENT_SIZE)


def require_independent_blocks(frame: Buffer) -> None:
    """Raise InvalidRecords if blocks depend on each other; Java clients cannot read such frames.

    Raises CorruptRecords for an invalid header.
    """
    _header_size(frame)
    if not frame[4] & _INDEPENDENT_BLOCKS:
        raise InvalidRecords("lz4: frames with dependent blocks are not supported")


def _header_size(frame: Buffer) -> int:
    """Header size: magic number, two flag bytes, the optional fields they announce, checksum."""
    if len(frame) < _SHORTEST or bytes(frame[:4]) != _FRAME_MAGIC:
        raise CorruptRecords("lz4: not an lz4 frame")
    flags = frame[4]
    if flags & _VERSION_MASK != _VERSION_ONE:
        raise CorruptRecords("lz4: unknown frame version")
    size = _SHORTEST + (8 if flags & _CONTENT_SIZE else 0) + (4 if flags & _DICTIONARY else 0)
    if len(frame) < size:
        raise CorruptRecords("lz4: truncated frame header")
    return size


@lru_cache(maxsize=64)
def _checksums(descriptor: bytes) -> tuple[int, int]:
    """Return (standard checksum, historic checksum)."""
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
