"""Reads a traffic log or audit log as reports do: all files of the folder, complete or not."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

Row = dict[str, Any]


def read_lines(folder: Path) -> list[bytes]:
    """All lines, file by file; the last line of a file may be incomplete.

    Files may be renamed and folders deleted while this reads.
    """
    while True:
        try:
            files = sorted(
                path for path in folder.rglob("*.jsonl*") if not path.name.endswith(".part")
            )
            names = {path.with_suffix("") if path.suffix == ".gz" else path: path for path in files}
            return [line for path in names.values() for line in _read(path).split(b"\n") if line]
        except FileNotFoundError:
            continue


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def read_rows(folder: Path) -> list[Row]:
    """Rows of a traffic log's complete lines, ordered by process and sequence number."""
    rows = read_audit_rows(folder)
    return sorted(rows, key=lambda row: (row["connection"].split("-")[1], row["sequence"]))


def read_audit_rows(folder: Path) -> list[Row]:
    """Rows of the complete lines, file by file."""
    return [msgspec.json.decode(line) for line in read_lines(folder) if line.endswith(b"}")]


def wait_for_rows(
    folder: Path,
    wanted: Callable[[Row], bool],
    seconds: float = 240.0,
    read: Callable[[Path], list[Row]] = read_rows,
) -> list[Row]:
    """The rows for which `wanted` is true, once there is one; an empty list after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = [row for row in read(folder) if wanted(row)]
        if found or time.monotonic() > end:
            return found
        time.sleep(0.05)
