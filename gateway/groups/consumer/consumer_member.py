"""A member of a consumer group with its states, its heartbeat and the result (KIP-848).

A member has an epoch and a target assignment; the target has an epoch that follows the group's.
Partitions move in two steps: the owner releases a partition while in its old epoch, and only then
is it assigned to another member. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

import msgspec
from msgspec.structs import replace

from gateway.groups.classic.classic_member import NAME_BYTES, Protocols
from gateway.groups.consumer.assignors import TopicId
from gateway.protocol.errors import ErrorCode, KafkaError

#: Member epochs in a heartbeat with a special meaning: join, leave, and leave temporarily as a
#: static member. The last is also the stored epoch of an absent static member.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class MemberState(Enum):
    """Kafka's MemberState. The values are stored."""

    STABLE = 1
    """Has its whole target in the target's epoch, or has not received a newer target yet."""
    UNREVOKED = 2
    """Must release partitions and stays in its epoch until it has.

    The rebalance timeout is running.
    """
    UNRELEASED = 3
    """In the target's epoch, waiting for partitions that other members still own."""
    AWAY = 4
    """A static member that left temporarily. Keeps its partitions until its session ends."""


TRANSITIONS: Mapping[MemberState, Set[MemberState]] = {
    # state                 may become
    MemberState.STABLE: {MemberState.UNREVOKED, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNREVOKED: {MemberState.STABLE, MemberState.UNRELEASED, MemberState.AWAY},
    MemberState.UNRELEASED: {MemberState.STABLE, MemberState.UNREVOKED, MemberState.AWAY},
    # A returning static member is added as a new member that replaces this one.
    MemberState.AWAY: set(),
}

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
    def owned(self) -> Partitions:
        """Partitions that the member may still read: the assigned and the revoked ones."""
        return {
            topic: frozenset({*self.assigned.get(topic, ()), *self.revoking.get(topic, ())})
            for topic in {**self.assigned, **self.revoking}
        }

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

    @property
    def stale_epoch_error(self) -> ErrorCode:
        """The error code of a wrong epoch in the member's protocol."""
        return (
            ErrorCode.STALE_MEMBER_EPOCH if self.classic is None else ErrorCode.ILLEGAL_GENERATION
        )

    def commit_error(self, epoch: int, topic: TopicId, partition: int) -> ErrorCode:
        """The error code (NONE if allowed) of an OffsetCommit whose member epoch is outdated.

        It is allowed if the partition was assigned to the member in `epoch` or earlier (Kafka 4.3).
        """
        since = self.assigned.get(topic, {}).get(
            partition, self.revoking.get(topic, {}).get(partition)
        )
        is_owned = since is not None and epoch >= since
        return ErrorCode.NONE if is_owned else self.stale_epoch_error

    def check_epoch(self, request: MemberHeartbeat) -> None:
        """Raises KafkaError(FENCED_MEMBER_EPOCH).

        The previous epoch is accepted if the member owns only partitions that it was assigned: it
        did not receive the last reply.
        """
        if request.epoch in (JOIN_EPOCH, self.epoch):
            return
        is_previous = request.epoch == self.previous_epoch and request.epoch <= self.epoch
        if not is_previous or not _contains_all(request.owned, self.assigned):
            message = (
                f"The member epoch is {self.epoch}, not {request.epoch}; "
                "release all partitions and rejoin."
            )
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def updated(self, request: MemberHeartbeat) -> ConsumerGroupMember:
        """The member with the fields that the request sets; others are unchanged."""
        topics, timeout = request.topics, request.rebalance_timeout_ms
        return replace(
            self,
            instance_id=request.instance_id or self.instance_id,
            rack_id=request.rack_id or self.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms if timeout is None else timeout,
            topics=self.topics if topics is None or topics == self.topics else topics,
            regex=self.regex if request.regex is None else request.regex,
            assignor=request.assignor or self.assignor,
            classic=None,
        )

    def replacement(self, member_id: str) -> ConsumerGroupMember:
        """A static member under its new member id.

        It keeps its assignment; revocations are dropped, because the client has restarted.
        """
        return replace(
            self,
            member_id=member_id,
            epoch=JOIN_EPOCH,
            previous_epoch=JOIN_EPOCH,
            state=MemberState.STABLE,
            revoking={},
        )


def _contains_all(owned: Partitions | None, assigned: PartitionEpochs) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic, {}).keys() for topic, partitions in owned.items()
    )
