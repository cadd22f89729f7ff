"""Flexible encodings (KIP-482), written from the protocol guide, with unknown tagged fields."""

from __future__ import annotations

import struct


def uvarint(value: int) -> bytes:
    """Seven bits per byte, lowest first. The high bit marks all bytes but the last."""
    out = b""
    while value > 0x7F:
        out += bytes([value % 0x80 + 0x80])
        value //= 0x80
    return out + bytes([value])


def tags(fields: dict[int, bytes]) -> bytes:
    """The count, then number, size and bytes of each."""
    return uvarint(len(fields)) + b"".join(
        uvarint(tag) + uvarint(len(content)) + content for tag, content in sorted(fields.items())
    )


def text(value: str | None) -> bytes:
    return blob(None if value is None else value.encode())


def blob(value: bytes | None) -> bytes:
    """The length plus one, 0 for null."""
    return uvarint(0) if value is None else uvarint(len(value) + 1) + value


def array(items: list[bytes]) -> bytes:
    return uvarint(len(items) + 1) + b"".join(items)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)
