"""A table of the whole cluster: a section of the metadata log.

The controller writes the rows. All gateways have them in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from storage.cluster import MetadataLog, Rows
from storage.log import LogClosed
from storage.pulsar.tables.row_messages import MAX_KEY_BYTES
from storage.pulsar.tables.table_writer import failed
from storage.pulsar.topics.topic_rows import SectionRows


class MetadataTable:
    """A `StateTable`. `check_open` raises LogClosed once the store is closed."""

    def __init__(self, log: MetadataLog, name: str, check_open: Callable[[], None]) -> None:
        self._log = log
        self._section = name.encode() + b"\0"
        self._rows = SectionRows(log, self._section)
        self._check_open = check_open

    def get(self, key: bytes) -> bytes | None:
        """A row, None if it does not exist."""
        return self._log.rows.get(self._section + key)

    async def items(self) -> list[tuple[bytes, bytes]]:
        self._check_open()
        return sorted(self._rows.rows.items())

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """`StateTable.put`. Fails with Fenced unless this process is the controller."""
        try:
            self._check_open()
        except LogClosed as error:
            closed = str(error)
            return failed(lambda: LogClosed(closed))
        if not all(1 <= len(key) <= MAX_KEY_BYTES for key in rows):
            return failed(lambda: ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes"))
        return self._rows.put(rows)

    def watch(self, on_change: Callable[[Rows], None]) -> None:
        """`StateTable.watch`. Rows that this process wrote are included."""
        self._rows.watch(on_change)
