"""Timers of a consumer group: the times by which its members must act or are removed.

There is no rebalance timer for the group: each member has its own rebalance timeout.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.groups.consumer.consumer_member import ConsumerGroupMember, MemberState
from gateway.groups.group_effects import NEVER


@dataclass(slots=True)
class MemberDeadlines:
    """`session` is for heartbeats; the others are rebalance timeouts.

    `revoke` is for releasing partitions, `join` and `sync` are for the classic protocol.
    """

    session: float = NEVER
    revoke: float = NEVER
    join: float = NEVER
    sync: float = NEVER

    @property
    def earliest(self) -> float:
        return min(self.session, self.revoke, self.join, self.sync)


class GroupDeadlines:
    def __init__(self) -> None:
        self._members: dict[str, MemberDeadlines] = {}
        self.next_expire_at = NEVER
        """Time by which `expire` of the group must be called."""

    def of(self, member: ConsumerGroupMember) -> MemberDeadlines:
        return self._members.setdefault(member.member_id, MemberDeadlines())

    def remove(self, member: ConsumerGroupMember) -> None:
        self._members.pop(member.member_id, None)

    def expire_by(self, time: float) -> None:
        self.next_expire_at = min(self.next_expire_at, time)

    def update(self) -> None:
        """Set `next_expire_at` to the earliest deadline of the members."""
        self.next_expire_at = min(
            (deadlines.earliest for deadlines in self._members.values()), default=NEVER
        )

    def restart_session(self, member: ConsumerGroupMember, timeout: float, now: float) -> None:
        self.of(member).session = now + timeout
        self.expire_by(now + timeout)

    def reconciled(self, member: ConsumerGroupMember, now: float) -> None:
        """Start or stop the timer for releasing partitions, according to the member's state."""
        if member.classic is None:
            # Members with the classic protocol have join and sync deadlines instead.
            must_revoke = member.state is MemberState.UNREVOKED
            self.of(member).revoke = now + member.rebalance_timeout_ms if must_revoke else NEVER
            self.expire_by(self.of(member).revoke)

    def request_rejoin(self, member: ConsumerGroupMember, now: float) -> None:
        """Start the timer for a JoinGroup, unless it is running."""
        deadlines = self.of(member)
        if deadlines.join == NEVER:
            deadlines.join = now + member.rebalance_timeout_ms
            self.expire_by(deadlines.join)

    def joined(self, member: ConsumerGroupMember, now: float) -> None:
        """Start the timer for a SyncGroup."""
        deadlines = self.of(member)
        deadlines.join, deadlines.sync = NEVER, now + member.rebalance_timeout_ms
        self.expire_by(deadlines.sync)
