"""The few encodings that the hand-written roads need: unsigned varints, compact strings, tagged fields (KIP-482).

Readers raise ValueError, IndexError or struct.error on bytes that make no sense; their callers turn that into Refused in one place.
"""

from __future__ import annotations

from struct import Struct

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")

#: More tagged fields than this in one place is no client, but an attack on the loop that skips them.
MAX_TAGS = 1024

#: Topics, partitions and other rows of all arrays of one request together. No client names so many, and each costs up to 300 bytes of memory and
#: some microseconds while nobody else is served.
MAX_ELEMENTS = 50_000

#: Bytes of a string. Older versions write lengths in 16 bits, so a longer one from a newer version could be told to no older client. As in Kafka's
#: generated readers.
MAX_STRING_BYTES = (1 << 15) - 1

Bytes = bytes | bytearray


def read_uvarint(source: Bytes, position: int) -> tuple[int, int]:
    """(value, position after it). At most five bytes, as in Kafka's ByteUtils.readUnsignedVarint."""
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
            raise ValueError("a varint of more than five bytes")


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
    """The position after a tagged-field section. What the tags say is ignored, as a broker that does not know them does."""
    count, position = read_uvarint(source, position)
    if count > MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        _, position = read_uvarint(source, position)
        size, position = read_uvarint(source, position)
        position += size
    if position > len(source):
        raise ValueError("a tagged field is longer than its message")
    return position


def read_nullable_string(source: Bytes, position: int, *, compact: bool) -> tuple[str | None, int]:
    """(text or None for null, position after it)."""
    if compact:
        length, position = read_uvarint(source, position)
        length -= 1
    else:
        (length,) = INT16.unpack_from(source, position)
        position += 2
    if length < 0:
        return None, position
    if length > MAX_STRING_BYTES:
        raise ValueError(f"a string of {length} bytes")
    end = position + length
    if end > len(source):
        raise ValueError("a string is longer than its message")
    return source[position:end].decode(), end


def read_string(source: Bytes, position: int, *, compact: bool) -> tuple[str, int]:
    """(text, position after it), where null makes no sense."""
    text, position = read_nullable_string(source, position, compact=compact)
    if text is None:
        raise ValueError("a null where there is none")
    return text, position


def write_string(text: str, *, compact: bool) -> bytes:
    raw = text.encode()
    if compact:
        return write_uvarint(len(raw) + 1) + raw
    return INT16.pack(len(raw)) + raw


def read_count(
    source: Bytes, position: int, *, compact: bool, smallest: int, most: int = MAX_ELEMENTS
) -> tuple[int, int]:
    """(number of elements of an array that may not be null, position after it). `smallest` is the fewest bytes that one element takes: a count
    that cannot fit in the rest of the message, or is above `most`, is refused before anyone loops over it."""
    if compact:
        count, position = read_uvarint(source, position)
        count -= 1
    else:
        (count,) = INT32.unpack_from(source, position)
        position += 4
    if not 0 <= count <= most or count * smallest > len(source) - position:
        raise ValueError(f"an array of {count} elements in {len(source) - position} bytes")
    return count, position
