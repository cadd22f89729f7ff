"""The tables of one shard: views of one `PulsarTable`, whose keys begin with the name of a table.

One topic per shard, whatever the number of tables: a change of the shard's leader fences one
producer and reads one topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from storage.pulsar.tables.row_messages import MAX_KEY_BYTES, MAX_STORED_KEY_BYTES
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.tables.table_writer import failed

SEPARATOR = b"\0"
"""Between the name of a table and the key of its row."""

MAX_NAME_BYTES = MAX_STORED_KEY_BYTES - MAX_KEY_BYTES - len(SEPARATOR)


def shard_topic(shard: int) -> str:
    """Name of the `PulsarTable` of a shard."""
    return f"shard-{shard:03}"


def stored_key(name: str, key: bytes) -> bytes:
    """The key, in the shard's topic, of a row of the table `name`."""
    return name.encode() + SEPARATOR + key


class PulsarShardTables:
    """The tables in `stored`, which is open. `rows` are all of its rows.

    They are kept for the first `items` of each table, unless the table was written to before.
    """

    def __init__(self, stored: PulsarTable, rows: list[tuple[bytes, bytes]]) -> None:
        self._stored = stored
        self._loaded = split(rows)
        self._tables: dict[str, ShardTable] = {}

    def table(self, name: str) -> ShardTable:
        """The table of that name; the same object at each call.

        Raises ValueError for a name that does not fit into a key.
        """
        if name not in self._tables:
            if not 1 <= len(name.encode()) <= MAX_NAME_BYTES or SEPARATOR in name.encode():
                raise ValueError(f"the name {name!r} does not have 1 to {MAX_NAME_BYTES} bytes")
            self._tables[name] = ShardTable(self._stored, name, self._loaded.pop(name, []))
        return self._tables[name]

    async def close(self) -> None:
        """Write queued rows; later calls fail with LogClosed."""
        self._loaded.clear()
        for table in self._tables.values():
            table.loaded = None
        await self._stored.close()


class ShardTable:
    """A `StateTable`. `loaded` are its rows if they have just been read, else None."""

    def __init__(
        self, stored: PulsarTable, name: str, loaded: list[tuple[bytes, bytes]] | None
    ) -> None:
        self._stored = stored
        self._name = name
        self.loaded = loaded

    async def items(self) -> list[tuple[bytes, bytes]]:
        loaded, self.loaded = self.loaded, None
        if loaded is not None:
            return loaded
        return split(await self._stored.items()).get(self._name, [])

    def watch(self, on_change: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """No effect: one process writes the table."""

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """`StateTable.put`; the outcome of a failed put is as in `PulsarTable.put`."""
        if not all(1 <= len(key) <= MAX_KEY_BYTES for key in rows):
            return failed(lambda: ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes"))
        self.loaded = None
        return self._stored.put({stored_key(self._name, key): row for key, row in rows.items()})


def split(rows: list[tuple[bytes, bytes]]) -> dict[str, list[tuple[bytes, bytes]]]:
    """The rows of each table of a shard, in their order."""
    tables: dict[str, list[tuple[bytes, bytes]]] = {}
    for stored, row in rows:
        name, _, key = stored.partition(SEPARATOR)
        if key:
            tables.setdefault(name.decode("utf-8", "replace"), []).append((key, row))
    return tables
