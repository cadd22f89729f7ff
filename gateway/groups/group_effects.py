"""Effects that a group requests of the coordinator, performed in order."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from gateway.groups.classic.classic_member import JoinResult, SyncResult
from gateway.groups.classic.classic_rows import GroupRow
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, HeartbeatResult
from gateway.groups.consumer.consumer_rows import ConsumerGroupRow
from gateway.protocol.errors import ErrorCode

#: The time of a timer that is not running.
NEVER = float("inf")

#: Identifies a request that waits for its reply. Opaque to the group.
RequestHandle = Hashable


@dataclass(frozen=True, slots=True)
class Reply:
    """Complete a request. Each request is completed once."""

    handle: RequestHandle
    result: JoinResult | SyncResult | HeartbeatResult


@dataclass(frozen=True, slots=True)
class StoreClassicGroup:
    """Store a classic group's row and delete `deleted_keys`, atomically.

    The coordinator then calls `on_stored` or `on_store_failed`. `reply` is sent after the write.
    """

    row: GroupRow
    reply: Reply | None = None
    deleted_keys: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Write rows of a consumer group atomically; None deletes a row.

    The coordinator then calls `on_stored` or `on_store_failed`. `replies` are sent after the write.
    """

    rows: Mapping[bytes, ConsumerGroupMember | ConsumerGroupRow | None]
    replies: tuple[Reply, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Write a line to the log."""

    event: str
    reason: str = ""
    member_id: str = ""


Effect = Reply | StoreClassicGroup | StoreRows | LogEvent


class WaitingRequests:
    """Pending JoinGroup and SyncGroup requests by member id.

    Each is answered once, or cancelled when its connection closes.
    """

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._joins: dict[str, RequestHandle] = {}
        self._syncs: dict[str, RequestHandle] = {}

    @property
    def join_count(self) -> int:
        return len(self._joins)

    def has_join(self, member_id: str) -> bool:
        return member_id in self._joins

    def has_any(self, member_id: str) -> bool:
        """Whether a JoinGroup or SyncGroup of the member is waiting."""
        return member_id in self._joins or member_id in self._syncs

    def handles(self) -> set[RequestHandle]:
        return {*self._joins.values(), *self._syncs.values()}

    def add_join(self, member_id: str, handle: RequestHandle) -> None:
        """Add a JoinGroup.

        An earlier one of the same member is answered with REBALANCE_IN_PROGRESS.
        """
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
        """Returns whether a SyncGroup was waiting."""
        handle = self._syncs.pop(member_id, None)
        if handle is not None:
            self._effects.append(Reply(handle, synced))
        return handle is not None

    def cancel_request(self, member_id: str, handle: RequestHandle) -> bool:
        """Forget a request whose connection closed. Returns whether it was waiting."""
        for waiting in (self._joins, self._syncs):
            if waiting.get(member_id) == handle:
                del waiting[member_id]
                return True
        return False

    def refuse(self, member_id: str, code: ErrorCode, named: str) -> None:
        """Refuse the member's requests. `named` is the member id in a JoinGroup reply."""
        self.answer_join(member_id, JoinResult(code, named))
        self.answer_sync(member_id, SyncResult(code))

    def refuse_all(self, code: ErrorCode) -> None:
        for member_id in [*self._joins, *self._syncs]:
            self.refuse(member_id, code, member_id)
