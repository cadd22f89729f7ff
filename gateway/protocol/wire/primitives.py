"""Encodings for the hand-written codecs: unsigned varints, compact strings, tagged fields
(KIP-482).

Readers raise ValueError, IndexError or struct.error on malformed input. Their callers convert these
to Refused in one place.
"""

from __future__ import annotations

from struct import Struct

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")

#: Tagged fields in one section. No client sends more; a larger count is an attack on the loop that
#: skips them.
MAX_TAGS = 1024

#: Elements of all arrays in one request: topics, partitions and others. No client sends more. Each
#: takes up to 300 bytes of memory and some microseconds, during which no other request is served.
MAX_ELEMENTS = 50_000

#: Bytes of a string, as in Kafka's generated readers. Older versions write lengths in 16 bits, so a
#: longer string from a newer version could not be sent to older clients.
MAX_STRING_BYTES = (1 << 15) - 1

Bytes = bytes | bytearray


def read_uvarint(source: Bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it). At most five bytes, as in ByteUtils.readUnsignedVarint."""
    byte = source[position]
    position += 1
    if byte < 0x80:
        return byte, position
    value, shift = byte & 0x7F, 7
    while True:
        byte = source[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF, position
        shift += 7
        if shift > 28:
            raise ValueError("varint longer than five bytes")


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tags(source: Bytes, position: int) -> int:
    """Return the position after a section of tagged fields.

    Their content is ignored, as by a broker that does not support them.
    """
    count, position = read_uvarint(source, position)
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields in one section")
    for _ in range(count):
        _, position = read_uvarint(source, position)
        size, position = read_uvarint(source, position)
        position += size
    if position > len(source):
        raise ValueError("tagged field exceeds the message")
    return position


def read_nullable_string(source: Bytes, position: int, *, compact: bool) -> tuple[str | None, int]:
    """Return (text, or None for null; position after it)."""
    if compact:
        length, position = read_uvarint(source, position)
        length -= 1
    else:
        (length,) = INT16.unpack_from(source, position)
        position += 2
    if length < 0:
        return None, position
    if length > MAX_STRING_BYTES:
        raise ValueError(f"string of {length} bytes is too long")
    end = position + length
    if end > len(source):
        raise ValueError("string exceeds the message")
    return source[position:end].decode(), end


def read_string(source: Bytes, position: int, *, compact: bool) -> tuple[str, int]:
    """Return (text, position after it). Raises ValueError for null."""
    text, position = read_nullable_string(source, position, compact=compact)
    if text is None:
        raise ValueError("null for a non-nullable string")
    return text, position


def write_string(text: str, *, compact: bool) -> bytes:
    raw = text.encode()
    if compact:
        return write_uvarint(len(raw) + 1) + raw
    return INT16.pack(len(raw)) + raw


def read_count(
    source: Bytes, position: int, *, compact: bool, smallest: int, most: int = MAX_ELEMENTS
) -> tuple[int, int]:
    """Return (number of elements of a non-nullable array, position after it).

    `smallest` is the smallest size of an element in bytes. Raises ValueError, before a caller loops
    over it, if the count does not fit in the rest of the message or is above `most`.
    """
    if compact:
        count, position = read_uvarint(source, position)
        count -= 1
    else:
        (count,) = INT32.unpack_from(source, position)
        position += 4
    if not 0 <= count <= most or count * smallest > len(source) - position:
        raise ValueError(f"array of {count} elements in {len(source) - position} bytes")
    return count, position
