"""A state table in LMDB: rows prefixed with the table id in one database for all tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from twisted.internet.defer import Deferred

from storage.lmdb.layout import U32
from storage.lmdb.write_burst import StoreAccess, TablePut

MAX_KEY_BYTES = 480
"""The limit of the interface. LMDB keys have up to 511 bytes, including 4 for the table id."""


class LmdbTable:
    """A `StateTable`."""

    def __init__(self, store: StoreAccess, table_id: int) -> None:
        self._store = store
        self._table_id = table_id
        self._prefix = U32.pack(table_id)

    async def items(self) -> list[tuple[bytes, bytes]]:
        return await self._store.read_table(self._table_id)

    def watch(self, on_change: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """No effect: one process has the store."""

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        if not all(1 <= len(key) <= MAX_KEY_BYTES for key in rows):
            refused: Deferred[None] = Deferred()
            refused.errback(ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes"))
            return refused
        prefix, size = self._prefix, 0
        taken = {}
        for key, value in rows.items():
            taken[prefix + key] = value
            size += len(key) + len(value or b"")
        return self._store.write(TablePut(taken, size))
