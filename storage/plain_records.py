"""Records one by one, in plain values: for a store whose medium holds records, not batches. What a batch looks like is the gateway's affair.

The gateway gives such a store a `BatchFormat`, so that `Entry` stays the only thing that crosses between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from storage.log import Buffer

NO_TIMESTAMP = -1


class PlainRecord(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp` is in milliseconds, NO_TIMESTAMP where there is none; a header's name is UTF-8 by custom, not by force."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = NO_TIMESTAMP


class ProducerSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an idempotent producer says of a batch: who sent it, and the sequence of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class PlainBatch(msgspec.Struct, frozen=True, gc=False):
    """The records of one `Entry`, at least one; the first has its base offset, the others follow without gaps."""

    records: Sequence[PlainRecord]
    sequence: ProducerSequence | None = None


class BatchFormat(Protocol):
    """Between the payload of an `Entry` and its records. Called from any thread."""

    def unpack(self, payload: Buffer) -> PlainBatch:
        """Raises ValueError, saying why, for a payload whose records cannot be read."""
        ...

    def pack(self, batch: PlainBatch) -> bytearray:
        """A payload as consumers get it, but for its offset."""
        ...

    def stamp(self, payload: bytearray, base_offset: int, leader_epoch: int) -> None:
        """Give what `pack` made the offset of its first record, and the epoch of whoever led the partition then."""
        ...
