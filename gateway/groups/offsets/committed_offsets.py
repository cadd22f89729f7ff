"""Committed offsets of the groups in the open shards, in memory and in the store.

A commit writes one row per partition (`offset_rows`) to the table `offsets` of the group's shard,
all in one atomic write (`_commit`), before it returns.

Rows are keyed by topic id. Deleting a topic therefore invalidates its offsets, even if deleting the
rows fails: they are not found any more, and the next start deletes them. If topics are managed
outside the gateway, a missing topic may return (for example a namespace that is served again); its
offsets are then kept until they expire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from operator import itemgetter
from sys import getsizeof
from typing import Any

from gateway import logs
from gateway.cluster.shard_tables import ShardedStore, ShardTables
from gateway.coroutines import Clock, TaskGroup, TimeSlices, shield_with_timeout
from gateway.groups.offsets.offset_rows import (
    CommittedOffset,
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from gateway.topics.registry import Topics
from gateway.topics.tenant_scope import printable_id
from storage.log import EntryTooLarge, Fenced, LogClosed, ShardNotOpen, StorageError, Topic

_log = logs.get_logger(__name__)

#: A group's offsets by topic id and partition.
GroupOffsets = dict[bytes, dict[int, CommittedOffset]]

#: Called after a durable commit with group, topic, partition and offset (`Store.note_committed`).
CommitListener = Callable[[str, str, int, int], None]

#: Limit on groups whose refused commits are logged. Clients can make up group names.
MAX_LOGGED_GROUPS = 20

#: Measured size of an offset in memory without its metadata and group name, in bytes, for a group
#: with a single offset.
OFFSET_BYTES = 600


def no_listener(group_id: str, topic: str, partition: int, offset: int) -> None:
    """Ignores commits. The default listener."""


class CommittedOffsets:
    """Has the offsets of the shards that were opened by `open_shard`.

    Readers see durable offsets only. `note` is called for each of them.
    """

    def __init__(
        self,
        store: ShardedStore,
        topics: Topics,
        settings: Settings,
        clock: Clock,
        note: CommitListener = no_listener,
        *,
        topics_may_return: bool = False,
    ) -> None:
        self._topics_may_come_back = topics_may_return
        self._missing_topics: set[bytes] = set()
        """Ids of topics that did not exist when their offsets were loaded."""
        self._clock = clock
        self._note = note
        self._timeout = settings.offsets_commit_timeout_ms / 1000
        self._tables = ShardTables(store, "offsets")
        self._topics = topics
        self._settings = settings
        self._groups: dict[str, GroupOffsets] = {}
        self._ids_by_shard: dict[int, set[str]] = {}
        self._bytes = 0
        self._logged_groups: set[str] = set()
        """Groups whose refused commit was logged since offsets were last deleted."""
        self._bytes_being_stored = 0
        """Size that writes in flight will add, in bytes."""
        self._committing: dict[str, int] = {}

    async def open_shard(self, shard: int, slices: TimeSlices) -> None:
        """Load the offsets of a shard, and delete those of deleted topics.

        Raises StorageError if reading fails.
        """
        orphans: list[bytes] = []
        for key, value in await self._tables.open(shard):
            await slices.take()
            try:
                offset_key, committed = decode_key(key), decode_value(value)
            except ValueError as failure:
                _log.error(
                    "committed offset unreadable, ignored: its consumer applies auto.offset.reset",
                    key=key.hex(),
                    reason=str(failure),
                )
                continue
            if self._topics.get(offset_key.topic_id) is None:
                if not self._topics_may_come_back or self._topics.is_deleted(offset_key.topic_id):
                    orphans.append(key)
                    continue
                self._missing_topics.add(offset_key.topic_id)
            self._set(offset_key, committed)
        await self._delete_orphans({shard: orphans})

    async def close_shard(self, shard: int) -> None:
        """Forget the offsets of a shard. Commits in flight end with their write."""
        self._tables.close(shard)
        for group_id in self._ids_by_shard.pop(shard, ()):
            offsets = self._groups.pop(group_id)
            self._bytes -= getsizeof(group_id)
            self._bytes -= sum(_size(one) for rows in offsets.values() for one in rows.values())

    def _check_open(self, group_id: str) -> None:
        """Raises KafkaError(NOT_COORDINATOR)."""
        if self._tables.find(self._tables.shard_of_name(group_id)) is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    async def delete_orphans(self, before: int) -> None:
        """Delete offsets of missing topics that were committed before `before` (ms since 1970).

        These are topics that did not exist when their offsets were loaded and have not returned.
        """
        self._missing_topics = {
            topic_id for topic_id in self._missing_topics if self._topics.get(topic_id) is None
        }
        if not self._missing_topics:
            return
        offset_keys = [
            OffsetKey(group_id, topic_id, partition)
            for group_id, topics in self._groups.items()
            for topic_id in topics.keys() & self._missing_topics
            for partition, committed in topics[topic_id].items()
            if committed.committed_at < before
        ]
        for offset_key in offset_keys:
            self._remove(offset_key)
        await self._delete_orphans(self._by_shard(offset_keys))

    def __len__(self) -> int:
        return sum(len(rows) for group in self._groups.values() for rows in group.values())

    def groups(self) -> Iterable[str]:
        """Groups with committed offsets."""
        return list(self._groups)

    def has(self, group_id: str) -> bool:
        """Whether the group has committed offsets."""
        return group_id in self._groups

    def is_committing(self, group_id: str) -> bool:
        """Whether a commit of the group is being stored."""
        return group_id in self._committing

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """The offset for the topic that has this name now."""
        rows, topic_state = self._groups.get(group_id), self._topics.get(topic)
        if rows is None or topic_state is None:
            return None
        return rows.get(topic_state.topic.topic_id, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """All offsets of the group by topic name and partition."""
        return {
            (topic_state.name, partition): committed
            for topic_id, rows in self._groups.get(group_id, {}).items()
            if (topic_state := self._topics.get(topic_id)) is not None
            for partition, committed in rows.items()
        }

    def by_topic(self, group_id: str) -> Iterator[tuple[str, bytes, dict[int, CommittedOffset]]]:
        """Yield name, id and offsets of each topic, sorted.

        Offsets are read when the topic's turn comes; the group may commit meanwhile.
        """
        topics = self._groups.get(group_id, {}).items()
        found = [
            (topic_state.name, topic_id, rows)
            for topic_id, rows in topics
            if (topic_state := self._topics.get(topic_id)) is not None
        ]
        for name, topic_id, rows in sorted(found, key=itemgetter(0)):
            if rows:
                yield name, topic_id, dict(sorted(rows.items()))

    async def commit(
        self,
        group_id: str,
        rows: Mapping[tuple[str, int], CommittedOffset],
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Store these offsets atomically. They are durable on return.

        `pause` yields to other requests if there are many offsets. Raises KafkaError:
        INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION, INVALID_COMMIT_OFFSET_SIZE beyond the limits,
        NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE if the store fails or times out. After a timeout
        the offsets may still be stored.
        """
        offsets_by_key = {
            self._key_for(group_id, topic, partition): committed
            for (topic, partition), committed in rows.items()
        }
        if pause is not None:
            await pause()
        self._check_open(group_id)
        added_bytes = self._check(group_id, offsets_by_key)
        if offsets_by_key:
            # Shielded from cancellation: a write in flight must also update the cache if its client
            # disconnects.
            await self._wait_for(self._commit(group_id, offsets_by_key, added_bytes))

    def _key_for(self, group_id: str, topic: str, partition: int) -> OffsetKey:
        topic_state = self._topics.require(topic)
        if not 0 <= partition < topic_state.topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return OffsetKey(group_id, topic_state.topic.topic_id, partition)

    def _check(self, group_id: str, offsets_by_key: Mapping[OffsetKey, CommittedOffset]) -> int:
        """Check the limits. Returns the maximum growth in memory, in bytes."""
        settings = self._settings
        if len(group_id.encode()) > settings.group_id_max_bytes:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                f"the group id exceeds group_id_max_bytes={settings.group_id_max_bytes}",
            )
        known = self._groups.get(group_id, {})
        added = grown = 0
        for offset_key, committed in offsets_by_key.items():
            before = known.get(offset_key.topic_id, {}).get(offset_key.partition)
            added += before is None
            grown += _growth(before, committed)
        if added and sum(map(len, known.values())) + added > settings.max_offsets_per_group:
            raise self._limit_exceeded(
                group_id,
                f"more offsets than max_offsets_per_group={settings.max_offsets_per_group}",
            )
        if added and not known:
            grown += getsizeof(group_id)
        if (
            grown > 0
            and self._bytes + self._bytes_being_stored + grown
            > settings.committed_offsets_max_bytes
        ):
            limit = settings.committed_offsets_max_bytes
            raise self._limit_exceeded(
                group_id, f"all committed offsets exceed committed_offsets_max_bytes={limit}"
            )
        return max(grown, 0)

    def _limit_exceeded(self, group_id: str, reason: str) -> KafkaError:
        """The error for a commit over a limit.

        The reply has no error message, so the reason is logged: once per group, and for at most
        MAX_LOGGED_GROUPS groups until offsets are deleted.
        """
        if group_id not in self._logged_groups and len(self._logged_groups) < MAX_LOGGED_GROUPS:
            self._logged_groups.add(group_id)
            _log.warning("commit refused", group=printable_id(group_id), reason=reason)
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, reason)

    async def _commit(
        self, group_id: str, offsets_by_key: Mapping[OffsetKey, CommittedOffset], added_bytes: int
    ) -> None:
        self._bytes_being_stored += added_bytes
        self._committing[group_id] = self._committing.get(group_id, 0) + 1
        shard = self._tables.shard_of_name(group_id)
        table = self._tables.find(shard)
        try:
            await self._put(
                shard,
                {
                    encode_key(offset_key): encode_value(committed)
                    for offset_key, committed in offsets_by_key.items()
                },
            )
        finally:
            self._bytes_being_stored -= added_bytes
            remaining = self._committing.pop(group_id) - 1
            if remaining:
                self._committing[group_id] = remaining
        if self._tables.find(shard) is not table:
            # The shard was closed after the write, and its next leader has read it.
            return
        orphans = []
        for offset_key, committed in offsets_by_key.items():
            topic_state = self._topics.get(offset_key.topic_id)
            if topic_state is not None:
                self._set(offset_key, committed)
                self._note(group_id, topic_state.name, offset_key.partition, committed.offset)
            elif self._topics.may_reappear(offset_key.topic_id):
                # Kept with the topic's other offsets in case the topic returns.
                self._set(offset_key, committed)
            else:
                orphans.append(offset_key)
        await self._delete_orphans(self._by_shard(orphans))

    async def delete(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> None:
        """Delete these or all offsets of a group, durably. Missing ones are ignored.

        Raises KafkaError: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE if the store fails.
        """
        self._check_open(group_id)
        offset_keys = (
            self._all_keys_of(group_id)
            if partitions is None
            else self._keys_of(group_id, partitions)
        )
        if offset_keys:
            await self._wait_for(self._delete(group_id, offset_keys))

    async def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await shield_with_timeout(self._clock, self._timeout, work)
        except TimeoutError:
            # Kafka's reply when the offsets topic exceeds offsets.commit.timeout.ms
            # (CoordinatorOperationExceptionHelper).
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "not stored within offsets_commit_timeout_ms",
            ) from None

    def _all_keys_of(self, group_id: str) -> list[OffsetKey]:
        return [
            OffsetKey(group_id, topic_id, partition)
            for topic_id, rows in self._groups.get(group_id, {}).items()
            for partition in rows
        ]

    def _keys_of(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> list[OffsetKey]:
        known = self._groups.get(group_id, {})
        found = []
        for topic, partition in partitions:
            topic_state = self._topics.get(topic)
            if topic_state is not None and partition in known.get(topic_state.topic.topic_id, ()):
                found.append(OffsetKey(group_id, topic_state.topic.topic_id, partition))
        return found

    async def _delete(self, group_id: str, offset_keys: list[OffsetKey]) -> None:
        shard = self._tables.shard_of_name(group_id)
        await self._put(shard, dict.fromkeys(map(encode_key, offset_keys)))
        for offset_key in offset_keys:
            self._remove(offset_key)

    async def delete_topic(self, topic: Topic) -> None:
        """Delete the offsets of a deleted topic in the open shards."""
        offset_keys = [
            OffsetKey(group_id, topic.topic_id, partition)
            for group_id, rows in self._groups.items()
            for partition in rows.get(topic.topic_id, ())
        ]
        for offset_key in offset_keys:
            self._remove(offset_key)
        await self._delete_orphans(self._by_shard(offset_keys))

    def _by_shard(self, offset_keys: Iterable[OffsetKey]) -> dict[int, list[bytes]]:
        """The row keys by shard."""
        keys: dict[int, list[bytes]] = {}
        for offset_key in offset_keys:
            shard = self._tables.shard_of_name(offset_key.group_id)
            keys.setdefault(shard, []).append(encode_key(offset_key))
        return keys

    async def _delete_orphans(self, orphans_by_shard: Mapping[int, list[bytes]]) -> None:
        """Delete rows of topics that no longer exist. The writes are queued before the first wait.

        A commit to a new topic with the same id is then stored after them.
        """
        deletions: TaskGroup[None] = TaskGroup()
        for shard, orphans in orphans_by_shard.items():
            if orphans:
                deletions.start_task(self._delete_rows(shard, orphans))
        for outcome in await deletions.wait():
            if outcome is not None:
                raise outcome

    async def _delete_rows(self, shard: int, orphans: list[bytes]) -> None:
        try:
            await self._tables.put(shard, dict.fromkeys(orphans))
        except StorageError as failure:
            # Harmless, unless another program creates a topic with the same id.
            _log.warning(
                "offsets of deleted topics not deleted, retried after the next start",
                rows=len(orphans),
                reason=str(failure),
            )

    async def _put(self, shard: int, rows: Mapping[bytes, bytes | None]) -> None:
        try:
            await self._tables.put(shard, rows)
        except (Fenced, LogClosed, ShardNotOpen) as failure:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, str(failure)) from failure
        except EntryTooLarge as failure:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(failure)) from failure
        except StorageError as failure:
            # A retriable error, as from Kafka while its offsets topic is not writable.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure

    def _set(self, offset_key: OffsetKey, committed: CommittedOffset) -> None:
        if offset_key.group_id not in self._groups:
            self._bytes += getsizeof(offset_key.group_id)
            self._ids_of_shard(offset_key.group_id).add(offset_key.group_id)
        rows = self._groups.setdefault(offset_key.group_id, {}).setdefault(offset_key.topic_id, {})
        before = rows.get(offset_key.partition)
        rows[offset_key.partition] = committed
        self._bytes += _growth(before, committed)

    def _remove(self, offset_key: OffsetKey) -> None:
        group = self._groups.get(offset_key.group_id, {})
        rows = group.get(offset_key.topic_id, {})
        committed = rows.pop(offset_key.partition, None)
        if committed is None:
            return
        self._bytes -= _size(committed)
        self._logged_groups.clear()
        if not rows:
            del group[offset_key.topic_id]
        if not group:
            del self._groups[offset_key.group_id]
            self._ids_of_shard(offset_key.group_id).discard(offset_key.group_id)
            self._bytes -= getsizeof(offset_key.group_id)

    def _ids_of_shard(self, group_id: str) -> set[str]:
        """The ids of all groups in the group's shard that have offsets."""
        return self._ids_by_shard.setdefault(self._tables.shard_of_name(group_id), set())


def _size(committed: CommittedOffset) -> int:
    """Size in memory, in bytes."""
    return OFFSET_BYTES + getsizeof(committed.metadata)


def _growth(before: CommittedOffset | None, committed: CommittedOffset) -> int:
    """Change in memory size if `committed` replaces `before`, in bytes.

    Usually the metadata is equal.
    """
    if before is None:
        return _size(committed)
    return 0 if before.metadata == committed.metadata else _size(committed) - _size(before)
