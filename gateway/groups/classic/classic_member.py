"""A member of a group, and what it and its group say to each other. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from gateway.protocol.errors import ErrorCode

#: What a member takes besides what it says.
_MEMBER_BYTES = 2048

#: What a protocol or a topic takes besides its characters, where it is named and where it is counted: many that are short are most of what they take.
NAME_BYTES = 200

#: How each assignor that a member knows is called and what the member tells it, the one it likes best first.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberJoin:
    """What a JoinGroup asks for. `member_id` is empty where the member has none yet."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_member_id: bool = False
    """A newcomer is told its id and asked to come again with it (KIP-394)."""
    supports_skipping_assignment: bool = False
    """A leader that comes back can be told that there is nothing to assign (KIP-814)."""
    reason: str = ""

    @property
    def text_size(self) -> int:
        """How much it says, in characters and bytes."""
        names = len(self.client_id) + len(self.instance_id or "") + len(self.protocol_type)
        return names + sum(len(name) + len(metadata) for name, metadata in self.protocols)

    @property
    def size(self) -> int:
        """What a member of such words takes in memory, roughly, in bytes."""
        return _MEMBER_BYTES + self.text_size + len(self.protocols) * NAME_BYTES


@dataclass(frozen=True, slots=True)
class MemberSync:
    """What a SyncGroup asks for. Only the leader's has assignments, by member id; protocol type and name are None where the client says none."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The answer to a JoinGroup. Only the leader is told who is there."""

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
    """The answer to a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class ClassicGroupMember:
    """One member. `deadline` is when its session ends unless it is heard of; while it waits for a rebalance it may be silent."""

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
    """It has not been part of any generation."""
    can_rejoin: bool = True
    """It knows an id by which it is known again."""

    def supports(self, protocol: str) -> bool:
        return any(name == protocol for name, _ in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        """What it tells that assignor, nothing where it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Set[str]) -> str:
        """Which of these protocols it likes best. Raises StopIteration where it knows none, which the group has seen to."""
        return next(name for name, _ in self.protocols if name in candidates)

    @property
    def size(self) -> int:
        """What it takes in memory, roughly, in bytes."""
        told = (
            _MEMBER_BYTES
            + len(self.member_id)
            + len(self.client_id)
            + len(self.instance_id or "")
            + len(self.assignment)
        )
        return told + sum(
            len(name) + len(metadata) + NAME_BYTES for name, metadata in self.protocols
        )
