"""A member of a consumer group, its heartbeat and the result. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.groups.classic.classic_member import NAME_BYTES, Protocols
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_states import JOIN_EPOCH, MemberState
from gateway.protocol.errors import ErrorCode

#: Partitions by topic id.
Partitions = Mapping[TopicId, frozenset[int]]

#: Partitions by topic id, each with the epoch in which it was assigned.
PartitionEpochs = Mapping[TopicId, Mapping[int, int]]

#: Approximate sizes in memory: of a member without its variable fields, and of each entry of a
#: partition. Measured and rounded up.
_MEMBER_BYTES = 2048
_PARTITION_BYTES = 75


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """A ConsumerGroupHeartbeat. None means unchanged since the last one."""

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
        """Whether all fields are set, as after joining or after a lost reply."""
        says_subscription = self.topics is not None or self.regex is not None
        return self.epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms is not None and says_subscription and self.owned is not None
        )

    @property
    def text_size(self) -> int:
        """Length of all strings, in characters."""
        length = (
            sum(map(len, self.topics or ()))
            + len(self.regex or "")
            + len(self.rack_id or "")
            + len(self.assignor or "")
        )
        return length + len(self.member_id) + len(self.instance_id or "") + len(self.client_id)

    @property
    def size(self) -> int:
        """Approximate size of the resulting member in memory, in bytes."""
        return _MEMBER_BYTES + self.text_size + len(self.topics or ()) * NAME_BYTES


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """The reply to a ConsumerGroupHeartbeat. `assignment` is None if it is unchanged."""

    code: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    assignment: Partitions | None = None


class ClassicMemberMetadata(msgspec.Struct, frozen=True, array_like=True):
    """The JoinGroup fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


class ConsumerGroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A member as it is stored. `number` is its unique row number within the group."""

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
    """Set if the member uses the classic protocol."""
    state: MemberState = MemberState.STABLE
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    assigned: PartitionEpochs = {}
    """Partitions that the member owns and may keep."""
    revoking: PartitionEpochs = {}
    """Partitions that the member must release and may still own."""
    target: Partitions = {}
    """The member's target assignment."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has all partitions of the target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
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
