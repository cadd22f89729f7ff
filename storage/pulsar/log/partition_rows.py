"""Stored state of partitions: rows of the table `_partitions`, keyed by topic id and index.

A partition has one row, and one more for each range that compaction has replaced. They are in one
table because they change in one put.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import structs
from twisted.internet.defer import Deferred, DeferredLock, succeed

from storage.log import EntryTooLarge, LogClosed, StateTable, StorageError
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges

TABLE = "_partitions"

MAX_EPOCHS = 256
"""Leader epochs kept per partition, about six bytes each.

Each opening adds one; the oldest are dropped.
"""

Epochs = tuple[tuple[int, ...], ...]


class FormatRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The entry format from `first_offset` on.

    `base` is the offset of the message with broker index 0 if the format is `pulsar`, and None for
    Kafka batches.
    """

    first_offset: int
    base: int | None = None

    @property
    def is_native(self) -> bool:
        return self.base is not None


class PartitionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Row of a partition.

    - `start_offset`, `start_bytes`: the log start offset, and the payload bytes before it.
    - `reserved`: no offset from here on has been assigned. The partition continues here if Pulsar
      has trimmed all messages.
    - `epochs`: leader epochs and their first offsets, in order. If a log was reopened within its
      epoch, a third number counts its openings in that epoch, from 1 on.
    - `format_ranges`: changes of the entry format; empty if it has always been Kafka's.
    - `generation`, `written`: generation of the side topic of compaction, and payload bytes written
      to it.
    - `trim_offset`, `trim_bytes`: the first offset for which the partition's own topic is needed,
      and the payload bytes before it. Everything readable before is in replaced ranges, so the
      messages may be deleted.
    """

    start_offset: int = 0
    start_bytes: int = 0
    reserved: int = 0
    epochs: Epochs = ()
    format_ranges: tuple[FormatRange, ...] = ()
    generation: int = 0
    written: int = 0
    trim_offset: int = 0
    trim_bytes: int = 0

    @property
    def is_native(self) -> bool:
        """Whether the newest range is in the format `pulsar`."""
        return bool(self.format_ranges) and self.format_ranges[-1].is_native


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PartitionRow)
_RANGE_DECODER = msgspec.msgpack.Decoder(ReplacedRange)
KEY_BYTES = 20
"""Bytes of a partition's key; those of its replaced ranges begin with it."""


def partition_key(topic_id: bytes, partition: int) -> bytes:
    return topic_id + partition.to_bytes(4, "big")


def split_partition_key(key: bytes) -> tuple[bytes, int]:
    """Topic id and partition of a row's key. Raises ValueError for a malformed key."""
    if len(key) < KEY_BYTES:
        raise ValueError(f"key of {len(key)} bytes is too short")
    return key[:16], int.from_bytes(key[16:KEY_BYTES], "big")


def decode_row(row: bytes) -> PartitionRow:
    """Raises ValueError."""
    decoded = _DECODER.decode(row)
    if not all(len(one) in (2, 3) for one in decoded.epochs):
        raise ValueError("an epoch has two or three numbers")
    return decoded


def encode_row(row: PartitionRow) -> bytes:
    return _ENCODER.encode(row)


def replaced_range_row(key: bytes, replaced: ReplacedRange) -> tuple[bytes, bytes]:
    """Key and value of the row of a replaced range in the partition with that key."""
    return key + replaced.first.to_bytes(8, "big"), _ENCODER.encode(replaced)


class PartitionState:
    """The stored state of one partition, shared by all logs that are opened for it in turn.

    Hold `lock` to read the state, decide, and change it. A single `change` needs no lock.
    """

    def __init__(
        self,
        table: StateTable,
        key: bytes,
        row: PartitionRow,
        replaced_ranges: ReplacedRanges | None = None,
    ) -> None:
        self._table = table
        self.key = key
        self.row = row
        self.replaced_ranges = replaced_ranges or ReplacedRanges()
        self.lock = DeferredLock()
        self.is_deleted = False
        """Set once its rows are deleted: a late change must not write them again."""
        self.producer_released: Deferred[None] = succeed(None)
        """Fires when the broker has closed the last log's producer, or its connection is lost.

        Before that, messages of that log may still be stored.
        """
        self._change_lock = DeferredLock()
        self._uncertain_rows: dict[bytes, bytes | None] = {}
        """Correct values of rows whose put failed but may be stored; the next put repeats them."""

    async def change(self, rows: Mapping[bytes, bytes | None] | None = None, **fields: Any) -> None:
        """Change fields of the row, and other `rows`, in one atomic put.

        Raises StorageFailed, EntryTooLarge, Fenced, LogClosed; `row` is then unchanged.
        """
        await self._change_lock.acquire()
        try:
            if self.is_deleted:
                raise LogClosed("the topic of the partition was deleted")
            row = structs.replace(self.row, **fields)
            await self._table.put(
                {**self._uncertain_rows, **(rows or {}), self.key: encode_row(row)}
            )
        except EntryTooLarge:
            raise
        except StorageError:
            self._uncertain_rows.update(self._current_rows(rows or {}))
            raise
        else:
            self.row = row
            self._uncertain_rows.clear()
        finally:
            self._change_lock.release()

    def _current_rows(self, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        current = dict(replaced_range_row(self.key, replaced) for replaced in self.replaced_ranges)
        return {key: current.get(key) for key in keys}

    def keys(self) -> list[bytes]:
        """Keys of all rows of the partition."""
        return [
            self.key,
            *(replaced_range_row(self.key, replaced)[0] for replaced in self.replaced_ranges),
        ]


def load_partitions(
    table: StateTable, rows: Iterable[tuple[bytes, bytes]]
) -> dict[bytes, PartitionState]:
    """The partitions in these rows, by key.

    Raises ValueError for an invalid row: without it, offsets could be assigned twice.
    """
    partitions: dict[bytes, PartitionState] = {}
    replaced_ranges: dict[bytes, list[ReplacedRange]] = {}
    for key, row in rows:
        if len(key) == KEY_BYTES:
            partitions[key] = PartitionState(table, key, decode_row(row))
        else:
            replaced_ranges.setdefault(key[:KEY_BYTES], []).append(_RANGE_DECODER.decode(row))
    for key, some in replaced_ranges.items():
        if key in partitions:
            partitions[key].replaced_ranges = ReplacedRanges(some)
    return partitions


def next_opening(epochs: Epochs, epoch: int) -> int:
    """How often a log has been opened in `epoch`, the greatest one, and has written something."""
    return _writer(epochs[-1])[1] + 1 if epochs and epochs[-1][0] == epoch else 0


def _writer(one: tuple[int, ...]) -> tuple[int, int]:
    return one[0], one[2] if len(one) > 2 else 0


def add_epoch(
    epochs: Epochs, epoch: int, first_offset: int, start_offset: int, opening: int = 0
) -> Epochs:
    """`epochs` with the log of this epoch and opening beginning at `first_offset`.

    Drops epochs that wrote nothing, and epochs that ended before `start_offset`. If the log was
    reopened, the epoch keeps its first offset.
    """
    writer = epoch, opening
    kept = [one for one in epochs if _writer(one) < writer and one[1] < first_offset]
    kept.append((epoch, first_offset, opening) if opening else (epoch, first_offset))
    while len(kept) > 1 and kept[1][1] <= start_offset:
        del kept[0]
    return tuple(kept[-MAX_EPOCHS:])


def epoch_end_offset(epochs: Epochs, epoch: int, end_offset: int) -> tuple[int, int]:
    """`PartitionLog.end_offset_for_epoch`.

    An epoch older than all known ones ends where these begin (LeaderEpochFileCache.endOffsetFor).
    """
    if epoch < 0 or not epochs or epoch > epochs[-1][0]:
        return -1, -1
    index = bisect_right(epochs, epoch, key=lambda one: one[0])
    end = epochs[index][1] if index < len(epochs) else end_offset
    return (epochs[index - 1][0] if index else epoch), end
