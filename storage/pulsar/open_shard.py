"""Opens a shard: fences the process that had it, and loads its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage.log import StorageFailed
from storage.pulsar.log.partition_log_opener import MayWrite, check_may_write
from storage.pulsar.log.partition_rows import (
    TABLE,
    PartitionState,
    load_partitions,
    split_partition_key,
)
from storage.pulsar.tables.shard_tables import PulsarShardTables, ShardTable, shard_topic
from storage.pulsar.tables.table import PulsarTable


@dataclass(frozen=True, slots=True, eq=False)
class LedShard:
    """A shard that this process leads. `rows` is its table of partitions."""

    number: int
    leader_epoch: int
    tables: PulsarShardTables
    rows: ShardTable
    partitions: dict[bytes, PartitionState]

    def written_before(self) -> list[tuple[bytes, int]]:
        """Topic ids and indexes of the partitions written in the last epoch before this one.

        An epoch is stored with the first message that its leader writes to a partition.
        """
        written = [
            (epochs[-1][0], key)
            for key, one in self.partitions.items()
            if (epochs := [epoch for epoch in one.row.epochs if epoch[0] < self.leader_epoch])
        ]
        last = max((epoch for epoch, _ in written), default=-1)
        return [split_partition_key(key) for epoch, key in written if epoch == last]


async def open_shard(
    new_table: Callable[[str, Callable[[str], None]], PulsarTable],
    number: int,
    leader_epoch: int,
    may_write: MayWrite,
    on_fenced: Callable[[LedShard, str], None],
) -> LedShard:
    """Open a shard. `new_table` creates a table by name, not open, that calls back if it is fenced.

    Raises StorageFailed, Fenced, LogClosed.
    """
    opened: list[LedShard] = []

    def fenced(reason: str) -> None:
        for shard in opened:
            on_fenced(shard, reason)

    name = shard_topic(number)
    stored = new_table(name, fenced)
    try:
        await stored.open()
        check_may_write(name, may_write)
        tables = PulsarShardTables(stored, await stored.items())
        rows = tables.table(TABLE)
        try:
            partitions = load_partitions(rows, await rows.items())
        except ValueError as error:
            raise StorageFailed(f"invalid row of a partition in {name}: {error}") from None
    except BaseException:
        await stored.close()
        raise
    opened.append(LedShard(number, leader_epoch, tables, rows, partitions))
    return opened[0]
