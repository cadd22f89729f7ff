"""Allocates unique producer ids.

Ids come from blocks that are durably reserved before use (Kafka's ProducerIdManager).
"""

from __future__ import annotations

from gateway.coroutines import SharedResult, start
from storage.log import StateTable

#: Ids reserved per write (Kafka's PRODUCER_ID_BLOCK_SIZE). A restart skips at most this many.
BLOCK_SIZE = 1000

_KEY = b"next"


class ProducerIds:
    """Producer id allocator; call `open` before use."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._next = 0
        self._block_end = 0
        self._reserving: SharedResult[None] | None = None

    async def open(self) -> None:
        """Load the end of the last reserved block. Raises StorageError."""
        rows = dict(await self._table.items())
        self._next = self._block_end = int.from_bytes(rows.get(_KEY, b"\0"), "big")

    async def next_id(self) -> int:
        """Return an unused producer id. Raises StorageError."""
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
            start(self._write_block(), reserving.succeed, reserving.fail)
        await reserving

    async def _write_block(self) -> None:
        end = self._block_end + BLOCK_SIZE
        try:
            await self._table.put({_KEY: end.to_bytes(8, "big")})
        finally:
            self._reserving = None
        self._block_end = end
