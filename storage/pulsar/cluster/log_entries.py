"""Bursts of the metadata log as messages: the rows, then a row with the revision.

A burst is one batch and so one entry, which is stored atomically. Since the revision is its last
message, it is complete when the revision arrives. Compaction keeps that message of the last burst
only, so what remains of an older one is not taken for a burst.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage.cluster import Rows
from storage.pulsar.tables.row_messages import END_KEY, is_gap, parse_row

REVISION_KEY = b"revision"

_REVISION = struct.Struct(">Q")

Place = tuple[int, int]
"""Ledger and entry."""


@dataclass(frozen=True, slots=True)
class LogBurst:
    revision: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class EndMarker:
    """A message written to know when everything before it has been read."""

    token: bytes


@dataclass(frozen=True, slots=True)
class MissingRevision:
    """An entry ended without a revision: it was compacted."""


LogEvent = LogBurst | EndMarker | MissingRevision


def encode_revision(revision: int) -> bytes:
    return _REVISION.pack(revision)


class BurstReader:
    """Puts messages of the log together again, entry by entry.

    `place` is that of the last entry with a revision. `foreign` counts messages of other writers.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self.foreign = 0
        self._rows: dict[bytes, bytes | None] = {}
        self._rows_place: Place | None = None

    def add(self, place: Place, key: str, data: bytes) -> list[LogEvent]:
        """What is complete with this message."""
        found: list[LogEvent] = []
        if self._rows and place != self._rows_place:
            self._rows = {}
            found.append(MissingRevision())
        if key == END_KEY:
            found.append(EndMarker(data))
            return found
        row = parse_row(key, data)
        if row is None:
            self.foreign += not is_gap(key, data)
        elif row.key != REVISION_KEY:
            self._rows[row.key] = row.value
            self._rows_place = place
        elif row.value is None or len(row.value) != _REVISION.size:
            self.foreign += 1
        else:
            rows, self._rows = self._rows, {}
            self.place = place
            found.append(LogBurst(_REVISION.unpack(row.value)[0], rows))
        return found

    def leftover(self) -> Rows:
        """Rows of an entry whose revision was not read."""
        return self._rows
