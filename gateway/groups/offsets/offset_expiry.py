"""Offsets that nobody comes back for are deleted, by KIP-211's rules (Kafka's GroupMetadata.removeExpiredOffsets).

What counts is how long ago a group lost its last member, or for a group that never had any, how long ago an offset was committed. A group with
members keeps the offsets of all topics that they read, however old. Where the client gave a retention time of its own, that is what counts
instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from gateway import logs
from gateway.coroutines import Clock, Wake, gather
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import KafkaError

_log = logs.part(__name__)

#: Offsets looked at in one turn of the reactor, some 5 ms' worth.
OFFSETS_PER_TURN = 5_000

#: Groups whose offsets are deleted at the same time: the store writes them in one go.
GROUPS_PER_DELETION = 100

OffsetsByPartition = Mapping[tuple[str, int], CommittedOffset]


class HasGroupId(Protocol):
    @property
    def group_id(self) -> str: ...


class GroupMemberships(Protocol):
    """What is asked of the coordinator. Times are ms since 1970."""

    def __iter__(self) -> Iterator[HasGroupId]: ...
    def is_empty(self, group_id: str) -> bool: ...
    def emptied_at(self, group_id: str) -> float | None: ...
    def subscribed(self, group_id: str) -> frozenset[str] | None: ...
    def forget(self, group_id: str) -> None: ...


class OffsetExpiry:
    """`retention_ms` is for all groups; `clock` gives the reactor its turns."""

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

    async def round(self, now: int) -> None:
        """Look at every group once."""
        seen, deleted = 0, 0
        due: dict[str, list[tuple[str, int]]] = {}
        for group_id in self._offsets.groups():
            offsets = self._offsets.of_group(group_id)
            seen += len(offsets) + 1
            expired = list(self._expired(group_id, offsets, now))
            if expired:
                due[group_id] = expired
            if len(due) >= GROUPS_PER_DELETION or seen >= OFFSETS_PER_TURN:
                # Before anything else can happen: what has expired is not kept in mind while its group may commit.
                deleted += await self._delete(due)
                due = {}
            if seen >= OFFSETS_PER_TURN:
                seen = 0
                await Wake(self._clock).wait(0)
                if self._is_stopped:
                    return
        deleted += await self._delete(due)
        if deleted:
            _log.info("offsets expired", offsets=deleted)
        await self._forget_groups()

    def _expired(
        self, group_id: str, offsets: OffsetsByPartition, now: int
    ) -> Iterator[tuple[str, int]]:
        if self._offsets.is_committing(group_id):
            # Its offsets are about to be newer than they look.
            return
        kept = (
            frozenset[str]()
            if self._groups.is_empty(group_id)
            else self._groups.subscribed(group_id)
        )
        if kept is None:
            return
        emptied_at = self._groups.emptied_at(group_id)
        for place, committed in offsets.items():
            since = committed.committed_at if emptied_at is None else emptied_at
            end = (
                since + self._retention_ms if committed.expires_at is None else committed.expires_at
            )
            if place[0] not in kept and now >= end:
                yield place

    async def _delete(self, due: Mapping[str, list[tuple[str, int]]]) -> int:
        """How many offsets are gone."""
        deleted = 0
        outcomes = await gather(
            [self._offsets.delete(group_id, expired) for group_id, expired in due.items()]
        )
        for (group_id, expired), outcome in zip(due.items(), outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                _log.warning(
                    "expired offsets not deleted",
                    group=group_id,
                    offsets=len(expired),
                    reason=str(outcome),
                )
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                deleted += len(expired)
        return deleted

    async def _forget_groups(self) -> None:
        """Those that have neither members nor offsets, as Kafka does in the same round."""
        forgotten = 0
        for group in self._groups:
            if self._is_stopped:
                return
            if self._groups.is_empty(group.group_id) and not self._offsets.has(group.group_id):
                self._groups.forget(group.group_id)
                forgotten += 1
                if forgotten % GROUPS_PER_DELETION == 0:
                    await Wake(self._clock).wait(0)
