"""Fuzz target: headers and ids of messages in Pulsar, by the compiled reader and in Python."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import ModuleType

from storage.pulsar.log.entry_messages import HEADER, Header, parse_header
from tests.fuzz.buffers import exact

_ALL = 1 << 63
#: `parse_header` decides about longer numbers and other JSON.
_AS_WRITTEN = re.compile(rb"\[1(,-?(0|[1-9][0-9]{0,17})){5,8}\]")
#: The offset from which messages of a fenced writer are void, and its leader epoch.
_FENCED_FROM, _FENCED_EPOCH = 12, 3

extension: ModuleType | None
try:
    extension = importlib.import_module("storage.pulsar.client._library")
except ImportError:
    extension = None


def messages(payload: bytes) -> None:
    """The first byte selects headers, one per line, or the id of a message.

    The second byte is the first offset to be read, the third the next expected one.
    """
    if len(payload) < 3 or extension is None:
        return
    if payload[0] & 1:
        content = payload[1:]
        assert extension.position_in(exact(content)) == _position(content)
        return
    offset, expected = payload[1], payload[2]
    # C strings.
    texts = payload[3:].replace(b"\0", b"").split(b"\n")
    headers = [_header(text) for text in texts]
    for text, header in zip(texts, headers, strict=True):
        assert extension.header_in(text) == header, (text, header)
    found = extension.received_of([(text, text) for text in texts], offset, expected, _fence)
    after = _after(headers, expected) if all(map(_AS_WRITTEN.fullmatch, texts)) else None
    if after is None:
        assert found == [
            (header, 7, number, text)
            for number, (text, header) in enumerate(zip(texts, headers, strict=True))
        ]
        return
    stored, *end = found
    assert end == [after, 7, len(texts) - 1]
    assert [(one.header, one.position, bytes(one.payload)) for one in stored] == [
        (header, (7, number), text)
        for number, (text, header) in enumerate(zip(texts, headers, strict=True))
        if header is not None and header.last_offset >= offset
    ]


def _header(text: bytes) -> Header | None:
    try:
        return parse_header({HEADER: text.decode()}) if text else None
    except UnicodeDecodeError:
        return None


def _fence(writer: tuple[int, int]) -> int:
    return _FENCED_FROM if writer[0] == _FENCED_EPOCH else _ALL


def _after(headers: list[Header | None], expected: int) -> int | None:
    """The next expected offset if all messages are the usual ones, as `stored` defines them."""
    for header in headers:
        if (
            header is None
            or header.entries != 1
            or header.last_offset < header.base_offset
            or not expected <= header.base_offset < _fence(header.writer)
        ):
            return None
        expected = header.last_offset + 1
    return expected


def _position(content: bytes) -> tuple[int, int] | None:
    """The first two fields of MessageIdData, varints with the tags 1 and 2."""
    found, at = [], 0
    for tag in (0x08, 0x10):
        if content[at : at + 1] != bytes((tag,)):
            return None
        at += 1
        end = next((n for n in range(at, min(len(content), at + 10)) if content[n] < 128), None)
        if end is None:
            return None
        value = sum((content[n] & 127) << 7 * (n - at) for n in range(at, end + 1)) % (1 << 64)
        found.append(value - (1 << 64) if value >= 1 << 63 else value)
        at = end + 1
    return found[0], found[1]


TARGETS: dict[str, Callable[[bytes], None]] = {"messages": messages}


def seeds() -> list[bytes]:
    """Headers with all numbers of fields and of digits, and ids of messages."""
    headers = [
        Header(0, 1, 5, 0, 1, 5),
        Header(2, 2, -1, 100, 2, 5, 1, 3),
        Header(7, 9, 1_700_000_000_000, 123, 2, 1_700_000_000_001, 1, 3),
        Header(10, 9, -1, 200, 3),
        Header(10, 12, 5, 200, 3, 5, 3),
    ]
    texts = [one.properties("kafka")[HEADER].encode() for one in headers]
    return [
        b"\0\0\0" + texts[0],
        b"\0\2\0" + b"\n".join(texts[:3]),
        b"\0\0\0" + b"\n".join(texts),
        b"\0\0\0[1,0,999999999999999999,-1,0,1000000000000000000]\n[1,0,0,0,0,0,0]",
        b"\1\x08\x07\x10\x00",
        b"\1\x08\x80\x80\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x18\x00",
        b"\1\x08" + b"\xff" * 9 + b"\x01\x10\x01",
    ]
