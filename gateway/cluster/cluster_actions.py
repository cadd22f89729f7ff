"""What `Controller` and `Member` ask the runtime to do.

Actions are carried out in order. Operations that take time report their outcome by the input that
the action names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.cluster.cluster_messages import ClusterMessage


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message, best effort. One to this node is delivered without the inbox."""

    node_id: int
    message: ClusterMessage


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Put rows into the metadata log. Outcome: `Controller.on_put_done` or `on_put_failed`."""

    rows: Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ConfirmRole:
    """Confirm the store lock. Outcome: `Controller.on_confirmed`, with the time of this action."""


@dataclass(frozen=True, slots=True)
class WatchPresence:
    """Call `Controller.on_gone` once when the node's presence is lost, unless unwatched before.

    The controller asks again once the node is heard after that.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class UnwatchPresence:
    """Stop watching. `on_gone` is not called for this watch any more."""

    node_id: int


@dataclass(frozen=True, slots=True)
class OpenShard:
    """Open a shard. Outcome: `Member.shard_opened` or `shard_failed`.

    After fencing the shard's table, and before the first write to it, the runtime checks
    `Member.has_lease` and that the table has no greater epoch; otherwise the shard fails to open.
    """

    shard: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CloseShard:
    """Finish what is in flight and close a shard, also one that is still being opened.

    Outcome: `Member.shard_closed`; afterwards nothing is written in that epoch.
    """

    shard: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TryToLead:
    """Acquire the controller's role. Outcome: `Member.lead_acquired` or `lead_refused`."""

    force: bool


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Stop serving as leader; shards stay open."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """There has been no lease for a session, and the cluster has other nodes: they lead the shards
    now, so clients should ask them. Ends with LeaseRegained.
    """


@dataclass(frozen=True, slots=True)
class LeaseRegained:
    """Serve again. Also the first lease."""


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The node has handed over its shards and is not registered any more; the process may end."""


ControllerAction = SendMessage | WriteRows | ConfirmRole | WatchPresence | UnwatchPresence
MemberAction = (
    SendMessage | OpenShard | CloseShard | TryToLead | LeaseLost | CutOff | LeaseRegained | NodeLeft
)
