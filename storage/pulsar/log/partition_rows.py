"""What the store must know of a partition that its messages cannot say: rows of the table `_partitions`, by topic id and index.

One row for the partition, and one for each window that compaction has replaced: they change in one put, so they are in one table.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import structs
from twisted.internet.defer import Deferred, DeferredLock, succeed

from storage.log import EntryTooLarge, StateTable, StorageError
from storage.pulsar.compaction.replaced_ranges import ReplacedRange, ReplacedRanges

TABLE = "_partitions"

MAX_EPOCHS = 256
"""Epochs that are remembered of a partition: each time that its right to write is taken makes one, some six bytes in the row. The oldest go first."""

Epochs = tuple[tuple[int, int], ...]


class FormatRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From `first_offset` on the topic is written in the format `pulsar`, message 0 having the offset `base`, or, without `base`, in Kafka's."""

    first_offset: int
    base: int | None = None

    @property
    def is_native(self) -> bool:
        return self.base is not None


class PartitionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`start_offset`: the first that may be read, and `start_bytes` the payload that lies before it. `reserved`: no offset from here on was ever
    given out; where Pulsar has trimmed every message, the partition goes on from it. `epochs`: (leader epoch, its first offset), in order.
    `format_ranges`: where the format was switched; none for one that has always been Kafka's. `generation` is that of the side topic which
    compaction writes to, and `written` the payload bytes that were written to it. `trim_offset`: the first offset that the partition's own topic is still
    needed for, with `trim_bytes` of payload before it; what can be read before it is in windows, and its messages may be deleted.
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
        """Whether what was written last is."""
        return bool(self.format_ranges) and self.format_ranges[-1].is_native


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PartitionRow)
_RANGE_DECODER = msgspec.msgpack.Decoder(ReplacedRange)
_KEY_BYTES = 20


def partition_key(topic_id: bytes, partition: int) -> bytes:
    return topic_id + partition.to_bytes(4, "big")


def decode_row(row: bytes) -> PartitionRow:
    """Raises msgspec.MsgspecError, which is a ValueError."""
    return _DECODER.decode(row)


def encode_row(row: PartitionRow) -> bytes:
    return _ENCODER.encode(row)


def replaced_range_row(key: bytes, replaced: ReplacedRange) -> tuple[bytes, bytes]:
    """Key and value of the row for `replaced` in the partition of that key."""
    return key + replaced.first.to_bytes(8, "big"), _ENCODER.encode(replaced)


class PartitionState:
    """What is durable of one partition; the same object for all logs that it has one after the other.

    `lock` is held by whoever reads, thinks and then changes; a single change takes its own turn.
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
        self.producer_released: Deferred[None] = succeed(None)
        """Fires when the broker has settled all that the last log had under way and let go of its producer, or nobody hears from it any more."""
        self._change_lock = DeferredLock()
        self._uncertain_rows: dict[bytes, bytes | None] = {}
        """Rows as they should be, of puts that failed and may be stored all the same: the next put says it again."""

    async def change(self, rows: Mapping[bytes, bytes | None] | None = None, **fields: Any) -> None:
        """These fields of the row and other `rows`, in one durable step. Raises StorageFailed, Fenced, LogClosed; `row` is then as it was."""
        await self._change_lock.acquire()
        try:
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
        """Of all its rows."""
        return [
            self.key,
            *(replaced_range_row(self.key, replaced)[0] for replaced in self.replaced_ranges),
        ]


def load_partitions(
    table: StateTable, rows: Iterable[tuple[bytes, bytes]]
) -> dict[bytes, PartitionState]:
    """The partitions of these rows, by key. Raises ValueError: to go on without what a row says could give out offsets a second time."""
    partitions: dict[bytes, PartitionState] = {}
    replaced_ranges: dict[bytes, list[ReplacedRange]] = {}
    for key, row in rows:
        if len(key) == _KEY_BYTES:
            partitions[key] = PartitionState(table, key, decode_row(row))
        else:
            replaced_ranges.setdefault(key[:_KEY_BYTES], []).append(_RANGE_DECODER.decode(row))
    for key, some in replaced_ranges.items():
        if key in partitions:
            partitions[key].replaced_ranges = ReplacedRanges(some)
    return partitions


def add_epoch(epochs: Epochs, epoch: int, first_offset: int, start_offset: int) -> Epochs:
    """`epochs` when `epoch` begins at `first_offset`: what wrote nothing before it goes, and what ended before `start_offset`."""
    kept = [one for one in epochs if one[0] < epoch and one[1] < first_offset]
    kept.append((epoch, first_offset))
    while len(kept) > 1 and kept[1][1] <= start_offset:
        del kept[0]
    return tuple(kept[-MAX_EPOCHS:])


def epoch_end_offset(epochs: Epochs, epoch: int, end_offset: int) -> tuple[int, int]:
    """`PartitionLog.end_offset_for_epoch`. One older than all that are known ended where they begin (LeaderEpochFileCache.endOffsetFor)."""
    if epoch < 0 or not epochs or epoch > epochs[-1][0]:
        return -1, -1
    index = bisect_right(epochs, epoch, key=lambda one: one[0])
    end = epochs[index][1] if index < len(epochs) else end_offset
    return (epochs[index - 1][0] if index else epoch), end
