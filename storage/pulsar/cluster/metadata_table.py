"""A table of the whole cluster: a section of the metadata log.

All gateways have its rows in memory; the controller writes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from storage.cluster import MetadataLog, Rows
from storage.pulsar.tables.row_messages import MAX_KEY_BYTES
from storage.pulsar.tables.table_writer import failed
from storage.pulsar.topics.topic_rows import SectionRows


class MetadataTable:
    """A `StateTable`. A key has at most 480 bytes together with the name and one more byte."""

    def __init__(self, log: MetadataLog, name: str) -> None:
        self._log = log
        self._section = name.encode() + b"\0"
        self._rows = SectionRows(log, self._section)

    def get(self, key: bytes) -> bytes | None:
        """A row, None if it does not exist."""
        return self._log.rows.get(self._section + key)

    async def items(self) -> list[tuple[bytes, bytes]]:
        return sorted(self._rows.rows.items())

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """`StateTable.put`. Fails with Fenced unless this process is the controller."""
        longest = MAX_KEY_BYTES - len(self._section)
        if not all(1 <= len(key) <= longest for key in rows):
            return failed(lambda: ValueError(f"a key of this table has 1 to {longest} bytes"))
        return self._rows.put(rows)

    def watch(self, on_change: Callable[[Rows], None]) -> None:
        """`StateTable.watch`. Rows that this process wrote are included."""
        self._rows.watch(on_change)
