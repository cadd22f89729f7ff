"""Fuzz target: a damaged segment of the journal, by both implementations of its parsers."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from storage.lmdb import frames
from storage.lmdb.layout import SLOT, slot_of
from storage.log import Entry

_MARK = b"of-store"
_SEGMENT, _LOG = 3, 7
_ROWS_BYTES = 4 * SLOT.size


def journal(payload: bytes) -> None:
    """The first byte selects whether checksums are repaired to reach later checks. The rows of four
    frames follow, then the segment.

    Recovery neither raises nor leaves anything out, and frames that are read by their rows are
    equal.
    """
    rows_bytes, data = payload[1 : 1 + _ROWS_BYTES], payload[1 + _ROWS_BYTES :]
    if len(rows_bytes) < _ROWS_BYTES:
        return
    if not payload[0] & 1:
        data = _repaired(data)
    parsed, position = frames.parse(_MARK, _SEGMENT, data, 0), 0
    for found in parsed.found:
        assert found.position == position < found.end
        position = found.end
    assert position == parsed.end
    if frames.compiled is None:
        return
    rows = [rows_bytes[at : at + SLOT.size] for at in range(0, _ROWS_BYTES, SLOT.size)]
    for first in range(len(rows)):
        ours = frames.read_frames(_MARK, 0, data, rows[first:])
        assert ours == frames.compiled.read_frames(_MARK, 0, data, rows[first:])
        adjacent = frames.adjacent(list(rows), first, 64, 4096)
        assert adjacent == frames.compiled.adjacent(list(rows), first, 64, 4096)
    offsets = [at for row in rows for at in slot_of(row)[1:3]]
    are_valid = offsets == sorted(offsets) and offsets[-1] < 1 << 63
    for offset, end in ((0, 8), (3, 8), (4, 1 << 40)):
        chosen = (rows_bytes, offset, end, 1 << 20, 1 << 20, 4096, 64)
        found = frames.compiled.select_run(*chosen)
        # It bisects the rows, which the store sorts.
        assert not are_valid or found == frames.select_run(*chosen)


def _repaired(data: bytes) -> bytes:
    """The same bytes with valid checksums of each frame whose payload is complete."""
    fixed = bytearray(data)
    at = fixed.find(_MARK)
    while 0 <= at <= len(fixed) - frames.FRAME.size:
        frame = frames.Frame._make(frames.FRAME.unpack_from(fixed, at)[2:])
        start = at + frames.FRAME.size
        payload = fixed[start : start + frame.size]
        if len(payload) < frame.size:
            break
        frame = frame._replace(payload_crc=crc32(payload))
        fixed[at:start] = frames.encode_frame(_MARK, _SEGMENT, at, frame)
        at = fixed.find(_MARK, start + frame.size)
    return bytes(fixed)


TARGETS: dict[str, Callable[[bytes], None]] = {"journal": journal}


def seeds() -> list[bytes]:
    """Two appends with nothing between them, and with zeros."""
    found = []
    for gap in (0, 20):
        first, at = _append(0, 0)
        second, _ = _append(at + gap, 4)
        found.append(b"\0" + first[0] + second[0] + first[1] + bytes(gap) + second[1])
    return found


def _append(at: int, offset: int) -> tuple[tuple[bytes, bytes], int]:
    entries = [
        Entry(offset, offset + 1, 1000, b"first" * 9),
        Entry(offset + 2, offset + 3, 1001, b"second"),
    ]
    buffers, rows, end, _, _ = frames.encode_append(_MARK, _SEGMENT, at, at, _LOG, entries, 0, 0)
    return (b"".join(rows), b"".join(map(bytes, buffers))), end
