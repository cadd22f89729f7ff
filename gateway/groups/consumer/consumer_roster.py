"""Members of a consumer group by member id and instance id, and the owner of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_member import ConsumerGroupMember


class ConsumerRoster:
    """Members in the order in which they joined.

    A member owns a partition from its assignment until it has released it or was removed.
    """

    def __init__(self) -> None:
        self._members: dict[str, ConsumerGroupMember] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[TopicId, dict[int, str]] = {}
        self._protocol_counts: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self.topics: Counter[str] = Counter()
        """Number of members that subscribe to each topic by name."""
        self.regexes: Counter[str] = Counter()
        """Number of members that subscribe with each regular expression."""
        self.classic = 0
        """Number of members that use the classic protocol."""
        self.size = 0
        """Approximate size of the members in memory, in bytes."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerGroupMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerGroupMember | None:
        return self._members.get(member_id)

    def static_member(self, instance_id: str) -> ConsumerGroupMember | None:
        return self._members.get(self._static.get(instance_id, ""))

    def put(self, member: ConsumerGroupMember) -> None:
        """Add a member, or replace the one with the same id.

        Raises ValueError if another member has its instance id or one of its partitions.
        """
        before = self._members.get(member.member_id)
        if self._static.get(member.instance_id or "", member.member_id) != member.member_id:
            raise ValueError("the instance id is already in use")
        self._release(before, member)
        self._claim(member)
        if before is not None and before.instance_id is not None:
            del self._static[before.instance_id]
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._members[member.member_id] = member
        self._update_counts(before, member)

    def remove(self, member: ConsumerGroupMember) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._release(member, None)
        self._update_counts(member, None)

    def _claim(self, member: ConsumerGroupMember) -> None:
        for held in (member.assigned, member.revoking):
            for topic, partitions in held.items():
                owners = self._owners.setdefault(topic, {})
                for index in partitions:
                    if owners.setdefault(index, member.member_id) != member.member_id:
                        raise ValueError(
                            f"partition {index} of {topic.hex()} would have two owners"
                        )

    def _release(
        self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
    ) -> None:
        if before is None or (
            after is not None
            and before.assigned is after.assigned
            and before.revoking is after.revoking
        ):
            return
        for held in (before.assigned, before.revoking):
            for topic, partitions in held.items():
                owners = self._owners[topic]
                for index in partitions:
                    del owners[index]
                if not owners:
                    del self._owners[topic]

    def _update_counts(
        self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
    ) -> None:
        self.size += (0 if after is None else after.size) - (0 if before is None else before.size)
        if (
            before is not None
            and after is not None
            and _counted_fields(before) == _counted_fields(after)
        ):
            return
        for member, sign in ((before, -1), (after, 1)):
            if member is not None:
                self._add_to_counts(member, sign)

    def _add_to_counts(self, member: ConsumerGroupMember, sign: int) -> None:
        _add_to_counts(self.topics, member.topics, sign)
        _add_to_counts(self.regexes, [member.regex] if member.regex else [], sign)
        _add_to_counts(self._assignors, [member.assignor] if member.assignor else [], sign)
        if member.classic is not None:
            self.classic += sign
            _add_to_counts(
                self._protocol_counts, [name for name, _ in member.classic.protocols], sign
            )

    def is_free(self, topic: TopicId, partition: int, member_id: str) -> bool:
        """Whether no other member owns the partition."""
        return self._owners.get(topic, {}).get(partition, member_id) == member_id

    def is_target_free(self, member: ConsumerGroupMember) -> bool:
        """Whether no other member owns a partition of this member's target."""
        return all(
            index in member.assigned.get(topic, ()) or index not in self._owners.get(topic, ())
            for topic, partitions in member.target.items()
            for index in partitions
        )

    @property
    def assignor(self) -> str | None:
        """The assignor that most members request."""
        return max(self._assignors, key=self._assignors.__getitem__, default=None)

    def supports_classic_protocols(self, names: Iterable[str]) -> bool:
        """Whether all members with the classic protocol support one of these.

        True if there are none.
        """
        return any(self._protocol_counts[name] == self.classic for name in names)

    def remaining_are_classic(self, leaving: Iterable[ConsumerGroupMember]) -> bool:
        """Whether all members except `leaving` use the classic protocol."""
        leaving_members = list(leaving)
        return self.classic - sum(one.classic is not None for one in leaving_members) == len(
            self._members
        ) - len(leaving_members)


def _counted_fields(member: ConsumerGroupMember) -> tuple[object, ...]:
    """The fields that `_update_counts` counts."""
    return member.topics, member.regex, member.assignor, member.classic


def _add_to_counts(counts: Counter[str], names: Iterable[str], sign: int) -> None:
    for name in names:
        counts[name] += sign
        if not counts[name]:
            del counts[name]
