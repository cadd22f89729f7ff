"""Allocates unique producer ids.

Ids come from blocks that are durably reserved before use (Kafka's ProducerIdManager). The blocks of
all gateways come from one counter, which the controller increases (ProducerIdControlManager).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.cluster.replicated_rows import load_and_follow
from gateway.coroutines import SerialChanges, SharedResult, start
from storage.log import StateTable

#: Ids reserved per write (Kafka's PRODUCER_ID_BLOCK_SIZE). A restart skips at most this many.
BLOCK_SIZE = 1000

_KEY = b"next"


class ProducerIdBlocks:
    """Reserves blocks in a table; call `open` before use."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._end = 0
        self._changes = SerialChanges()

    async def open(self) -> None:
        """Load the end of the last reserved block. Raises StorageError."""
        await load_and_follow(self._table, "producer-ids", self._apply_row)

    def _apply_row(self, key: bytes, row: bytes | None) -> None:
        if key == _KEY and row is not None:
            self._end = max(self._end, int.from_bytes(row, "big"))

    async def allocate(self) -> range:
        """Return the ids of a new block. Raises StorageError."""
        return await self._changes.make(self._allocate)

    async def _allocate(self) -> range:
        first = self._end
        await self._table.put({_KEY: (first + BLOCK_SIZE).to_bytes(8, "big")})
        self._end = first + BLOCK_SIZE
        return range(first, self._end)


class ProducerIds:
    """Producer id allocator. `allocate` returns a new block of ids."""

    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._block_end = 0
        self._reserving: SharedResult[None] | None = None

    async def next_id(self) -> int:
        """Return an unused producer id. Raises what `allocate` raises."""
        while self._next >= self._block_end:
            await self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self) -> None:
        reserving = self._reserving
        if reserving is None:
            reserving = self._reserving = SharedResult()
            # Run in a separate coroutine: if the client disconnects, others still need the block.
            start(self._take_block(), reserving.succeed, reserving.fail)
        await reserving

    async def _take_block(self) -> None:
        try:
            block = await self._allocate()
        finally:
            self._reserving = None
        self._next, self._block_end = block.start, block.stop
