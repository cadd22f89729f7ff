"""Bursts of the metadata log as messages: the rows, then a row with the revision.

A burst is one batch and so one entry, which is stored atomically. The revision is its last message,
so the burst is complete when the revision arrives. Compaction removes the revisions of all bursts
but the last, so the remaining rows of an older burst are not mistaken for a burst.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from storage.cluster import Rows
from storage.pulsar.tables.row_messages import END_KEY, is_gap, parse_row

REVISION_KEY = b"revision"

_REVISION = struct.Struct(">Q")

Place = tuple[int, int]
"""Ledger id and entry id."""


@dataclass(frozen=True, slots=True)
class LogBurst:
    """All rows that were stored together, None for deleted ones."""

    revision: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class EndMarker:
    """A message with a token. A reader that receives it has read everything before it."""

    token: bytes


@dataclass(frozen=True, slots=True)
class MissingRevision:
    """An entry ended without a revision, because it was compacted."""


LogEvent = LogBurst | EndMarker | MissingRevision


def encode_revision(revision: int) -> bytes:
    return _REVISION.pack(revision)


class BurstReader:
    """Assembles bursts from the messages of the log.

    `place` is that of the last entry with a revision, None before the first. `foreign` counts
    messages that are not rows of the log.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self.foreign = 0
        self._rows: dict[bytes, bytes | None] = {}
        self._rows_place: Place | None = None

    def add(self, place: Place, key: str, data: bytes) -> list[LogEvent]:
        """Add one message. Returns the events that it completes."""
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
        """The rows of the present entry, whose revision has not been read."""
        return self._rows
