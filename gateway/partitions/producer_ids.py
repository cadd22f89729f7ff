"""Producer ids: unique for ever, given out from blocks that are reserved durably before the first of them is used (Kafka's ProducerIdManager)."""

from __future__ import annotations

from gateway.coroutines import SharedResult, start
from storage.log import StateTable

#: Ids reserved at a time: a restart skips at most this many, and one write serves as many producers. Kafka's PRODUCER_ID_BLOCK_SIZE.
BLOCK_SIZE = 1000

_KEY = b"next"


class ProducerIds:
    """`open` it before use."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._next = 0
        self._block_end = 0
        self._reserving: SharedResult[None] | None = None

    async def open(self) -> None:
        """Find where the last block ended. Raises StorageError."""
        rows = dict(await self._table.items())
        self._next = self._block_end = int.from_bytes(rows.get(_KEY, b"\0"), "big")

    async def next_id(self) -> int:
        """An id that nobody else has or had. Raises StorageError."""
        while self._next >= self._block_end:
            await self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self) -> None:
        reserving = self._reserving
        if reserving is None:
            reserving = self._reserving = SharedResult()
            # On its own: a client that goes away while it waits must not take the block from the others.
            start(self._write_block(), reserving.succeed, reserving.fail)
        await reserving

    async def _write_block(self) -> None:
        end = self._block_end + BLOCK_SIZE
        try:
            await self._table.put({_KEY: end.to_bytes(8, "big")})
        finally:
            self._reserving = None
        self._block_end = end
