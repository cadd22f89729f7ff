"""Who is in a group: members by their ids, static members also by their instance ids (KIP-345), the leader, and which protocols all of them know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gateway.groups.classic.classic_member import ClassicGroupMember, MemberJoin, Protocols


class ClassicRoster:
    """In the order in which they came."""

    def __init__(self) -> None:
        self._members: dict[str, ClassicGroupMember] = {}
        self._static: dict[str, str] = {}
        self._protocol_counts: Counter[str] = Counter()
        self.leader: str | None = None
        self.size = 0
        """What the members take in memory, roughly, in bytes."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicGroupMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicGroupMember | None:
        return self._members.get(member_id)

    def member_id_of(self, instance_id: str) -> str | None:
        """The id that a static member has now."""
        return self._static.get(instance_id)

    def add(self, member: ClassicGroupMember) -> None:
        """The first one leads. Raises ValueError where its id or instance id is taken."""
        if member.member_id in self._members or member.instance_id in self._static:
            raise ValueError("such a member is here already")
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._protocol_counts.update(name for name, _ in member.protocols)
        self.size += member.size
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: ClassicGroupMember) -> None:
        """Where it led, the one that has been here longest leads."""
        del self._members[member.member_id]
        self.size -= member.size
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._remove_protocols(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def change_member_id(self, member: ClassicGroupMember, member_id: str) -> None:
        """A static member has come back: it goes on under another id, and leads where it led."""
        del self._members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        self.size += len(member_id) - len(member.member_id)
        member.member_id = member_id
        self._members[member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member_id

    def update(self, member: ClassicGroupMember, request: MemberJoin) -> None:
        """It joins again, perhaps with other words."""
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
        """Whether some of these protocols is known to everyone. To nobody, it is."""
        return any(self._protocol_counts[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Of those that all know, the one that most like best. Raises ValueError where there are no members."""
        candidates = {
            name for name, count in self._protocol_counts.items() if count == len(self._members)
        }
        votes = Counter(member.vote(candidates) for member in self)
        return max(votes, key=votes.__getitem__)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits for its members: as long as the most patient of them."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
