"""Members of a classic group, its leader, the protocols that all support, and pending member ids.

Members are found by member id and by instance id (KIP-345).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gateway.groups.classic.classic_member import ClassicGroupMember, MemberJoin, Protocols
from gateway.protocol.errors import ErrorCode, KafkaError

#: Approximate size in memory of a pending member id without its characters, in bytes.
_PENDING_BYTES = 300


class ClassicRoster:
    """Members in the order in which they joined."""

    def __init__(self) -> None:
        self._members: dict[str, ClassicGroupMember] = {}
        self._static: dict[str, str] = {}
        self._protocol_counts: Counter[str] = Counter()
        self.leader: str | None = None
        self.pending: dict[str, float] = {}
        """Deadlines of member ids that were assigned but have not joined yet (KIP-394)."""
        self.size = 0
        """Approximate size of the members in memory, in bytes."""
        self.pending_size = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicGroupMember | None:
        return self._members.get(member_id)

    def member_id_of(self, instance_id: str) -> str | None:
        """The current member id of a static member."""
        return self._static.get(instance_id)

    def require(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """The member with these ids.

        Raises KafkaError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id belongs to
        another member.
        """
        if instance_id is not None and self._static.get(instance_id, member_id) != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self._members.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def add(self, member: ClassicGroupMember) -> None:
        """Add a member; the first one becomes the leader.

        Raises ValueError if its member id or instance id is in use.
        """
        if member.member_id in self._members or member.instance_id in self._static:
            raise ValueError("the member id or instance id is already in use")
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._protocol_counts.update(name for name, _ in member.protocols)
        self.size += member.size
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: ClassicGroupMember) -> None:
        """Remove a member. If it was the leader, the longest-standing member becomes the leader."""
        del self._members[member.member_id]
        self.size -= member.size
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._remove_protocols(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def add_pending(self, member_id: str, until: float) -> None:
        """Reserve a member id that the client must rejoin with before `until`."""
        self.pending[member_id] = until
        self.pending_size += _PENDING_BYTES + len(member_id)

    def remove_pending(self, member_id: str) -> bool:
        """Returns whether the id was pending."""
        if self.pending.pop(member_id, None) is None:
            return False
        self.pending_size -= _PENDING_BYTES + len(member_id)
        return True

    def expire_pending(self, now: float) -> None:
        for member_id in [one for one, until in self.pending.items() if until <= now]:
            self.remove_pending(member_id)

    def change_member_id(self, member: ClassicGroupMember, member_id: str) -> None:
        """Give a rejoining static member its new member id; it stays the leader if it was."""
        del self._members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        self.size += len(member_id) - len(member.member_id)
        member.member_id = member_id
        self._members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id

    def update(self, member: ClassicGroupMember, request: MemberJoin) -> None:
        """Apply the fields of a repeated JoinGroup."""
        self._remove_protocols(member)
        self.size -= member.size
        member.protocols = request.protocols
        self._protocol_counts.update(name for name, _ in request.protocols)
        member.session_timeout_ms, member.rebalance_timeout_ms = (
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
        )
        member.client_id, member.client_host = request.client_id, request.client_host
        self.size += member.size

    def assign(self, member: ClassicGroupMember, assignment: bytes) -> None:
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _remove_protocols(self, member: ClassicGroupMember) -> None:
        for name, _ in member.protocols:
            self._protocol_counts[name] -= 1
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def supports_protocols(self, protocols: Protocols) -> bool:
        """Whether all members support at least one of these protocols.

        True if there are no members.
        """
        return any(self._protocol_counts[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The protocol that most members prefer among those that all support.

        Raises ValueError without members.
        """
        candidates = {
            name for name, count in self._protocol_counts.items() if count == len(self._members)
        }
        votes = Counter(member.vote(candidates) for member in self)
        return max(votes, key=votes.__getitem__)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
