"""A member of a classic group, its requests and their results. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from gateway.protocol.errors import ErrorCode

#: Approximate size of a member in memory, without its variable fields, in bytes.
_MEMBER_BYTES = 2048

#: Overhead per protocol or topic name: each is stored in the member and in a counter. Short names
#: consist mostly of overhead.
NAME_BYTES = 200

#: Name and metadata of each assignor that a member supports, in order of preference.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberJoin:
    """A JoinGroup. `member_id` is empty for a new member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_member_id: bool = False
    """Whether a new member must rejoin with its assigned id first (KIP-394)."""
    supports_skipping_assignment: bool = False
    """Whether a rejoining leader understands `skip_assignment` in the reply (KIP-814)."""
    reason: str = ""

    @property
    def text_size(self) -> int:
        """Size of the strings and metadata in the request, in characters and bytes."""
        names = len(self.client_id) + len(self.instance_id or "") + len(self.protocol_type)
        return names + sum(len(name) + len(metadata) for name, metadata in self.protocols)

    @property
    def size(self) -> int:
        """Approximate size of the resulting member in memory, in bytes."""
        return _MEMBER_BYTES + self.text_size + len(self.protocols) * NAME_BYTES


@dataclass(frozen=True, slots=True)
class MemberSync:
    """A SyncGroup. Only the leader's has assignments (by member id).

    The protocol type and name are None in versions without them.
    """

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as listed in the leader's JoinGroup reply."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The reply to a JoinGroup. Only the leader receives `members`."""

    code: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The reply to a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class ClassicGroupMember:
    """A member of a classic group.

    `deadline` is the end of its session; it does not apply while the member waits for a rebalance.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    deadline: float
    assignment: bytes = b""
    is_new: bool = False
    """Whether the member has not been part of any generation."""
    can_rejoin: bool = True
    """Whether the client has an id to rejoin with."""

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for this protocol, or b""."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Set[str]) -> str:
        """The candidate that the member prefers.

        Raises StopIteration if it supports none, which the group rules out.
        """
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        size = (
            _MEMBER_BYTES
            + len(self.member_id)
            + len(self.client_id)
            + len(self.instance_id or "")
            + len(self.assignment)
        )
        return size + sum(
            len(name) + len(metadata) + NAME_BYTES for name, metadata in self.protocols
        )


def new_member(request: MemberJoin, member_id: str, deadline: float) -> ClassicGroupMember:
    """The member that this first JoinGroup adds to the group."""
    return ClassicGroupMember(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.protocols,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        deadline,
        is_new=True,
        can_rejoin=bool(request.member_id) or request.instance_id is not None,
    )
