"""Joining, updating and removing members of a consumer group, in either protocol."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.classic.classic_member import JoinResult
from gateway.groups.classic.subscription import CONSUMER_PROTOCOL_TYPE
from gateway.groups.consumer.consumer_member import ConsumerGroupMember, Partitions
from gateway.groups.consumer.consumer_rows import GROUP_ROW, row_key
from gateway.groups.consumer.consumer_states import JOIN_EPOCH, MemberState
from gateway.groups.consumer.group_epochs import GroupEpochs
from gateway.groups.group_effects import LogEvent, Reply, RequestHandle
from gateway.groups.group_migration import to_classic_group
from gateway.protocol.errors import ErrorCode, KafkaError


class GroupMembership(GroupEpochs):
    """`successor` is the classic group that replaces this group after a downgrade."""

    successor: ClassicGroup | None = None

    def _check_group_size(self, member_id: str) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED)."""
        if member_id not in self.roster and len(self.roster) >= self._settings.group_max_size:
            most = self._settings.group_max_size
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group has reached group_max_size={most}.",
            )

    def _check_group_bytes(
        self, before: ConsumerGroupMember | None, after: ConsumerGroupMember
    ) -> None:
        """Raises KafkaError(GROUP_MAX_SIZE_REACHED) beyond max_bytes_per_group."""
        if before is not None and (after.topics, after.regex, after.classic) == (
            before.topics,
            before.regex,
            before.classic,
        ):
            return
        added_bytes = after.size - (0 if before is None else before.size)
        if added_bytes > 0 and self.size + added_bytes > self._settings.max_bytes_per_group:
            most = self._settings.max_bytes_per_group
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The group would exceed max_bytes_per_group={most}.",
            )

    def _require_member(self, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
        """The member with these ids.

        Raises KafkaError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id belongs to
        another member.
        """
        if instance_id is None:
            member = self.roster.get(member_id)
        else:
            member = self.roster.static_member(instance_id)
            if member is not None and member.member_id != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"The instance id {instance_id} is in use by {member.member_id}.",
                )
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def _replacement_for(self, static: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
        """A static member under its new member id.

        It keeps its assignment; revocations are dropped, because the client has restarted.
        """
        return replace(
            static,
            member_id=member_id,
            epoch=JOIN_EPOCH,
            previous_epoch=JOIN_EPOCH,
            state=MemberState.STABLE,
            revoking={},
        )

    def _update_member(
        self,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        owned: Partitions | None,
        now: float,
    ) -> ConsumerGroupMember:
        """Store a member's fields, update epoch and target, and reconcile the member."""
        self._check_group_bytes(
            self.roster.get(after.member_id) if replaced is None else replaced, after
        )
        is_new = after.member_id not in self.roster
        if replaced is not None:
            self._drop_member(replaced)
            other = self.roster.get(after.member_id)
            if other is not None:
                # The client was a dynamic member under this id and now joins as a static one. It
                # has reported that it owns no partitions.
                self._drop_member(other)
        if not after.number:
            after = replace(after, number=self._new_number())
        if is_new or replaced is not None or after != before:
            self._put_member(after)
        if is_new:
            self._effects.append(
                LogEvent(
                    "member joined" if replaced is None else "static member rejoined",
                    member_id=after.member_id,
                )
            )
        subscription_changed = (after.topics, after.regex) != (before.topics, before.regex)
        topics_changed = self._have_topics_changed(after.regex, now)
        if subscription_changed:
            self._remove_unused_regexes()
        if subscription_changed or topics_changed or not self.epoch:
            self._bump_epoch(
                "subscription changed" if subscription_changed else "topics changed",
                after.member_id,
            )
        self._update_target(now)
        after = self._reconcile(
            self.roster.get(after.member_id) or after,
            owned,
            now,
            subscription_changed=subscription_changed,
        )
        self._restart_session(after, now)
        return after

    def _remove_members(
        self, members: Sequence[ConsumerGroupMember], reason: str, now: float
    ) -> None:
        """Remove members and release their partitions."""
        for member in members:
            self._effects.append(LogEvent("member removed", reason, member.member_id))
        if len(members) < len(self.roster) and self._can_convert_to_classic(members):
            self._convert_to_classic(members, None, None, now)
            return
        for member in members:
            self._drop_member(member)
        if members:
            self._remove_unused_regexes()
            self._bump_epoch("member removed", members[-1].member_id)
        if not len(self.roster):
            self.changed_at = now
            self._effects.append(LogEvent("group became empty"))

    def stored_keys(self) -> set[bytes]:
        """Keys of all rows that may be stored for this group."""
        numbers = {GROUP_ROW, *(member.number for member in self.roster)}
        return self._unstored.keys() | {row_key(self.group_id, number) for number in numbers}

    def close(self) -> None:
        """Discard unstored changes and refuse waiting requests."""
        self.is_dead = True
        self._unstored.close()

    # Downgrade to a classic group

    def _can_convert_to_classic(self, leaving: Sequence[ConsumerGroupMember]) -> bool:
        """Whether a downgrade is allowed (KIP-848): all members except `leaving` are classic."""
        is_allowed = self._settings.group_consumer_migration_policy in (
            "bidirectional",
            "downgrade",
        )
        return is_allowed and self.roster.remaining_are_classic(leaving)

    def _convert_to_classic(
        self,
        leaving: Sequence[ConsumerGroupMember],
        joining: ConsumerGroupMember | None,
        handle: RequestHandle | None,
        now: float,
    ) -> None:
        """Replace the group by a classic group.

        `joining` takes the place of the leaving member, and the classic group answers `handle`.
        """
        leaving_ids = {member.member_id for member in leaving}
        remaining = [member for member in self.roster if member.member_id not in leaving_ids]
        all_reconciled = self.epoch == self.target_epoch and all(
            member.is_reconciled_to(self.epoch) for member in remaining
        )
        can_stay_stable = (
            all_reconciled and joining is not None and joining.topics == leaving[0].topics
        )
        stale = self.stored_keys()
        self.close()
        members = remaining if joining is None else [*remaining, joining]
        group = self.successor = to_classic_group(
            self.group_id, self.epoch, members, self._topology, self._settings, now
        )
        reply = None
        if joining is not None and handle is not None and joining.classic is not None:
            name = joining.classic.protocols[0][0]
            reply = Reply(
                handle,
                JoinResult(
                    ErrorCode.NONE, joining.member_id, self.epoch, CONSUMER_PROTOCOL_TYPE, name
                ),
            )
        group.delete_on_store(stale)
        group.store(reply)
        self._effects.append(LogEvent("group converted to the classic protocol"))
        if not can_stay_stable:
            group.rebalance("converted from the consumer protocol", now)
