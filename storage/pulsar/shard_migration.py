"""Divides a store into shards when it is first used, and moves the rows of stores without them.

Rows of a group or partition move into shards, those of the whole cluster into the metadata log. The
number of shards and the first leader epoch are written last, to the table LAYOUT_TABLE. A migration
that ended halfway is repeated: it sets each shard, and each table of the whole cluster, to exactly
the rows of the old tables.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from storage.log import StateTable, StorageFailed
from storage.pulsar.admin.admin_api import NotFound, PulsarAdmin
from storage.pulsar.log.partition_rows import (
    KEY_BYTES,
    TABLE,
    decode_row,
    split_partition_key,
)
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import max_batch_bytes, table_topic
from storage.pulsar.tables.shard_tables import shard_topic, stored_key
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.tables.table_loader import topic_space
from storage.shards import partition_shard

LAYOUT_TABLE = "layout"

SHARDS = b"shards"
FIRST_EPOCH = b"first-epoch"
"""Rows of LAYOUT_TABLE: decimal numbers."""

OLD_CLUSTER_TABLES = (
    "acls",
    "broker-configs",
    "client-quotas",
    "cluster",
    "group-configs",
    "producer-ids",
    "scram-credentials",
)
"""Tables whose rows are moved to the metadata log, to tables of the same names."""

OLD_TABLES = ("groups", "offsets", "producers", "compaction")
"""Tables of the gateway whose rows are moved, besides the store's own TABLE."""

MOVED = b"moved to the shards."
"""Key of a row in the old TABLE that earlier versions refuse: its rows are out of date."""

SHARDS_AT_ONCE = 4
"""Shards that are opened at a time, so that a start does not flood a broker."""

T = TypeVar("T")
Rows = dict[bytes, bytes]
ShardOfRow = Callable[[str, bytes, int], int]
"""The shard of a row, by table, key and number of shards. Raises ValueError for a malformed key."""

logger = logging.getLogger(__name__)


class ShardMigration:
    """`new_table` creates a `PulsarTable` of that name, not open.

    This process must be the controller. `confirm` raises Fenced if another process has become the
    controller. It is awaited after a table is fenced and before the table is changed, because the
    other controller may have migrated the store in the meantime.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        admin: PulsarAdmin,
        new_table: Callable[[str], PulsarTable],
        shard_of_row: ShardOfRow | None,
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._new_table = new_table
        self._shard_of_row = shard_of_row
        self._confirm = confirm

    async def run(self, layout: StateTable, metadata_table: Callable[[str], StateTable]) -> None:
        """Write the layout of a new store, after moving old rows. No effect if there is one.

        `metadata_table` returns a table of the whole cluster. Raises StorageError.
        """
        rows = dict(await layout.items())
        if SHARDS not in rows:
            for name in OLD_CLUSTER_TABLES:
                await self._move_to_metadata(name, metadata_table(name))
            first_epoch = await self._move_old_rows()
            await layout.put(
                {FIRST_EPOCH: b"%d" % first_epoch, SHARDS: b"%d" % self._settings.shards}
            )
        elif int(rows[SHARDS]) != self._settings.shards:
            logger.warning(
                "this store was created with %d shards; offsets_shards=%d is ignored",
                int(rows[SHARDS]),
                self._settings.shards,
            )

    async def _move_to_metadata(self, name: str, table: StateTable) -> None:
        rows = await self._old_rows(name)
        if rows is not None:
            await self._make_equal(table, rows)

    async def _move_old_rows(self) -> int:
        """Move the rows of the old tables; returns the first leader epoch."""
        names = [TABLE, *(OLD_TABLES if self._shard_of_row else ())]
        found = await _all(self._old_rows(name) for name in names)
        old = {name: rows for name, rows in zip(names, found, strict=True) if rows is not None}
        if not old:
            return 0
        partitions = old.get(TABLE, {})
        partitions.pop(MOVED, None)
        first_epoch = 1 + greatest_epoch(partitions)
        shards: list[Rows] = [{} for _ in range(self._settings.shards)]
        for name, rows in old.items():
            for key, row in rows.items():
                try:
                    shard = self._shard(name, key)
                except ValueError as error:
                    logger.warning("row with an invalid key dropped table=%s: %s", name, error)
                else:
                    shards[shard][stored_key(name, key)] = row
        await self._fill_all(shards)
        if TABLE in old:
            await self._with_table(TABLE, lambda table: _put(table, {MOVED: b"moved"}))
        logger.info(
            "moved the rows of this store into shards shards=%d rows=%d first_epoch=%d",
            len(shards),
            sum(map(len, shards)),
            first_epoch,
        )
        return first_epoch

    def _shard(self, name: str, key: bytes) -> int:
        if name == TABLE:
            return partition_shard(*split_partition_key(key), self._settings.shards)
        assert self._shard_of_row
        return self._shard_of_row(name, key, self._settings.shards)

    async def _old_rows(self, name: str) -> Rows | None:
        """The rows of an old table, which stays as it is; None if there is no such table."""
        try:
            await topic_space(self._admin, table_topic(self._settings, name))
        except NotFound:
            return None
        rows: Rows = {}

        async def read(table: PulsarTable) -> None:
            rows.update(await table.items())

        await self._with_table(name, read)
        return rows

    async def _fill_all(self, shards: Sequence[Rows]) -> None:
        """Make `shards` the rows of the shards. After a failure, no further shard is opened."""
        queue = deque(enumerate(shards))

        async def work() -> None:
            while queue:
                shard, rows = queue.popleft()
                try:
                    await self._fill(shard, rows)
                except BaseException:
                    queue.clear()
                    raise

        await _all(work() for _ in range(SHARDS_AT_ONCE))

    async def _fill(self, shard: int, rows: Rows) -> None:
        """Make `rows` the rows of the shard."""

        async def fill(table: PulsarTable) -> None:
            await self._make_equal(table, rows)

        await self._with_table(shard_topic(shard), fill)

    async def _make_equal(self, table: StateTable, rows: Rows) -> None:
        """Make `rows` the rows of the table."""
        stored = dict(await table.items())
        changes: dict[bytes, bytes | None] = {key: None for key in stored if key not in rows}
        changes.update((key, row) for key, row in rows.items() if stored.get(key) != row)
        # The metadata log adds the table's name to each key, and a revision.
        for burst in bursts(changes, self._settings.table_burst_bytes // 2):
            await table.put(burst)

    async def _with_table(self, name: str, work: Callable[[PulsarTable], Awaitable[None]]) -> None:
        table = self._new_table(name)
        try:
            await table.open()
            await self._confirm()
            await work(table)
        finally:
            await table.close()


async def _put(table: StateTable, rows: Mapping[bytes, bytes | None]) -> None:
    await table.put(rows)


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of `works`, which run concurrently. Raises the first error, once all ended."""
    ended = await DeferredList([Deferred.fromCoroutine(work) for work in works], consumeErrors=True)
    results: list[T] = []
    for is_made, outcome in ended:
        if not is_made:
            cast(Failure, outcome).raiseException()
        results.append(outcome)
    return results


def greatest_epoch(partitions: Mapping[bytes, bytes]) -> int:
    """The greatest leader epoch in rows of partitions; -1 if there is none.

    Raises StorageFailed for an invalid row.
    """
    try:
        return max(
            (
                epoch
                for key, row in partitions.items()
                if len(key) == KEY_BYTES
                for epoch, *_ in decode_row(row).epochs
            ),
            default=-1,
        )
    except ValueError as error:
        raise StorageFailed(f"invalid row in table {TABLE}: {error}") from None


def bursts(rows: Mapping[bytes, bytes | None], limit: int) -> Iterator[dict[bytes, bytes | None]]:
    """Parts of `rows` that are stored in one step of `limit` bytes each, if a row is not larger."""
    part: dict[bytes, bytes | None] = {}
    size = 0
    for key, row in rows.items():
        bytes_ = max_batch_bytes({key: row})
        if part and size + bytes_ > limit:
            yield part
            part, size = {}, 0
        part[key] = row
        size += bytes_
    if part:
        yield part
