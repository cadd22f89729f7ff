"""Individual records in plain values, for stores whose medium holds records, not batches.

The gateway provides a `BatchFormat`, so that only `Entry` crosses the store interface and the store
does not depend on the batch layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from storage.log import Buffer

NO_TIMESTAMP = -1


class PlainRecord(msgspec.Struct, frozen=True, gc=False):
    """One record.

    `timestamp` is in milliseconds, or NO_TIMESTAMP. Header names are bytes: UTF-8 is a convention,
    it is not enforced.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp: int = NO_TIMESTAMP


class ProducerSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The idempotent producer of a batch and the sequence number of its first record."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class PlainBatch(msgspec.Struct, frozen=True, gc=False):
    """The records of one `Entry`, at least one, with contiguous offsets from its base offset."""

    records: Sequence[PlainRecord]
    sequence: ProducerSequence | None = None


class BatchFormat(Protocol):
    """Converts between the payload of an `Entry` and its records. Thread-safe."""

    def unpack(self, payload: Buffer) -> PlainBatch:
        """Decode a payload. Raises ValueError with the reason if its records cannot be read."""
        ...

    def pack(self, batch: PlainBatch) -> bytearray:
        """Encode a payload as consumers receive it; `stamp` sets its offset and leader epoch."""
        ...

    def stamp(self, payload: bytearray, base_offset: int, leader_epoch: int) -> None:
        """Set the base offset and the leader epoch in a payload made by `pack`."""
        ...
