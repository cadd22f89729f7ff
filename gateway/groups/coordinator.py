"""The groups of this gateway: finds them, lets time pass for them, resolves the requests that wait, and stores what must outlive a restart."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from gateway import logs
from gateway.config import Settings
from gateway.errors import ErrorCode, KafkaError
from gateway.groups.consumer_member import Beaten
from gateway.groups.effects import Answer, Effect, Note, Save
from gateway.groups.generations import NEVER
from gateway.groups.group import Group
from gateway.groups.member import Joined, Joining, Synced, Syncing
from gateway.groups.rows import group_id_of, key_of, row_of, value_of
from gateway.groups.states import GroupState
from gateway.waiting import Cancel, CancelledError, Clock, Shared, call_later, unbroken
from storage.log import StateTable, StorageError

_log = logs.part(__name__)

T = TypeVar("T")


class Coordinator:
    """`open` it before use. `now` is the time in ms since 1970, `clock` counts the waits, `new_id` makes what no other member's id ends in,
    and `start` runs a coroutine in the background."""

    def __init__(
        self,
        table: StateTable,
        settings: Settings,
        clock: Clock,
        now: Callable[[], int],
        new_id: Callable[[], str],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._table = table
        self._settings = settings
        self._clock = clock
        self._now = now
        self._new_id = new_id
        self._start = start
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[float, Cancel]] = {}
        self._to_do: deque[tuple[Group, Effect]] = deque()
        self._is_acting = False
        self._is_over = False
        self._bytes = 0

    async def open(self) -> None:
        """Go on with the groups that the store has. Raises StorageError."""
        for key, value in await self._table.items():
            try:
                group_id = group_id_of(key)
                group = Group.restored(group_id, row_of(value), self._settings, self._now())
            except ValueError as failure:
                _log.error("group unreadable: its members join anew", key=key.hex(), reason=str(failure))
                continue
            self._groups[group_id] = group
            self._act(group)

    def end(self) -> None:
        """Nothing waits any more: its clients are told to look for their coordinator again, as when Kafka's goes down."""
        self._is_over = True
        for group in list(self._groups.values()):
            group.let_go_of_all(ErrorCode.NOT_COORDINATOR)
            self._act(group)
        for _, cancel in self._timers.values():
            cancel()
        self._timers.clear()

    # What members ask

    async def join(self, group_id: str, joining: Joining) -> Joined:
        """The outcome of a JoinGroup, which may take as long as the slowest of the other members. A cancelled one waits no longer."""
        try:
            group = self._group_to_join(group_id, joining)
        except KafkaError as refusal:
            return Joined(refusal.code, joining.member_id)
        member_id = joining.member_id or f"{joining.instance_id or joining.client_id}-{self._new_id()}"
        waiting: Shared[Joined] = Shared()
        group.join(joining, member_id, waiting, self._now())
        self._act(group)
        return await self._wait(group, member_id, waiting)

    async def sync(self, group_id: str, syncing: Syncing) -> Synced:
        """The outcome of a SyncGroup: the assignment, once the leader has brought it and it is stored."""
        try:
            group = self._group_of_member(group_id)
            if any(len(assignment) > self._settings.group_member_max_bytes for _, assignment in syncing.assignments):
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            self._check_room(group_id, sum(len(assignment) for _, assignment in syncing.assignments))
        except KafkaError as refusal:
            return Synced(refusal.code)
        waiting: Shared[Synced] = Shared()
        group.sync(syncing, waiting, self._now())
        self._act(group)
        return await self._wait(group, syncing.member_id, waiting)

    async def _wait(self, group: Group, member_id: str, waiting: Shared[T]) -> T:
        try:
            return await waiting
        except CancelledError:
            group.let_go(member_id, waiting, self._now())
            self._act(group)
            raise

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> None:
        """A member says that it lives. Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS."""
        group = self._group_of_member(group_id)
        group.heartbeat(member_id, generation, instance_id, self._now())
        self._arm(group)

    def leave(self, group_id: str, member_id: str, instance_id: str | None, reason: str) -> None:
        """A member leaves, or is removed. Raises KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        group = self._group_of_member(group_id)
        group.leave(member_id, instance_id, reason, self._now())
        self._act(group)

    def check_active(self, group_id: str) -> None:
        """Raises KafkaError: INVALID_GROUP_ID for a name that no group has, NOT_COORDINATOR once the gateway goes down."""
        if not 0 < len(group_id.encode()) <= self._settings.group_id_max_bytes:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if self._is_over:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def _group_of_member(self, group_id: str) -> Group:
        self.check_active(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _group_to_join(self, group_id: str, joining: Joining) -> Group:
        """The group, made for a newcomer where it is missing. Raises KafkaError."""
        self.check_active(group_id)
        settings = self._settings
        if not settings.group_min_session_timeout_ms <= joining.session_timeout_ms <= settings.group_max_session_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if joining.size > settings.group_member_max_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        group = self._group_of_member(group_id) if joining.member_id else self._groups.get(group_id)
        known = None if group is None else group.roster.get(joining.member_id)
        self._check_room(group_id, joining.size - (0 if known is None else known.size))
        if group is None:
            group = self._groups[group_id] = Group(group_id, settings, self._now())
        return group

    def _check_room(self, group_id: str, size: int) -> None:
        """Raises KafkaError(COORDINATOR_NOT_AVAILABLE) where so many bytes more would be too many."""
        if size > 0 and self._bytes + size > self._settings.max_group_bytes:
            _log.warning("member refused: all groups together take max_group_bytes", group=group_id, bytes=self._bytes)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # What others ask about groups

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> Group | None:
        """None for a group that has never had members, or none for so long that it was forgotten; it may have committed offsets."""
        return self._groups.get(group_id)

    async def delete(self, group_id: str) -> None:
        """Delete a group that has no members, durably; one that is not there is no error. Raises KafkaError: NON_EMPTY_GROUP,
        COORDINATOR_NOT_AVAILABLE where the store fails."""
        group = self._groups.get(group_id)
        if group is None:
            return
        group.check_empty()
        try:
            await unbroken(self._delete_row(group))
        except StorageError as failure:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure

    def check_commit(self, group_id: str, member_id: str, generation: int, instance_id: str | None, now: float) -> None:
        """May this member commit? A commit counts as a heartbeat. With generation -1 it is for a group without members, of simple consumers.

        `now` is in ms since 1970. Raises KafkaError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS.
        """
        group = self._groups.get(group_id)
        if group is not None:
            group.check_commit(member_id, generation, instance_id, now)
            self._arm(group)
        elif generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def subscribed(self, group_id: str) -> frozenset[str] | None:
        """Topics that the group's members subscribe to; None where that cannot be told."""
        group = self._groups.get(group_id)
        return None if group is None else group.subscribed

    def is_empty(self, group_id: str) -> bool:
        """No members, or no such group."""
        group = self._groups.get(group_id)
        return group is None or group.state is GroupState.EMPTY

    def emptied_at(self, group_id: str) -> float | None:
        """When the last member left, in ms since 1970; None while there are members or where there were never any (KIP-211)."""
        group = self._groups.get(group_id)
        return group.changed_at if group is not None and group.state is GroupState.EMPTY else None

    def forget(self, group_id: str) -> None:
        """Delete, in the background, a group that has neither members nor offsets any more; one that has members again stays."""
        group = self._groups.get(group_id)
        if group is not None and group.state is GroupState.EMPTY and not group.pending:
            self._start(self._forget(group))

    async def _forget(self, group: Group) -> None:
        try:
            await self._delete_row(group)
        except StorageError as failure:
            _log.warning("group not forgotten", group=group.group_id, reason=str(failure))

    async def _delete_row(self, group: Group) -> None:
        await self._table.put({key_of(group.group_id): None})
        # Who has joined meanwhile is in the group as it was, which is stored again with its next generation.
        if self._groups.get(group.group_id) is group and group.state is GroupState.EMPTY:
            group.delete(self._now())
            self._drop(group)

    # What groups want done

    def _act(self, group: Group) -> None:
        """Do what `group` wants, in order. An answer may bring the next request of its connection; what that leads to comes after."""
        self._to_do.extend((group, effect) for effect in group.take())
        if group.is_blank:
            self._drop(group)
        else:
            self._count(group)
            self._arm(group)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while self._to_do:
                self._do(*self._to_do.popleft())
        finally:
            self._is_acting = False

    def _do(self, group: Group, effect: Effect) -> None:
        match effect:
            case Answer(handle, reply):
                cast("Shared[Joined | Synced | Beaten]", handle).succeed(reply)
            case Save():
                self._start(self._save(group, effect))
            case Note(event, reason, member_id):
                told = {name: value for name, value in (("member", member_id), ("reason", reason)) if value}
                _log.info(event, group=group.group_id, generation=group.generation, members=len(group.roster), **told)

    async def _save(self, group: Group, save: Save) -> None:
        try:
            await self._table.put({key_of(group.group_id): value_of(save.row)})
        except StorageError as failure:
            _log.error("group not stored", group=group.group_id, generation=save.row.generation, reason=str(failure))
            group.save_failed(save, self._now())
        else:
            group.saved(save, self._now())
        self._act(group)

    # Time and room

    def _arm(self, group: Group) -> None:
        """One timer a group, for the first thing that may come to its time: heartbeats do not touch it."""
        if self._is_over or self._groups.get(group.group_id) is not group:
            return
        armed = self._timers.get(group.group_id)
        if group.due == NEVER or (armed is not None and armed[0] <= group.due):
            return
        if armed is not None:
            armed[1]()
        self._timers[group.group_id] = (
            group.due,
            call_later(self._clock, max(group.due - self._now(), 0) / 1000, partial(self._expire, group)),
        )

    def _expire(self, group: Group) -> None:
        self._timers.pop(group.group_id, None)
        group.expire(self._now())
        self._act(group)

    def _count(self, group: Group) -> None:
        if self._groups.get(group.group_id) is group:
            self._bytes += group.size - group.counted
            group.counted = group.size

    def _drop(self, group: Group) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        del self._groups[group.group_id]
        self._bytes -= group.counted
        armed = self._timers.pop(group.group_id, None)
        if armed is not None:
            armed[1]()
