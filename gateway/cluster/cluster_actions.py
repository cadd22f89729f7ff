"""Actions of the state machines `Controller` and `Member`, which the runtime carries out in order.

The runtime is `ClusterNode`. If an action takes time, the runtime reports its outcome by calling
the method that the action's docstring names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.cluster.cluster_messages import ClusterMessage


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message, which may be lost. A message to this node does not pass the inbox."""

    node_id: int
    message: ClusterMessage


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Put rows into the metadata log. Outcome: `Controller.on_put_done` or `on_put_failed`."""

    rows: Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ConfirmRole:
    """Check that this process still holds the store lock.

    Outcome: `Controller.on_confirmed` with the time when the check began; nothing if it failed.
    """


@dataclass(frozen=True, slots=True)
class WatchPresence:
    """Call `Controller.on_gone` once when the node's presence is lost, unless unwatched before.

    The controller repeats this action when a heartbeat arrives after the loss.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class UnwatchPresence:
    """End the watch: `on_gone` is no longer called for it."""

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
    """Finish the requests in flight and close a shard, also one that is still being opened.

    Outcome: `Member.shard_closed`. After that, nothing is written in this epoch.
    """

    shard: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TryToLead:
    """Acquire the controller's role. Outcome: `Member.lead_acquired` or `lead_refused`."""

    force: bool


@dataclass(frozen=True, slots=True)
class WatchController:
    """Call `Member.controller_gone` once when the presence of this node, the controller, is lost.

    It replaces the watch of another node. The member repeats it after an answer of the controller.
    """

    node_id: int


@dataclass(frozen=True, slots=True)
class UnwatchController:
    """End the watch of WatchController."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease has ended: stop serving as leader. Shards stay open."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The node has had no lease for a session timeout, and the cluster has other nodes.

    Those lead the shards by now, so clients are sent to them. LeaseRegained ends this.
    """


@dataclass(frozen=True, slots=True)
class LeaseRegained:
    """The node has a lease, for the first time or again: serve as leader."""


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The node leads no shards and is no longer registered. The process may end."""


ControllerAction = SendMessage | WriteRows | ConfirmRole | WatchPresence | UnwatchPresence
MemberAction = (
    SendMessage
    | OpenShard
    | CloseShard
    | TryToLead
    | WatchController
    | UnwatchController
    | LeaseLost
    | CutOff
    | LeaseRegained
    | NodeLeft
)
