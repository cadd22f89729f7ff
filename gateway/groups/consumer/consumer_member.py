"""A member of a consumer group, and what it and its group say to each other (ConsumerGroupHeartbeat). Times are milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.groups.classic.classic_member import NAME_BYTES, Protocols
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_states import JOIN_EPOCH, MemberState
from gateway.protocol.errors import ErrorCode

#: Partitions by topic.
Partitions = Mapping[TopicId, frozenset[int]]

#: Partitions of a member by topic, each with the epoch in which it was given to it.
PartitionEpochs = Mapping[TopicId, Mapping[int, int]]

#: What a member takes besides what it says, and each mention of a partition that it has or shall have. Measured, and a little more.
_MEMBER_BYTES = 2048
_PARTITION_BYTES = 75


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """What a ConsumerGroupHeartbeat says. None is what has not changed since the last one."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as a member does that has lost an answer."""
        says_subscription = self.topics is not None or self.regex is not None
        return self.epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms is not None and says_subscription and self.owned is not None
        )

    @property
    def text_size(self) -> int:
        """How much it says, in characters."""
        length = (
            sum(map(len, self.topics or ()))
            + len(self.regex or "")
            + len(self.rack_id or "")
            + len(self.assignor or "")
        )
        return length + len(self.member_id) + len(self.instance_id or "") + len(self.client_id)

    @property
    def size(self) -> int:
        """What a member of such words takes in memory, roughly, in bytes."""
        return _MEMBER_BYTES + self.text_size + len(self.topics or ()) * NAME_BYTES


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The answer to a ConsumerGroupHeartbeat. `assignment` is None where the member is not told anything new."""

    code: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assignment: Partitions | None = None


class ClassicMemberMetadata(msgspec.Struct, frozen=True, array_like=True):
    """What a member said that speaks the classic protocol (JoinGroup)."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerGroupMember(msgspec.Struct, frozen=True, array_like=True):
    """One member, as it is stored. `number` is its own in the group for as long as there is the group."""

    number: int
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol."""
    state: MemberState = MemberState.STABLE
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    assigned: PartitionEpochs = {}
    """What it has been given and not been asked to give back."""
    revoking: PartitionEpochs = {}
    """What it has been asked to give back and may still have."""
    target: Partitions = {}
    """What it shall have."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all that the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def size(self) -> int:
        """What it takes in memory, roughly, in bytes."""
        size = (
            sum(map(len, self.topics))
            + len(self.regex)
            + len(self.rack_id or "")
            + len(self.assignor or "")
        )
        size += len(self.topics) * NAME_BYTES
        size += len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        if self.classic is not None:
            size += sum(
                len(name) + len(metadata) + NAME_BYTES for name, metadata in self.classic.protocols
            )
        partitions = sum(
            map(len, (*self.assigned.values(), *self.revoking.values(), *self.target.values()))
        )
        return _MEMBER_BYTES + size + partitions * _PARTITION_BYTES
