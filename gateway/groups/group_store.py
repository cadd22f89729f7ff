"""The stored groups: loads and writes their rows in the tables `groups` of their shards.

`classic_rows` and `consumer_rows` define the rows. Committed offsets are in another table
(`offsets/committed_offsets`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping

from msgspec import structs

from gateway import logs
from gateway.cluster.shard_tables import ShardedStore, ShardTables
from gateway.coroutines import Clock, TimeSlices, shield_with_timeout
from gateway.groups.classic import classic_rows
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.groups.consumer.topology import Topology
from gateway.groups.group_effects import StoreClassicGroup, StoreRows
from gateway.groups.group_timers import AnyGroup, GroupClock
from gateway.settings.model import Settings
from gateway.topics.tenant_scope import printable_id
from storage.log import StorageError, StorageFailed

_log = logs.get_logger(__name__)

#: Rows of each consumer group: key, row number and value.
_Rows = dict[str, list[tuple[bytes, int, bytes]]]


class GroupStore:
    """A write that fails or times out raises StorageError. Writes are applied in order.

    After a timeout the rows may still be written, but never after those of a later call.
    """

    def __init__(
        self, store: ShardedStore, clock: Clock, group_clock: GroupClock, settings: Settings
    ) -> None:
        self._tables = ShardTables(store, "groups")
        self._clock = clock
        self._group_clock = group_clock
        self._settings = settings
        self.bytes_in_flight = 0
        """Size of classic groups whose write is in flight, in bytes."""

    def close_shard(self, shard: int) -> None:
        """Refuse writes to a shard from now on."""
        self._tables.close(shard)

    def shard_of(self, group_id: str) -> int:
        return self._tables.shard_of_name(group_id)

    def is_open(self, group_id: str) -> bool:
        """Whether the group's shard is open."""
        return self._tables.find(self._tables.shard_of_name(group_id)) is not None

    async def load(
        self,
        shard: int,
        topology: Topology,
        settings_of: Callable[[str], Settings],
        slices: TimeSlices,
    ) -> list[AnyGroup]:
        """Load all readable groups of a shard. Unreadable ones are logged and deleted.

        Members of unreadable groups rejoin. `settings_of` returns the settings of a consumer group.
        Raises StorageError.
        """
        now = self._group_clock.now()
        groups: list[AnyGroup] = []
        rows_by_group: _Rows = defaultdict(list)
        for key, value in await self._tables.open(shard):
            await slices.take()
            try:
                if consumer_rows.is_consumer_key(key):
                    group_id, number = consumer_rows.parse_key(key)
                    rows_by_group[group_id].append((key, number, value))
                else:
                    group_id, row = classic_rows.parse_key(key), classic_rows.decode(value)
                    groups.append(ClassicGroup.restored(group_id, row, self._settings, now))
            except ValueError as failure:
                _log.error(
                    "group unreadable, ignored: its members join again by themselves",
                    group=printable_id(key.decode(errors="backslashreplace")),
                    key=key.hex(),
                    reason=str(failure),
                )
        unreadable: list[bytes] = []
        for group_id, rows in rows_by_group.items():
            await slices.take(len(rows))
            try:
                stored = consumer_rows.decode_group((number, value) for _, number, value in rows)
                groups.append(
                    ConsumerGroup.restored(group_id, stored, topology, settings_of(group_id), now)
                )
            except ValueError as failure:
                _log.error(
                    "group unreadable, deleted: its members join again by themselves",
                    group=printable_id(group_id),
                    reason=str(failure),
                )
                unreadable += [key for key, _, _ in rows]
        await self._delete_unreadable(shard, unreadable)
        for group in groups:
            group.changed_at = self._group_clock.from_wall(group.changed_at)
        return groups

    async def _delete_unreadable(self, shard: int, keys: list[bytes]) -> None:
        """Delete rows of unreadable groups, so that they do not mix with rows of a new group."""
        try:
            if keys:
                await self._tables.put(shard, dict.fromkeys(keys))
        except StorageError as failure:
            _log.warning(
                "rows of unreadable groups not deleted, retried at the next start",
                rows=len(keys),
                reason=str(failure),
            )

    async def store_classic(self, group_id: str, save: StoreClassicGroup) -> None:
        changed_at = self._group_clock.to_wall(save.row.changed_at)
        stored = classic_rows.encode(structs.replace(save.row, changed_at=changed_at))
        self.bytes_in_flight += len(stored)
        try:
            await self.put(
                group_id,
                {**dict.fromkeys(save.deleted_keys), classic_rows.row_key(group_id): stored},
            )
        finally:
            self.bytes_in_flight -= len(stored)

    async def store_rows(self, group_id: str, write: StoreRows) -> None:
        stored: dict[bytes, bytes | None] = {}
        for key, row in write.rows.items():
            if isinstance(row, ConsumerGroupRow):
                row = structs.replace(row, changed_at=self._group_clock.to_wall(row.changed_at))
            stored[key] = None if row is None else consumer_rows.encode(row)
        await self.put(group_id, stored)

    async def put(self, group_id: str, rows: Mapping[bytes, bytes | None]) -> None:
        milliseconds = self._settings.offsets_commit_timeout_ms
        try:
            put = self._tables.put(self._tables.shard_of_name(group_id), rows)
            await shield_with_timeout(self._clock, milliseconds / 1000, _awaited(put))
        except TimeoutError:
            raise StorageFailed(
                f"not stored within offsets_commit_timeout_ms={milliseconds}"
            ) from None


async def _awaited(put: Awaitable[None]) -> None:
    await put
