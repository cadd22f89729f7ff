"""Deletes expired offsets (KIP-211, Kafka's GroupMetadata.removeExpiredOffsets).

Retention counts from when the group lost its last member, or from the commit if the group never had
members. A group with members keeps the offsets of all topics that they subscribe to. A retention
time in the commit request takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from gateway import logs
from gateway.coroutines import Clock, TimeSlices, gather
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import KafkaError
from gateway.topics.tenant_scope import printable_id

_log = logs.get_logger(__name__)

#: Offsets checked per reactor turn, about 5 ms of work.
OFFSETS_PER_TURN = 5_000

#: Groups whose offsets are deleted concurrently; the store combines their writes.
GROUPS_PER_DELETION = 100

OffsetsByPartition = Mapping[tuple[str, int], CommittedOffset]


class HasGroupId(Protocol):
    @property
    def group_id(self) -> str: ...


class GroupMemberships(Protocol):
    """What expiration needs of the coordinator. Times are in ms since 1970."""

    def __iter__(self) -> Iterator[HasGroupId]: ...
    def is_empty(self, group_id: str) -> bool: ...
    def empty_since(self, group_id: str) -> float | None: ...
    def subscribed_topics(self, group_id: str) -> frozenset[str] | None: ...
    def delete_in_background(self, group_id: str) -> None: ...


class OffsetExpiry:
    """`retention_ms` applies to all groups; `clock` schedules the reactor turns."""

    def __init__(
        self, offsets: CommittedOffsets, groups: GroupMemberships, retention_ms: int, clock: Clock
    ) -> None:
        self._offsets = offsets
        self._groups = groups
        self._retention_ms = retention_ms
        self._clock = clock
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self, now: int) -> None:
        """Check all groups once."""
        deleted, slices = 0, TimeSlices(self._clock, OFFSETS_PER_TURN)
        expired_by_group: dict[str, list[tuple[str, int]]] = {}
        for group_id in self._offsets.groups():
            offsets = self._offsets.of_group(group_id)
            is_slice_over = slices.count(len(offsets) + 1)
            expired = list(self._expired(group_id, offsets, now))
            if expired:
                expired_by_group[group_id] = expired
            if len(expired_by_group) >= GROUPS_PER_DELETION or is_slice_over:
                # Delete before yielding: a group may commit again meanwhile.
                deleted += await self._delete(expired_by_group)
                expired_by_group = {}
            if is_slice_over:
                await slices.pause()
                if self._is_stopped:
                    return
        deleted += await self._delete(expired_by_group)
        if deleted:
            _log.info("offsets expired", offsets=deleted)
        await self._delete_empty_groups()

    def _expired(
        self, group_id: str, offsets: OffsetsByPartition, now: int
    ) -> Iterator[tuple[str, int]]:
        if self._offsets.is_committing(group_id):
            # The commit being stored will replace these offsets.
            return
        kept = (
            frozenset[str]()
            if self._groups.is_empty(group_id)
            else self._groups.subscribed_topics(group_id)
        )
        if kept is None:
            return
        empty_since = self._groups.empty_since(group_id)
        for key, committed in offsets.items():
            since = committed.committed_at if empty_since is None else empty_since
            end = (
                since + self._retention_ms if committed.expires_at is None else committed.expires_at
            )
            if key[0] not in kept and now >= end:
                yield key

    async def _delete(self, expired_by_group: Mapping[str, list[tuple[str, int]]]) -> int:
        """Returns the number of deleted offsets."""
        deleted = 0
        outcomes = await gather(
            [
                self._offsets.delete(group_id, expired)
                for group_id, expired in expired_by_group.items()
            ]
        )
        for (group_id, expired), outcome in zip(expired_by_group.items(), outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                _log.warning(
                    "expired offsets not deleted, retried by the next check",
                    group=printable_id(group_id),
                    offsets=len(expired),
                    reason=str(outcome),
                )
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                deleted += len(expired)
        return deleted

    async def _delete_empty_groups(self) -> None:
        """Delete groups without members and offsets, as Kafka does in the same pass."""
        slices = TimeSlices(self._clock, GROUPS_PER_DELETION)
        for group in self._groups:
            if self._is_stopped:
                return
            if self._groups.is_empty(group.group_id) and not self._offsets.has(group.group_id):
                self._groups.delete_in_background(group.group_id)
                await slices.take()
