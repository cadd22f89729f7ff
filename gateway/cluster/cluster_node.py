"""This gateway as a node of the cluster: runs `Member` and `Controller` on a `ClusterMedium`.

The state machines decide. This module carries out their actions and passes events to them: rows of
the metadata log, messages, timers, opened and closed shards, and the loss of the writer's role.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from gateway import logs
from gateway.cluster.calls import Calls
from gateway.cluster.cluster_actions import (
    CloseShard,
    ConfirmRole,
    ControllerAction,
    CutOff,
    LeaseLost,
    LeaseRegained,
    MemberAction,
    NodeLeft,
    OpenShard,
    SendMessage,
    TryToLead,
    UnwatchController,
    UnwatchPresence,
    WatchController,
    WatchPresence,
    WriteRows,
)
from gateway.cluster.cluster_messages import (
    ClusterMessage,
    HeartbeatReply,
    NodeHeartbeat,
    decode_message,
    encode_message,
)
from gateway.cluster.controller import Controller
from gateway.cluster.image import NO_NODE, ClusterImage, ClusterRow, NodeRow, is_per_node
from gateway.cluster.member import Member
from gateway.cluster.session_timing import SessionTiming
from gateway.cluster.shard_leadership import ShardLeadership, ShardState
from gateway.cluster.view import UNKNOWN, ClusterView, NodeReplay, ReplayProgress
from gateway.coroutines import Cancel, Clock, SharedResult, call_later, start
from storage.cluster import MAX_NODES, ClusterMedium, OtherController, Rows
from storage.log import Fenced, StorageError, StoreInUse

_log = logs.get_logger(__name__)

#: First byte of an inbox message: for `Member` and `Controller`, or for `Calls`.
_OF_CLUSTER, _OF_CALLS = b"\1", b"\2"

#: Shortest timer, in seconds.
MIN_TIMER_SECONDS = 0.001

Action = ControllerAction | MemberAction


class ControllerDuty(Protocol):
    """The controller's tasks besides assigning shards; implemented by `SharedStore`."""

    def lead(self, all_replayed: Callable[[], Awaitable[None]]) -> None: ...
    def follow(self) -> None: ...
    @property
    def applied_revision(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NodeParts:
    """Collaborators of a node. `duty.lead` is called before the node assigns shards."""

    medium: ClusterMedium
    view: ClusterView
    leadership: ShardLeadership
    duty: ControllerDuty


@dataclass(frozen=True, slots=True)
class LogReplay:
    """How far each node has replayed the metadata log. `epoch` is that of the controller."""

    epoch: int
    nodes: tuple[NodeReplay, ...]


def _ignore() -> None:
    return


class ClusterNode:
    """Call `start` once the gateway can open shards.

    `row` describes this process, `cluster` is written if the log has no cluster yet. `jitter` is in
    seconds, up to one heartbeat interval. `first_epoch` is the epoch of a shard's first leader.
    `failed` is called with the reason if another process has taken this node id.
    """

    def __init__(
        self,
        row: NodeRow,
        cluster: ClusterRow,
        parts: NodeParts,
        timing: SessionTiming,
        clock: Clock,
        jitter: float,
        first_epoch: int,
        failed: Callable[[str], None],
    ) -> None:
        self.node_id = row.node_id
        self.incarnation = row.incarnation
        self._cluster = cluster
        self._medium = parts.medium
        self._view = parts.view
        self._leadership = parts.leadership
        self._duty = parts.duty
        self.calls = Calls(
            self._send_call, clock, row.node_id, int(row.incarnation, 16), self._incarnation_of
        )
        self._timing = timing
        self._clock = clock
        self._first_epoch = first_epoch
        self._failed = failed
        self.image = ClusterImage()
        self.image.apply(self._medium.log.rows)
        self._member = Member(row, self.image, timing, jitter, clock.seconds())
        self._controller: Controller | None = None
        self._actions: deque[Action] = deque()
        self._is_running = False
        self._watches: dict[int, Callable[[], None]] = {}
        self._controller_watch: Callable[[], None] | None = None
        """Ends the watch of the controller's presence."""
        self._closing: dict[int, int] = {}
        """Epoch of each shard that a CloseShard is closing."""
        self._replayed = ReplayProgress()
        """Progress of the other nodes; empty unless this gateway is the controller."""
        self._heartbeat_arrived: SharedResult[None] = SharedResult()
        self._timer: Cancel | None = None
        self._left: SharedResult[None] = SharedResult()
        self._is_leaving = False
        self._has_lost_lease = False
        self._opens_shards = True
        self._gone: dict[int, str] = {}
        """By node id, the reason why a node leaves; only at the controller."""
        self._refused: set[int] = set()
        """Ids of nodes that the controller does not register, as logged."""
        self._shards_changed: float | None = None
        """Time of the last opening or closing of a shard here, None once it is logged."""
        self._on_cut_off: Callable[[], None] = _ignore
        self._is_closed = False

    def when_cut_off(self, call: Callable[[], None]) -> None:
        """Call `call` each time this node is cut off from the cluster."""
        self._on_cut_off = call

    async def start(self) -> None:
        """Open the inbox, follow the metadata log and send heartbeats. Raises StorageError."""
        await self._medium.inbox.open(self.node_id, self.on_message)
        log = self._medium.log
        self._log_unreadable(self.image.apply(log.rows))
        log.watch(self._on_rows)
        log.when_lost(self._on_role_lost)
        self._medium.presence.when_taken(self._failed)
        self._leadership.watch(self._on_shard)
        # This process may have lost the role since it prepared the store.
        self._duty.follow()
        self._show(self.image)
        self._run(self._member.tick(self._clock.seconds()))

    @property
    def has_lease(self) -> bool:
        """Whether this node may serve as leader at this moment."""
        return self._member.has_lease(self._clock.seconds())

    @property
    def revision(self) -> int:
        """The last revision of the metadata log that this node has replayed."""
        return self._medium.log.revision

    def _incarnation_of(self, node_id: int) -> int | None:
        """The incarnation of a registered node, None for others."""
        row = self.image.nodes.get(node_id)
        return None if row is None else int(row.incarnation, 16)

    @property
    def is_controller(self) -> bool:
        return self._controller is not None

    def describe_replay(self) -> LogReplay | None:
        """How far the registered nodes have replayed the log; None if this is not the controller.

        The controller is the first in the list. It has replayed everything that it wrote.
        """
        if self._controller is None:
            return None
        end, now = self._medium.log.revision, self._clock.seconds()
        others = (self._replayed.of(one) for one in sorted(self.image.nodes) if one != self.node_id)
        return LogReplay(
            self._controller.epoch, (NodeReplay(self.node_id, end, end, now, now), *others)
        )

    async def wait_until_replayed(self) -> None:
        """Return when all other nodes have applied the log to its present end.

        Nodes whose sessions end are not waited for. Returns also when this gateway is no longer the
        controller.
        """
        revision = self._medium.log.revision
        while self._controller is not None and any(
            self._replayed.of(node_id).revision < revision
            for node_id in self.image.nodes
            if node_id != self.node_id
        ):
            with suppress(TimeoutError):
                await self._heartbeat_arrived.with_timeout(
                    self._clock, self._timing.heartbeat_interval
                )

    async def leave(self, seconds: float) -> None:
        """Hand over all shards, then give up the role of the controller.

        After `seconds`, the remaining shards are not waited for, and a warning is logged. From then
        on, no shard is opened. Heartbeats continue until `close`: closing a shard writes to it,
        which needs the lease, and the controller may still move shards.
        """
        self._is_leaving = True
        self._run(self._member.leave(self._clock.seconds()))
        try:
            await self._left.with_timeout(self._clock, seconds)
        except TimeoutError:
            _log.warning("shards not handed over in time", seconds=seconds)
        self._opens_shards = False
        if self._controller is not None:
            await self._resign(self._controller)

    async def _resign(self, controller: Controller) -> None:
        self._end_term()
        for action in controller.resign(self._clock.seconds()):
            if isinstance(action, WriteRows):
                with suppress(StorageError):
                    await self._medium.log.put(action.rows)
        await self._medium.log.release()

    def close(self) -> None:
        """End all calls and timers. The medium stays open: the store closes it."""
        self._is_closed = True
        self.calls.close()
        self._end_term()
        self._unwatch_controller()
        if self._timer is not None:
            self._timer()
            self._timer = None

    # Inputs

    def on_message(self, message: bytes) -> None:
        """Process a message of the inbox. Never raises."""
        kind, content = message[:1], message[1:]
        if kind == _OF_CALLS:
            self.calls.on_message(content)
        elif kind == _OF_CLUSTER:
            decoded = decode_message(content)
            if decoded is not None:
                self._deliver(decoded)

    def _send_call(self, node_id: int, message: bytes) -> None:
        """Send a message of `Calls`."""
        self._medium.inbox.send(node_id, _OF_CALLS + message)

    def _deliver(self, message: ClusterMessage) -> None:
        now = self._clock.seconds()
        if isinstance(message, HeartbeatReply):
            self._run(self._member.on_reply(message, now))
            if self.has_lease:
                # A request may have noticed the end of the lease before the timer and this reply.
                # It has suspended the leadership then, and no LeaseRegained follows.
                self._leadership.resume()
        elif self._controller is not None:
            log = self._medium.log
            self._replayed.heard(message.node.node_id, message.revision, log.revision, now)
            if message.is_leaving:
                self._gone[message.node.node_id] = "it is shutting down"
            else:
                # Its presence may have been lost for a moment.
                self._gone.pop(message.node.node_id, None)
            self._log_refused(message.node)
            arrived, self._heartbeat_arrived = self._heartbeat_arrived, SharedResult()
            arrived.succeed(None)
            self._run(self._controller.on_heartbeat(message, now))

    def _on_rows(self, rows: Rows) -> None:
        before, controller = dict(self.image.nodes), self.image.controller
        self._log_unreadable(self.image.apply(rows))
        for node_id, row in before.items():
            now_row = self.image.nodes.get(node_id)
            if now_row is None or now_row.incarnation != row.incarnation:
                self.calls.node_gone(node_id, int(row.incarnation, 16))
        self._log_nodes(before)
        if controller != self.image.controller:
            self._log_controller()
        self._show(self.image)
        now = self._clock.seconds()
        self._run(self._member.on_rows(now))
        if self._controller is not None:
            self._run(self._controller.on_rows(now))

    def _log_unreadable(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            if is_per_node(key):
                _log.warning(
                    "row of a node cannot be read, the controller will delete it",
                    key=key,
                )
            else:
                _log.error(
                    "row of the metadata log cannot be read, no shard changes its leader until a "
                    "controller can read it",
                    key=key,
                    remedy="update all gateways to the version that wrote the row",
                )

    def _log_nodes(self, before: Mapping[int, NodeRow]) -> None:
        """Log the nodes that joined or left. Only the controller knows why they left."""
        after = self.image.nodes
        for node_id, row in before.items():
            if node_id not in after or after[node_id].registration != row.registration:
                reason = self._gone.pop(node_id, "no heartbeat")
                if self._controller is not None:
                    _log.info("node left the cluster", node=node_id, reason=reason)
                else:
                    _log.info("node left the cluster", node=node_id)
        for node_id, row in after.items():
            if node_id not in before or before[node_id].registration != row.registration:
                _log.info("node joined the cluster", node=node_id, host=row.host, pid=row.process)
                if row.incarnation == self.incarnation:
                    self._check_addresses(after)

    def _check_addresses(self, nodes: Mapping[int, NodeRow]) -> None:
        """Warn if another node advertises an address of this node: clients would reach either."""
        own = set(nodes[self.node_id].addresses.values())
        for node_id, row in nodes.items():
            if node_id != self.node_id:
                for host, port in own.intersection(row.addresses.values()):
                    _log.warning(
                        "another node advertises the same address",
                        node=node_id,
                        address=f"{host}:{port}",
                        remedy="set advertised to an address that leads to this gateway only",
                    )

    def _log_refused(self, node: NodeRow) -> None:
        """Log once that a node is not registered because there are too many."""
        if node.node_id in self.image.nodes or len(self.image.nodes) < MAX_NODES:
            self._refused.discard(node.node_id)
        elif node.node_id not in self._refused:
            self._refused.add(node.node_id)
            _log.error(
                "node refused, the cluster has the greatest number of nodes",
                node=node.node_id,
                host=node.host,
                pid=node.process,
                nodes=MAX_NODES,
                remedy="stop a gateway",
            )

    def _log_controller(self) -> None:
        row = self.image.controller
        if row is None or row.node_id == NO_NODE:
            _log.info("controller resigned")
        elif row.incarnation != self.incarnation:
            # A new controller has logged its own election already.
            _log.info("another gateway is the controller", node=row.node_id, epoch=row.epoch)

    def _log_shards(self, now: float) -> None:
        """Log the number of open shards, one heartbeat interval after the last change."""
        changed = self._shards_changed
        if changed is not None and now - changed >= self._timing.heartbeat_interval:
            self._shards_changed = None
            _log.info("shards led by this gateway", count=self._leadership.open_count)

    def _show(self, image: ClusterImage) -> None:
        """Copy nodes, controller and shard leaders to the view."""
        view = self._view
        addresses = {node_id: row.addresses for node_id, row in image.nodes.items()}
        view.set_nodes({self.node_id: self._member.node.addresses, **addresses})
        view.set_controller(UNKNOWN if image.controller is None else image.controller.node_id)
        expected: set[int] = set()
        given: set[int] = set()
        for shard, row in image.shards.items():
            if shard < view.shard_count:
                leader, epoch = row.leader, row.epoch
                if row.successor != NO_NODE:
                    # Clients are sent to the successor early. It holds their requests until it
                    # leads, in the next epoch. That epoch is named now: with the present one, two
                    # gateways could name two leaders of one epoch, which clients confuse.
                    leader, epoch = row.successor, row.epoch + 1
                view.set_leader(shard, leader, epoch)
                if leader == self.node_id:
                    (given if row.successor == NO_NODE else expected).add(shard)
        self._leadership.expect(expected, given)

    def _on_shard(self, shard: int, state: ShardState) -> None:
        now, epoch = self._clock.seconds(), self._leadership.epoch_of(shard)
        if state in (ShardState.OPEN, ShardState.CLOSED):
            self._shards_changed = now
        if state is ShardState.OPEN:
            self._run(self._member.shard_opened(shard, epoch, now))
        elif state is ShardState.CLOSED:
            closing = self._closing.pop(shard, None)
            if closing is not None:
                self._run(self._member.shard_closed(shard, closing, now))
            elif not self._leadership.leads(shard):
                self._run(self._member.shard_failed(shard, epoch, now))

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        self._log_shards(now)
        is_failing = not self._tick(self._member, now)
        if self._controller is not None:
            is_failing |= not self._tick(self._controller, now)
        if is_failing:
            # The deadline may have passed: do not try again at once, and again and again.
            self._schedule(self._timing.heartbeat_interval)

    def _tick(self, machine: Member | Controller, now: float) -> bool:
        """Returns False after a bug, which must not end the timer."""
        try:
            actions = machine.tick(now)
        except Exception as failure:  # noqa: BLE001 - the next tick may be successful
            _log.bug("cluster timer failed", failure, machine=type(machine).__name__)
            return False
        self._run(actions)
        return True

    def _on_gone(self, node_id: int) -> None:
        self._watches.pop(node_id, None)
        if self._controller is not None:
            self._gone.setdefault(node_id, "its process ended or lost its connection to Pulsar")
            self._run(self._controller.on_gone(node_id, self._clock.seconds()))

    def _on_controller_gone(self) -> None:
        self._controller_watch = None
        self._run(self._member.controller_gone(self._clock.seconds()))

    def _unwatch_controller(self) -> None:
        stop, self._controller_watch = self._controller_watch, None
        if stop is not None:
            stop()

    def _on_role_lost(self, reason: str) -> None:
        _log.warning("no longer the controller", reason=reason)
        if self._controller is not None:
            self._controller.on_lost(self._clock.seconds())
        self._end_term()
        self._run(self._member.lead_lost(self._clock.seconds()))

    def _end_term(self) -> None:
        self._controller = None
        self._replayed.clear()
        self._gone.clear()
        self._refused.clear()
        for stop in self._watches.values():
            stop()
        self._watches.clear()
        self._duty.follow()

    # Actions

    def _run(self, actions: Sequence[Action]) -> None:
        """Carry out actions, then those that result from them.

        A bug in one action does not stop the others. Heartbeats continue in any case: without the
        timer, the node would do nothing more.
        """
        self._actions.extend(actions)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._actions and not self._is_closed:
                action = self._actions.popleft()
                try:
                    self._carry_out(action)
                except Exception as failure:  # noqa: BLE001 - the other actions do not depend on it
                    _log.bug("cluster action failed", failure, action=type(action).__name__)
        finally:
            self._is_running = False
            self._schedule()

    def _schedule(self, shortest: float = MIN_TIMER_SECONDS) -> None:
        if self._timer is not None:
            self._timer()
            self._timer = None
        if self._is_closed:
            return
        deadline = self._member.next_deadline
        if self._controller is not None:
            deadline = min(deadline, self._controller.next_deadline)
        # Not 0: because of rounding, a timer may fire just before its deadline, again and again.
        pause = max(deadline - self._clock.seconds(), shortest)
        self._timer = call_later(self._clock, pause, self._on_timer)

    def _carry_out(self, action: Action) -> None:
        match action:
            case SendMessage(node_id, message):
                self._send(node_id, message)
            case OpenShard(shard, epoch):
                if self._opens_shards:
                    self._leadership.lead(shard, epoch)
            case CloseShard(shard, epoch):
                self._close_shard(shard, epoch)
            case LeaseLost():
                if not self._is_leaving:
                    self._has_lost_lease = True
                    _log.warning(
                        "lease ended, not serving as leader until it is renewed; if this happens "
                        "often, check the connection to Pulsar and the load of this host"
                    )
                self._leadership.suspend()
            case CutOff():
                _log.warning("no lease for a session timeout, clients are sent to other gateways")
                self._view.set_cut_off(True)
                self._leadership.refuse()
                self._on_cut_off()
            case LeaseRegained():
                if self._has_lost_lease:
                    self._has_lost_lease = False
                    _log.info("lease renewed, serving as leader again")
                self._view.set_cut_off(False)
                self._leadership.resume()
            case TryToLead(force):
                self._start(self._try_to_lead(force))
            case NodeLeft():
                self._left.succeed(None)
            case WriteRows(rows):
                self._start(self._write(rows))
            case ConfirmRole():
                self._start(self._confirm_role())
            case WatchPresence(node_id):
                self._unwatch(node_id)
                self._watches[node_id] = self._medium.presence.watch(
                    node_id, partial(self._on_gone, node_id)
                )
            case UnwatchPresence(node_id):
                self._unwatch(node_id)
            case WatchController(node_id):
                self._unwatch_controller()
                self._controller_watch = self._medium.presence.watch(
                    node_id, self._on_controller_gone
                )
            case UnwatchController():
                self._unwatch_controller()

    def _send(self, node_id: int, message: ClusterMessage) -> None:
        if isinstance(message, NodeHeartbeat):
            message = replace(message, revision=self._duty.applied_revision)
        if node_id == self.node_id:
            self._deliver(message)
        else:
            self._medium.inbox.send(node_id, _OF_CLUSTER + encode_message(message))

    def _close_shard(self, shard: int, epoch: int) -> None:
        if self._leadership.state_of(shard) is ShardState.CLOSED:
            self._leadership.resign(shard)
            self._run(self._member.shard_closed(shard, epoch, self._clock.seconds()))
        else:
            self._closing[shard] = epoch
            self._leadership.resign(shard)

    def _unwatch(self, node_id: int) -> None:
        stop = self._watches.pop(node_id, None)
        if stop is not None:
            stop()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        start(work, lambda _: None, lambda failure: _log.bug("cluster task failed", failure))

    async def _try_to_lead(self, force: bool) -> None:
        asked = self._clock.seconds()
        replaced = self.image.controller if force else None
        try:
            await self._medium.log.acquire(force)
        except Exception as failure:  # noqa: BLE001 - the attempt must end, also after a bug
            is_in_use = isinstance(failure, (OtherController, StoreInUse, Fenced))
            if not isinstance(failure, StorageError):
                _log.bug("taking the role of the controller failed", failure)
            elif not is_in_use:
                _log.warning("this gateway cannot become the controller", reason=str(failure))
            try:
                if not is_in_use:
                    await self._medium.log.release()
            finally:
                self._run(self._member.lead_refused(is_in_use, self._clock.seconds()))
            return
        now = self._clock.seconds()
        if not self._medium.log.is_writer:
            self._run(self._member.lead_refused(True, now))
            return
        self._controller = Controller(
            self._member.node,
            self._cluster,
            self.image,
            self._timing,
            asked,
            now,
            self._first_epoch,
            replaced,
        )
        _log.info("this gateway is the controller", epoch=self._controller.epoch)
        self._duty.lead(self.wait_until_replayed)
        self._run(self._member.lead_acquired(now))
        self._run(self._controller.tick(now))

    async def _write(self, rows: Rows) -> None:
        controller = self._controller
        try:
            await self._medium.log.put(rows)
        except StorageError as failure:
            _log.warning("storing a decision of the controller failed", reason=str(failure))
            if controller is not None and controller is self._controller:
                self._run(controller.on_put_failed(self._clock.seconds()))
        else:
            if controller is not None and controller is self._controller:
                self._run(controller.on_put_done(self._clock.seconds()))

    async def _confirm_role(self) -> None:
        controller, asked = self._controller, self._clock.seconds()
        try:
            await self._medium.log.confirm()
        except StorageError:
            # The controller tries again. If the role is lost, `when_lost` reports it.
            return
        if controller is not None and controller is self._controller:
            self._run(controller.on_confirmed(asked, self._clock.seconds()))
