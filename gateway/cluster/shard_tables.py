"""The tables of one name in all open shards."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from storage.log import ShardNotOpen, StateTable
from storage.shards import name_shard, partition_shard


class ShardedStore(Protocol):
    """The part of a `Store` that has tables in shards."""

    @property
    def shard_count(self) -> int: ...
    async def shard_table(self, shard: int, name: str) -> StateTable: ...


class ShardTables:
    """The tables `name` of the shards that are open in this gateway."""

    def __init__(self, store: ShardedStore, name: str) -> None:
        self._store = store
        self._name = name
        self._tables: dict[int, StateTable] = {}

    async def open(self, shard: int) -> list[tuple[bytes, bytes]]:
        """Open the table of a shard and return its rows. Raises StorageError."""
        table = await self._store.shard_table(shard, self._name)
        rows = await table.items()
        self._tables[shard] = table
        return rows

    def close(self, shard: int) -> None:
        """Discard the table of a shard; no effect if it is not open."""
        self._tables.pop(shard, None)

    def find(self, shard: int) -> StateTable | None:
        """The table of a shard, None if it is not open. Each opening creates a new table object."""
        return self._tables.get(shard)

    def shard_of_name(self, name: str) -> int:
        return name_shard(name, self._store.shard_count)

    def shard_of_partition(self, topic_id: bytes, index: int) -> int:
        return partition_shard(topic_id, index, self._store.shard_count)

    def put(self, shard: int, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """`StateTable.put` to the table of a shard. Raises ShardNotOpen at once."""
        table = self._tables.get(shard)
        if table is None:
            raise ShardNotOpen(f"shard {shard} is not open in this gateway")
        return table.put(rows)
