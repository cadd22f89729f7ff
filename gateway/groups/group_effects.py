"""What a group wants done: requests answered, itself stored, its changes told. Whoever drives it does this, in this order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.classic.classic_rows import GroupRow
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.protocol.errors import ErrorCode

#: Whoever waits for an answer. To the group it is a name that it gives back.
RequestHandle = Hashable


@dataclass(frozen=True, slots=True)
class Reply:
    """This request is answered, now and never again."""

    handle: RequestHandle
    reply: JoinResult | SyncResult | HeartbeatResult


@dataclass(frozen=True, slots=True)
class StoreClassicGroup:
    """Store this, then say so: `on_stored` or `on_store_failed`. `answer` is next_expire_at once it is stored. `drops` are keys of rows that go in the same moment."""

    row: GroupRow
    answer: Reply | None = None
    drops: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Store these rows of a consumer group, or with None delete them, all or none; then say so: `on_stored` or `on_store_failed`. The answers are due
    once they are stored."""

    rows: Mapping[bytes, ConsumerGroupMember | ConsumerGroupRow | None]
    answers: tuple[Reply, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that people want to read about."""

    event: str
    reason: str = ""
    member_id: str = ""


Effect = Reply | StoreClassicGroup | StoreRows | LogEvent


class WaitingRequests:
    """The JoinGroups and SyncGroups that wait, by member id. Each is answered once, or let go of when its connection is gone."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._joins: dict[str, RequestHandle] = {}
        self._syncs: dict[str, RequestHandle] = {}

    @property
    def join_count(self) -> int:
        return len(self._joins)

    def has_join(self, member_id: str) -> bool:
        return member_id in self._joins

    def has_sync(self, member_id: str) -> bool:
        return member_id in self._syncs

    def handles(self) -> set[RequestHandle]:
        return {*self._joins.values(), *self._syncs.values()}

    def add_join(self, member_id: str, handle: RequestHandle) -> None:
        """One that waited for the same member has lost its client, most likely; if not, it joins again."""
        self.answer_join(member_id, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        self._joins[member_id] = handle

    def add_sync(self, member_id: str, handle: RequestHandle) -> None:
        self.answer_sync(member_id, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        self._syncs[member_id] = handle

    def answer_join(self, member_id: str, joined: JoinResult) -> None:
        handle = self._joins.pop(member_id, None)
        if handle is not None:
            self._effects.append(Reply(handle, joined))

    def answer_sync(self, member_id: str, synced: SyncResult) -> bool:
        """Whether there was one."""
        handle = self._syncs.pop(member_id, None)
        if handle is not None:
            self._effects.append(Reply(handle, synced))
        return handle is not None

    def cancel_request(self, member_id: str, handle: RequestHandle) -> bool:
        """The connection of this request is gone. Whether it still waited."""
        for waiting in (self._joins, self._syncs):
            if waiting.get(member_id) == handle:
                del waiting[member_id]
                return True
        return False

    def refuse_all(self, code: ErrorCode) -> None:
        for member_id in list(self._joins):
            self.answer_join(member_id, JoinResult(code, member_id))
        for member_id in list(self._syncs):
            self.answer_sync(member_id, SyncResult(code))
