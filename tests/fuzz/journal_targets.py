"""Fuzz target: a damaged segment of the journal, by both implementations of its parsers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zlib import crc32

from storage.lmdb import frames
from storage.lmdb.layout import SLOT, slot_of
from storage.log import Entry

MARK = b"of-store"
_SEGMENT, _LOG = 3, 7
_MOST_READ = 1 << 20
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
        data = repaired_frames(data)
    parsed, position = frames.parse(MARK, _SEGMENT, data, 0), 0
    for found in parsed.found:
        assert found.position == position < found.end
        position = found.end
    assert position == parsed.end
    frames.decode_segment_header(MARK, data)
    table_rows = frames.decode_table_rows(data)
    assert (
        table_rows is None
        or frames.decode_table_rows(frames.encode_table_rows(table_rows)) == table_rows
    )
    if frames.compiled is None:
        return
    rows = [rows_bytes[at : at + SLOT.size] for at in range(0, _ROWS_BYTES, SLOT.size)]
    offsets = [at for row in rows for at in slot_of(row)[1:3]]
    if max(offsets) >= frames.MAX_OFFSET:
        # The index has no such rows.
        return
    for first in range(len(rows)):
        ours = frames.read_frames(MARK, 0, data, rows[first:])
        assert ours == frames.compiled.read_frames(MARK, 0, data, rows[first:])
        adjacent = frames.adjacent(list(rows), first, 64, 4096)
        assert adjacent == frames.compiled.adjacent(list(rows), first, 64, 4096)
    are_valid = offsets == sorted(offsets)
    for offset, end in ((0, 8), (3, 8), (4, 1 << 40)):
        chosen = (rows_bytes, offset, end, 1 << 20, 1 << 20, 4096, 64)
        found = frames.compiled.select_run(*chosen)
        # It bisects the rows, which the store sorts.
        assert not are_valid or found == frames.select_run(*chosen)
    _read_runs(data, rows_bytes)


def _read_runs(data: bytes, rows: bytes) -> None:
    """Read runs of the rows from a file with `data`."""
    assert frames.compiled is not None
    # The payloads are allocated before they are read.
    count = len(rows) // SLOT.size
    slots = [slot_of(rows[number * SLOT.size :][: SLOT.size]) for number in range(count)]
    if sum(slot.size for slot in slots) > _MOST_READ:
        return
    with _file(data) as descriptor:
        for first in range(count):
            run = descriptor, MARK, rows, first, count - first % 2
            payloads = frames.read_run(*run)
            assert payloads == frames.compiled.read_run(*run)
            if payloads is not None:
                selected = rows, *run[3:], payloads
                assert frames.entries_of(*selected) == frames.compiled.entries_of(*selected)


@contextmanager
def _file(data: bytes) -> Iterator[int]:
    """The descriptor of a file with `data`, which is in the page cache."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


def repaired_frames(data: bytes, segment: int = _SEGMENT) -> bytes:
    """The same bytes with valid checksums of each frame whose payload is complete."""
    fixed = bytearray(data)
    at = fixed.find(MARK)
    while 0 <= at <= len(fixed) - frames.FRAME.size:
        frame = frames.Frame._make(frames.FRAME.unpack_from(fixed, at)[2:])
        start = at + frames.FRAME.size
        payload = fixed[start : start + frame.size]
        if len(payload) < frame.size:
            break
        frame = frame._replace(payload_crc=crc32(payload))
        fixed[at:start] = frames.encode_frame(MARK, segment, at, frame)
        at = fixed.find(MARK, start + frame.size)
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
    buffers, rows, end, _, _ = frames.encode_append(MARK, _SEGMENT, at, at, _LOG, entries, 0, 0)
    return (b"".join(rows), b"".join(map(bytes, buffers))), end
