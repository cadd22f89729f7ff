"""Checks a log file before its rows are read: completeness, content hash, and the rows it
contains.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.ingest.row_spans import RowSpan

CHUNK_BYTES = 1 << 20
"""Uncompressed bytes held at a time."""
COMPRESSED_CHUNK_BYTES = 1 << 16
"""Compressed bytes held at a time; the rest is copied at the end of each gzip member."""
MAX_LINE_BYTES = 8 << 20
"""Spark holds a whole line in memory; a row has some hundred bytes."""
MAX_UNPACKED_BYTES = 4 << 30
"""Uncompressed size of a file; gateways rotate files long before."""
MAX_RATIO, RATIO_MIN_BYTES = 200, 64 << 20
"""Maximum compression ratio, for files that unpack to at least RATIO_MIN_BYTES. Log rows reach
about 15.
"""
MAX_KEPT_LINE_BYTES = 1 << 16
"""Bytes kept of the first and last line of a file; a row has some hundred."""


@dataclass(frozen=True, slots=True)
class ExaminedFile:
    """The result of `examine`. Hash and size are those of the uncompressed content.

    `damage` is the reason why the file cannot be ingested. `span` is set if the first and last line
    agree; the lines between may differ.
    """

    sha256: str
    size: int
    lines: int
    span: RowSpan | None
    damage: str | None = None


def examine(path: Path) -> ExaminedFile:
    """Read the file once, in chunks. Problems are returned in the result, never raised."""
    seen = _FileScanner()
    damage = None
    try:
        most = _max_unpacked_bytes(path)
        for piece in _chunks(path):
            seen.add(piece)
            if seen.size > most or seen.line_bytes > MAX_LINE_BYTES:
                damage = (
                    f"unpacks to more than {most} bytes"
                    if seen.size > most
                    else f"contains a line of more than {MAX_LINE_BYTES} bytes"
                )
                break
    except EOFError:
        damage = "truncated gzip file"
    except zlib.error as error:
        damage = f"corrupt gzip file: {error}"
    except OSError as error:
        damage = f"cannot be read: {error.strerror}"
    return seen.result(damage)


def _max_unpacked_bytes(path: Path) -> int:
    """Allowed uncompressed size of the file."""
    return min(MAX_UNPACKED_BYTES, max(RATIO_MIN_BYTES, MAX_RATIO * path.stat().st_size))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        if not path.name.endswith(".gz"):
            while piece := file.read(CHUNK_BYTES):
                yield piece
            return
        unpacker = zlib.decompressobj(wbits=31)
        packed = file.read(COMPRESSED_CHUNK_BYTES)
        while packed:
            yield unpacker.decompress(packed, CHUNK_BYTES)
            packed = (
                unpacker.unconsumed_tail
                or unpacker.unused_data
                or file.read(COMPRESSED_CHUNK_BYTES)
            )
            if unpacker.eof and packed:
                unpacker = zlib.decompressobj(wbits=31)
        if not unpacker.eof:
            raise EOFError


class _FileScanner:
    def __init__(self) -> None:
        self.size = 0
        self.line_bytes = 0
        """Length so far of the last, incomplete line."""
        self._hash = hashlib.sha256()
        self._newlines = 0
        self._first = b""
        self._first_is_whole = False
        self._line = b""
        self._before = b""

    def add(self, piece: bytes) -> None:
        self._hash.update(piece)
        self.size += len(piece)
        newlines = piece.count(b"\n")
        self._newlines += newlines
        if not self._first_is_whole:
            head, newline, _ = piece.partition(b"\n")
            self._first = (self._first + head)[:MAX_KEPT_LINE_BYTES]
            self._first_is_whole = bool(newline)
        if newlines:
            lines = piece.rsplit(b"\n", 2)
            whole = lines[-2] if newlines > 1 else self._line + lines[-2]
            self._before = whole[-MAX_KEPT_LINE_BYTES:]
            self._line, self.line_bytes = b"", 0
        self.line_bytes += len(piece) - piece.rfind(b"\n") - 1
        self._line = (self._line + piece[piece.rfind(b"\n") + 1 :])[-MAX_KEPT_LINE_BYTES:]

    def result(self, damage: str | None) -> ExaminedFile:
        """A last line without line end counts: it may be incomplete and is checked like the
        others.
        """
        lines = self._newlines + bool(self._line)
        first, last = _row_id(self._first), _row_id(self._line) or _row_id(self._before)
        span = None
        if first and last and first[0] == last[0] and first[1] <= last[1]:
            span = RowSpan(first[0], first[1], last[1])
        return ExaminedFile(self._hash.hexdigest(), self.size, lines, span, damage)


def _row_id(line: bytes) -> tuple[str, int] | None:
    """The process that wrote a line and the line's sequence number; None if it is not a row."""
    try:
        row: Any = json.loads(line)
        process, dash, _ = row["connection"].rpartition("-")
        sequence = row["sequence"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return (process, sequence) if dash and type(sequence) is int else None
