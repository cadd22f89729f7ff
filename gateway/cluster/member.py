"""One node of the cluster: heartbeats, the lease, and the shards that the node leads.

The lease permits the node to serve as leader. Each answer to a heartbeat contains the duration of
the lease, counted from the time when the node sent the heartbeat. A lease belongs to one
registration: it ends when the log has another registration, or none, for this process. Without a
lease the node serves no requests as leader and opens no shards. Its open shards stay open, and it
serves them in the same epoch when it has a lease again.

If the controller's presence is lost, or the controller is silent, the node tries to become
controller: first without force, which succeeds only if Pulsar has released the lock of the
controller's process, then with force. The loss of the presence alone leads to attempts without
force only. Silence counts only while this
process runs, and force also requires that Pulsar has been answering: otherwise a node that was
paused or disconnected would replace a healthy controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum

from msgspec.structs import replace

from gateway.cluster.cluster_actions import (
    CloseShard,
    CutOff,
    LeaseLost,
    LeaseRegained,
    MemberAction,
    NodeLeft,
    OpenShard,
    SendMessage,
    TryToLead,
    UnwatchController,
    WatchController,
)
from gateway.cluster.cluster_messages import HeartbeatReply, NodeHeartbeat
from gateway.cluster.image import NO_NODE, ClusterImage, ControllerRow, NodeRow
from gateway.cluster.session_timing import SessionTiming

NEVER = float("-inf")

#: A node lets the nodes with lower ids use force first, but waits for at most this many of them.
MAX_TURNS = 4


class HeldState(Enum):
    """State of a shard on the node that leads it, in one epoch."""

    WAITING = "waiting"
    """Not open yet: there is no lease, or the last attempt failed."""
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """Possibly before its opening has ended."""
    CLOSED = "closed"
    """Not opened again in this epoch."""


SHARD_TRANSITIONS: Mapping[HeldState, Set[HeldState]] = {
    # state             may become
    HeldState.WAITING: {HeldState.OPENING, HeldState.CLOSED},
    HeldState.OPENING: {HeldState.OPEN, HeldState.WAITING, HeldState.CLOSING},
    HeldState.OPEN: {HeldState.WAITING, HeldState.CLOSING},
    HeldState.CLOSING: {HeldState.CLOSED},
    HeldState.CLOSED: set(),
}


class LeadRole(Enum):
    """Whether this node is the controller, tries to become it, or neither."""

    FOLLOWING = "following"
    TRYING = "trying"
    LEADING = "leading"


ROLE_TRANSITIONS: Mapping[LeadRole, Set[LeadRole]] = {
    # role               may become
    LeadRole.FOLLOWING: {LeadRole.TRYING},
    LeadRole.TRYING: {LeadRole.FOLLOWING, LeadRole.LEADING},
    LeadRole.LEADING: {LeadRole.FOLLOWING},
}


class _HeldShard:
    __slots__ = ("epoch", "retry_at", "state")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.state = HeldState.WAITING
        self.retry_at = NEVER

    def move(self, state: HeldState) -> None:
        if state not in SHARD_TRANSITIONS[self.state]:
            raise RuntimeError(f"shard in state {self.state.value} cannot move to {state.value}")
        self.state = state


class Member:
    """`node` describes this process; its registration is ignored.

    `image` is the replayed metadata log: the runtime applies rows to it and then calls `on_rows`.
    `jitter`, in seconds, delays this node's attempts to lead, so that nodes do not try at the same
    time. Times are in seconds of one monotonic clock. Every input returns the actions to carry out.
    Call `tick` no later than `next_deadline`. "Lead" without a shard means to be the controller.
    """

    def __init__(
        self, node: NodeRow, image: ClusterImage, timing: SessionTiming, jitter: float, now: float
    ) -> None:
        self.node = replace(node, registration=0)
        self._image = image
        self._timing = timing
        self._jitter = jitter
        self._role = LeadRole.FOLLOWING
        self._controller = image.controller
        self._held: dict[int, _HeldShard] = {}
        self._followed: tuple[int, NodeRow] | None = None
        """The image's `changes` and the own node, if `_follow_shards` has nothing to do until
        these or the state of a shard change.
        """
        self._is_leaving = False
        self._has_left = False
        self._sequence = 0
        self._sent: dict[int, tuple[float, int]] = {}
        """Unanswered heartbeats by sequence: time of sending and registration."""
        self._next_heartbeat = now
        self._lease_until = NEVER
        self._is_serving = False
        """Whether the last lease action was LeaseRegained."""
        self._cut_off_at = now + timing.session_timeout
        """The node is cut off at this time unless it gets a lease before."""
        self._is_cut_off = False
        self._seen = now
        self._silent_since = now
        self._refusals = 0
        """Consecutive attempts to lead that were refused because another process leads."""
        self._next_attempt = now
        self._watched: ControllerRow | None = None
        """The controller whose presence is watched."""
        self._is_controller_gone = False
        """Its presence was lost, and it has not answered since."""

    # What is served

    def has_lease(self, now: float) -> bool:
        """Whether this node may serve as leader.

        Call it at each use: a lease ends without an event.
        """
        return now < self._lease_until

    def leads(self, shard: int, now: float) -> bool:
        """Whether the shard is open here and may be served."""
        held = self._held.get(shard)
        return held is not None and held.state is HeldState.OPEN and self.has_lease(now)

    @property
    def has_left(self) -> bool:
        return self._has_left

    @property
    def next_deadline(self) -> float:
        """When to call `tick`. A process that calls it later is considered to have been paused."""
        if self._has_left:
            return float("inf")
        deadlines = [self._next_heartbeat, self._seen + self._timing.heartbeat_interval]
        if self._is_serving:
            deadlines.append(self._lease_until)
        elif not self._is_cut_off and self._cut_off_at > self._seen:
            deadlines.append(self._cut_off_at)
        attempt = self._attempt_at()
        if attempt > self._seen:
            deadlines.append(attempt)
        return min(deadlines)

    # Inputs

    def on_rows(self, now: float) -> list[MemberAction]:
        """Rows of the log have been applied to the image."""
        self._observe(now)
        if self._image.controller != self._controller:
            self._controller_changed(now)
        registration = self._registration()
        if registration != self.node.registration:
            self.node = replace(self.node, registration=registration)
            self._lease_until = NEVER
            self._next_heartbeat = now
        return self._act(now)

    def on_reply(self, message: HeartbeatReply, now: float) -> list[MemberAction]:
        self._observe(now)
        controller = self._image.controller
        if message.incarnation != self.node.incarnation or (
            controller is not None and message.controller_epoch < controller.epoch
        ):
            return self._act(now)
        sent = self._sent.pop(message.sequence, None)
        if sent is not None:
            sent_at, registration = sent
            self._answered(now)
            if message.is_known and registration and registration == self.node.registration:
                self._lease_until = max(self._lease_until, sent_at + message.lease)
        return self._act(now)

    def tick(self, now: float) -> list[MemberAction]:
        self._observe(now)
        return self._act(now)

    def shard_opened(self, shard: int, epoch: int, now: float) -> list[MemberAction]:
        self._observe(now)
        held = self._held.get(shard)
        if held is not None and held.epoch == epoch and held.state is HeldState.OPENING:
            held.move(HeldState.OPEN)
            self._followed = None
            self._heartbeat_soon(now)
        return self._act(now)

    def shard_failed(self, shard: int, epoch: int, now: float) -> list[MemberAction]:
        """A shard could not be opened, or an open one was fenced. It is opened again."""
        self._observe(now)
        held = self._held.get(shard)
        if (
            held is not None
            and held.epoch == epoch
            and held.state in (HeldState.OPENING, HeldState.OPEN)
        ):
            held.move(HeldState.WAITING)
            held.retry_at = now + self._timing.heartbeat_interval
            self._followed = None
            self._heartbeat_soon(now)
        return self._act(now)

    def shard_closed(self, shard: int, epoch: int, now: float) -> list[MemberAction]:
        self._observe(now)
        held = self._held.get(shard)
        if held is not None and held.epoch == epoch and held.state is HeldState.CLOSING:
            held.move(HeldState.CLOSED)
            self._followed = None
            self._heartbeat_soon(now)
        return self._act(now)

    def controller_gone(self, now: float) -> list[MemberAction]:
        """The controller's presence was lost."""
        self._observe(now)
        self._is_controller_gone = self._watched is not None
        self._watched = None
        return self._act(now)

    def lead_acquired(self, now: float) -> list[MemberAction]:
        """This process is the controller."""
        self._observe(now)
        self._move_role(LeadRole.LEADING)
        self._answered(now)
        self._next_heartbeat = now
        return self._act(now)

    def lead_refused(self, is_in_use: bool, now: float) -> list[MemberAction]:
        """Another process is the controller (`is_in_use`), or Pulsar failed."""
        self._observe(now)
        self._move_role(LeadRole.FOLLOWING)
        self._refusals = self._refusals + 1 if is_in_use else 0
        self._next_attempt = now + self._timing.heartbeat_interval
        return self._act(now)

    def lead_lost(self, now: float) -> list[MemberAction]:
        """This process is not the controller any more."""
        self._observe(now)
        if self._role is LeadRole.LEADING:
            self._move_role(LeadRole.FOLLOWING)
            self._answered(now)
        return self._act(now)

    def leave(self, now: float) -> list[MemberAction]:
        """Hand over all shards, then report NodeLeft. The caller limits the time."""
        self._observe(now)
        self._is_leaving = True
        self._next_heartbeat = now
        return self._act(now)

    # What follows from the inputs

    def _observe(self, now: float) -> None:
        """After a pause of this process, measure the controller's silence from now."""
        if now - self._seen > 2 * self._timing.heartbeat_interval:
            self._silent_since = now
            self._refusals = 0
        self._seen = now

    def _answered(self, now: float) -> None:
        self._silent_since = now
        self._refusals = 0
        self._is_controller_gone = False

    def _controller_changed(self, now: float) -> None:
        self._controller = self._image.controller
        own = self._controller is not None and (
            self._controller.incarnation == self.node.incarnation
            or self._controller.node_id == NO_NODE
        )
        if self._role is LeadRole.LEADING and not own:
            self._move_role(LeadRole.FOLLOWING)
        self._answered(now)
        self._next_heartbeat = now

    def _registration(self) -> int:
        row = self._image.nodes.get(self.node.node_id)
        return row.registration if row and row.incarnation == self.node.incarnation else 0

    def _heartbeat_soon(self, now: float) -> None:
        """Send a heartbeat within a tenth of an interval: one for several changes."""
        soon = now + self._timing.heartbeat_interval / 10
        self._next_heartbeat = min(self._next_heartbeat, soon)

    def _act(self, now: float) -> list[MemberAction]:
        actions: list[MemberAction] = []
        if self._has_left:
            return actions
        if self.has_lease(now) != self._is_serving:
            self._is_serving = not self._is_serving
            self._is_cut_off = False
            self._cut_off_at = now + self._timing.session_timeout
            actions.append(LeaseRegained() if self._is_serving else LeaseLost())
        if not self._is_serving and not self._is_cut_off and now >= self._cut_off_at:
            # If there is no other node, none can take over the shards: clients wait for this one.
            self._is_cut_off = any(one != self.node.node_id for one in self._image.nodes)
            if self._is_cut_off:
                actions.append(CutOff())
        self._follow_shards(now, actions)
        if self._is_leaving and not self.node.registration and not self._held:
            self._has_left = True
            actions.append(NodeLeft())
            return actions
        self._watch_controller(actions)
        self._try_to_lead(now, actions)
        if now >= self._next_heartbeat:
            self._send_heartbeat(now, actions)
        return actions

    def _follow_shards(self, now: float, actions: list[MemberAction]) -> None:
        """Open and close shards as the log says."""
        if self._followed == (self._image.changes, self.node):
            return
        own_row = self._image.nodes.get(self.node.node_id) if self.node.registration else None
        epochs = {
            shard: row.epoch for shard, row in self._image.shards.items() if row.is_led_by(own_row)
        }
        for shard, held in list(self._held.items()):
            is_led = epochs.get(shard) == held.epoch
            if not is_led or self._image.shards[shard].successor != NO_NODE:
                self._close(shard, held, now, actions)
                if not is_led and held.state is HeldState.CLOSED:
                    del self._held[shard]
        for shard, epoch in epochs.items():
            if shard not in self._held:
                self._held[shard] = _HeldShard(epoch)
            held = self._held[shard]
            if held.epoch != epoch or held.state is not HeldState.WAITING:
                continue  # A shard with another epoch is being closed.
            if self._image.shards[shard].successor != NO_NODE:
                self._close(shard, held, now, actions)
            elif self.has_lease(now) and now >= held.retry_at:
                held.move(HeldState.OPENING)
                actions.append(OpenShard(shard, epoch))
        # A waiting shard depends on the lease and the time, too.
        is_waiting = any(held.state is HeldState.WAITING for held in self._held.values())
        self._followed = None if is_waiting else (self._image.changes, self.node)

    def _close(self, shard: int, held: _HeldShard, now: float, actions: list[MemberAction]) -> None:
        if held.state is HeldState.WAITING:
            held.move(HeldState.CLOSED)
            self._heartbeat_soon(now)
        elif held.state in (HeldState.OPENING, HeldState.OPEN):
            held.move(HeldState.CLOSING)
            actions.append(CloseShard(shard, held.epoch))

    def _watch_controller(self, actions: list[MemberAction]) -> None:
        """Watch the presence of the controller, unless it is this node or its loss is known."""
        watched = self._controller
        if (
            watched is None
            or watched.node_id in (NO_NODE, self.node.node_id)
            or self._role is LeadRole.LEADING
            or self._is_controller_gone
        ):
            watched = None
        if watched == self._watched:
            return
        self._watched = watched
        actions.append(UnwatchController() if watched is None else WatchController(watched.node_id))

    def _try_to_lead(self, now: float, actions: list[MemberAction]) -> None:
        if now < self._attempt_at():
            return
        is_forced = (
            now - self._silent_since >= self._timing.force_after + self._jitter + self._turn()
            # Two refusals show that Pulsar answers while the controller does not.
            and self._refusals >= 2
        )
        self._move_role(LeadRole.TRYING)
        actions.append(TryToLead(is_forced))

    def _turn(self) -> float:
        """Seconds by which this node uses force later than the node with the lowest id.

        On a busy machine, a node needs some tenths of a second to become the controller. A node
        that used force in that time would replace the new controller.
        """
        silent = NO_NODE if self._controller is None else self._controller.node_id
        before = sum(one < self.node.node_id and one != silent for one in self._image.nodes)
        return 2 * self._timing.heartbeat_interval * min(before, MAX_TURNS)

    def _attempt_at(self) -> float:
        """When to try to lead, unless the controller answers before; infinity for never."""
        if self._role is not LeadRole.FOLLOWING or self._is_leaving:
            return float("inf")
        if self._has_no_controller() or self._is_controller_gone:
            return self._next_attempt
        silent_until = self._silent_since + self._timing.lead_after + self._jitter
        return max(self._next_attempt, silent_until)

    def _has_no_controller(self) -> bool:
        """Whether the log shows that no process is the controller.

        A former process with this node's id has ended: only one at a time can use an id.
        """
        row = self._controller
        return (
            row is None
            or row.node_id == NO_NODE
            or (row.node_id == self.node.node_id and row.incarnation != self.node.incarnation)
        )

    def _send_heartbeat(self, now: float, actions: list[MemberAction]) -> None:
        self._next_heartbeat = now + self._timing.heartbeat_interval
        if self._role is LeadRole.LEADING:
            target = self.node.node_id
        elif self._controller is not None and self._controller.node_id != NO_NODE:
            target = self._controller.node_id
        else:
            return
        self._sequence += 1
        self._sent = {
            sequence: sent
            for sequence, sent in self._sent.items()
            if now - sent[0] < self._timing.session_timeout
        }
        self._sent[self._sequence] = (now, self.node.registration)
        heartbeat = NodeHeartbeat(
            node=self.node,
            sequence=self._sequence,
            ready=self._shards_in(HeldState.OPEN),
            released=self._shards_in(HeldState.CLOSED),
            is_leaving=self._is_leaving,
        )
        actions.append(SendMessage(target, heartbeat))

    def _shards_in(self, state: HeldState) -> tuple[tuple[int, int], ...]:
        return tuple(
            (shard, held.epoch) for shard, held in self._held.items() if held.state is state
        )

    def _move_role(self, role: LeadRole) -> None:
        if role not in ROLE_TRANSITIONS[self._role]:
            raise RuntimeError(f"a {self._role.value} node cannot become {role.value}")
        self._role = role
