"""What groups have committed: in memory for those who ask, in a table of the store before it is acknowledged.

Rows belong to a topic's id. So a topic that is deleted takes its offsets with it, whatever else fails or crosses its way: without their topic
they are found by nobody, and what is still stored of them goes at the next start. Where others have a say in which topics there are, a topic that
is not there at the start may come back (a namespace that is served again, for example): then its offsets stay until they have expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from operator import itemgetter
from sys import getsizeof
from typing import Any

from gateway import logs
from gateway.coroutines import Clock, shield_with_timeout
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
from storage.log import EntryTooLarge, StateTable, StorageError, Topic

_log = logs.get_logger(__name__)

#: A group's offsets by topic id and partition.
GroupOffsets = dict[bytes, dict[int, CommittedOffset]]

#: Is told of a durable commit: group, topic, partition and offset (`Store.note_committed`).
CommitListener = Callable[[str, str, int, int], None]

#: Groups that find no room of which the log tells: the names of others may be made up.
MAX_LOGGED_GROUPS = 20

#: What an offset takes in memory besides its metadata and its group's name: measured, for one that is the only one of its group.
OFFSET_BYTES = 600


def no_listener(group_id: str, topic: str, partition: int, offset: int) -> None:
    """Where nobody else wants to know."""


class CommittedOffsets:
    """`open` it before use. What was refused by the store is not seen: readers see only what is durable. `note` is told of it, too."""

    def __init__(
        self,
        table: StateTable,
        topics: Topics,
        settings: Settings,
        clock: Clock,
        note: CommitListener = no_listener,
        *,
        topics_may_return: bool = False,
    ) -> None:
        self._topics_may_come_back = topics_may_return
        self._missing_topics: set[bytes] = set()
        """Ids of topics that were not there at the start."""
        self._clock = clock
        self._note = note
        self._timeout = settings.offsets_commit_timeout_ms / 1000
        self._table = table
        self._topics = topics
        self._settings = settings
        self._groups: dict[str, GroupOffsets] = {}
        self._bytes = 0
        self._logged_groups: set[str] = set()
        """Groups whose refusals the log has told since offsets went."""
        self._bytes_being_stored = 0
        """What those on their way to the disk will add."""
        self._committing: dict[str, int] = {}

    async def open(self) -> None:
        """Read what the store has; of topics that have gone meanwhile it is deleted. Raises StorageError where it cannot be read."""
        orphans: list[bytes] = []
        for key, value in await self._table.items():
            try:
                offset_key, committed = decode_key(key), decode_value(value)
            except ValueError as failure:
                _log.error(
                    "committed offset unreadable: its group begins as if it were not there",
                    key=key.hex(),
                    reason=str(failure),
                )
                continue
            if self._topics.get(offset_key.topic_id) is None:
                if not self._topics_may_come_back:
                    orphans.append(key)
                    continue
                self._missing_topics.add(offset_key.topic_id)
            self._set(offset_key, committed)
        await self._delete_orphans(orphans)

    async def delete_orphans(self, before: int) -> None:
        """Forget what was committed before that time (ms) for topics that were not there at the start and never came back."""
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
        await self._delete_orphans([encode_key(offset_key) for offset_key in offset_keys])

    def __len__(self) -> int:
        return sum(len(rows) for group in self._groups.values() for rows in group.values())

    def groups(self) -> Iterable[str]:
        """Every group that has committed anything."""
        return list(self._groups)

    def has(self, group_id: str) -> bool:
        """Whether the group has committed anything."""
        return group_id in self._groups

    def is_committing(self, group_id: str) -> bool:
        """Whether an offset of the group is on its way to the disk."""
        return group_id in self._committing

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """One offset, of the topic that has this name now."""
        rows, topic_state = self._groups.get(group_id), self._topics.get(topic)
        if rows is None or topic_state is None:
            return None
        return rows.get(topic_state.topic.topic_id, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[tuple[str, int], CommittedOffset]:
        """All that the group has committed, by topic and partition, as it is now."""
        return {
            (topic_state.name, partition): committed
            for topic_id, rows in self._groups.get(group_id, {}).items()
            if (topic_state := self._topics.get(topic_id)) is not None
            for partition, committed in rows.items()
        }

    def by_topic(self, group_id: str) -> Iterator[tuple[str, bytes, dict[int, CommittedOffset]]]:
        """The same topic after topic: name, id and offsets in order, as they are when the topic's turn comes. The group may commit meanwhile."""
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
        """Set these offsets, all or none; durable when it returns. `pause` lets others have their turn, where there are many.

        Raises KafkaError: INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION, INVALID_COMMIT_OFFSET_SIZE beyond the limits, COORDINATOR_NOT_AVAILABLE
        where the store fails, or takes too long: then it may be stored all the same.
        """
        offsets_by_key = {
            self._key_for(group_id, topic, partition): committed
            for (topic, partition), committed in rows.items()
        }
        if pause is not None:
            await pause()
        added_bytes = self._check(group_id, offsets_by_key)
        if offsets_by_key:
            # On its own: what is on its way to the disk must reach the memory, too, when its client has gone.
            await self._wait_for(self._commit(group_id, offsets_by_key, added_bytes))

    def _key_for(self, group_id: str, topic: str, partition: int) -> OffsetKey:
        topic_state = self._topics.require(topic)
        if not 0 <= partition < topic_state.topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return OffsetKey(group_id, topic_state.topic.topic_id, partition)

    def _check(self, group_id: str, offsets_by_key: Mapping[OffsetKey, CommittedOffset]) -> int:
        """How many bytes they add at the most."""
        settings = self._settings
        if len(group_id.encode()) > settings.group_id_max_bytes:
            raise KafkaError(
                ErrorCode.INVALID_GROUP_ID,
                f"the group's name has more than group_id_max_bytes={settings.group_id_max_bytes}",
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
                group_id, f"all offsets together take committed_offsets_max_bytes={limit}"
            )
        return max(grown, 0)

    def _limit_exceeded(self, group_id: str, reason: str) -> KafkaError:
        """The reply has no words, so the log says them: once for each group, which commits again and again, and for some groups, until offsets go."""
        if group_id not in self._logged_groups and len(self._logged_groups) < MAX_LOGGED_GROUPS:
            self._logged_groups.add(group_id)
            _log.warning("commit refused", group=group_id, reason=reason)
        return KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, reason)

    async def _commit(
        self, group_id: str, offsets_by_key: Mapping[OffsetKey, CommittedOffset], added_bytes: int
    ) -> None:
        self._bytes_being_stored += added_bytes
        self._committing[group_id] = self._committing.get(group_id, 0) + 1
        try:
            await self._put(
                {
                    encode_key(offset_key): encode_value(committed)
                    for offset_key, committed in offsets_by_key.items()
                }
            )
        finally:
            self._bytes_being_stored -= added_bytes
            remaining = self._committing.pop(group_id) - 1
            if remaining:
                self._committing[group_id] = remaining
        orphans = []
        for offset_key, committed in offsets_by_key.items():
            topic_state = self._topics.get(offset_key.topic_id)
            if topic_state is not None:
                self._set(offset_key, committed)
                self._note(group_id, topic_state.name, offset_key.partition, committed.offset)
            elif self._topics.may_reappear(offset_key.topic_id):
                # It goes with the other offsets of the topic, unless that comes back.
                self._set(offset_key, committed)
            else:
                orphans.append(offset_key)
        await self._delete_orphans([encode_key(offset_key) for offset_key in orphans])

    async def delete(
        self, group_id: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> None:
        """Forget these offsets of a group, or all of them; durable when it returns. Those that are not there are no error.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE where the store fails.
        """
        offset_keys = (
            self._all_keys_of(group_id)
            if partitions is None
            else self._keys_of(group_id, partitions)
        )
        if offset_keys:
            await self._wait_for(self._delete(offset_keys))

    async def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await shield_with_timeout(self._clock, self._timeout, work)
        except TimeoutError:
            # As Kafka answers when its offsets topic takes longer than offsets.commit.timeout.ms (CoordinatorOperationExceptionHelper).
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the store takes longer than offsets_commit_timeout_ms",
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

    async def _delete(self, offset_keys: list[OffsetKey]) -> None:
        await self._put(dict.fromkeys(map(encode_key, offset_keys)))
        for offset_key in offset_keys:
            self._remove(offset_key)

    async def delete_topic(self, topic: Topic) -> None:
        """Forget what all groups have committed for a topic that has been deleted."""
        offset_keys = [
            OffsetKey(group_id, topic.topic_id, partition)
            for group_id, rows in self._groups.items()
            for partition in rows.get(topic.topic_id, ())
        ]
        for offset_key in offset_keys:
            self._remove(offset_key)
        await self._delete_orphans([encode_key(offset_key) for offset_key in offset_keys])

    async def _delete_orphans(self, orphans: list[bytes]) -> None:
        """Free the room of rows that nobody finds any more."""
        try:
            if orphans:
                await self._table.put(dict.fromkeys(orphans))
        except StorageError as failure:
            # Their topic's id never comes again, and the next start deletes them.
            _log.warning(
                "offsets of a deleted topic are still stored",
                rows=len(orphans),
                reason=str(failure),
            )

    async def _put(self, rows: Mapping[bytes, bytes | None]) -> None:
        try:
            await self._table.put(rows)
        except EntryTooLarge as failure:
            raise KafkaError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE, str(failure)) from failure
        except StorageError as failure:
            # What clients take as a reason to ask again, as Kafka answers while its offsets topic cannot be written.
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure

    def _set(self, offset_key: OffsetKey, committed: CommittedOffset) -> None:
        if offset_key.group_id not in self._groups:
            self._bytes += getsizeof(offset_key.group_id)
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
            self._bytes -= getsizeof(offset_key.group_id)


def _size(committed: CommittedOffset) -> int:
    """Bytes of memory."""
    return OFFSET_BYTES + getsizeof(committed.metadata)


def _growth(before: CommittedOffset | None, committed: CommittedOffset) -> int:
    """By how many bytes of memory an offset in the place of the one before it takes more. Nearly always the metadata stays as it was."""
    if before is None:
        return _size(committed)
    return 0 if before.metadata == committed.metadata else _size(committed) - _size(before)
