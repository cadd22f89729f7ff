"""The controller: registers nodes, watches their sessions and assigns shards to them.

Every decision is written to the metadata log before any node acts on it, one write at a time, and
the next decision is made after that write has been replayed. A failed write may or may not be
stored; the controller then writes its own row, which follows the failed one in the log, and decides
again when that has been replayed.

A decision binds the controller before nodes can see it: a session that has ended stays ended, so
no heartbeat extends the node's lease while the loss of its shards is being written. The node is
registered again, with another registration number, once its row has been deleted.

The controller acts only while its role is confirmed. After a time without confirmation, or a pause
of its process, it gives every node a new session, because heartbeats could not arrive.

The loss of a node's presence does not end its session at once, because Pulsar may give the presence
to the controller after a restart of a broker although the node is alive. The loss shortens the
session, and the next heartbeat restores it. It has no effect until the node has sent a heartbeat to
this controller, and another one after each disturbance: a node that lives may need longer to
connect again than the shortened session (`_has_probably_ended`).

The controller decides nothing while the row of a shard or of the cluster cannot be read, because
the row may name a leader of a newer epoch. It deletes the unreadable row of a node, which then
registers again. The node may still have a lease, so the controller first waits for a session
timeout. In that time it decides nothing and grants the node no lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from gateway.cluster.cluster_actions import (
    ConfirmRole,
    ControllerAction,
    SendMessage,
    UnwatchPresence,
    WatchPresence,
    WriteRows,
)
from gateway.cluster.cluster_messages import HeartbeatReply, NodeHeartbeat
from gateway.cluster.image import (
    NO_NODE,
    ClusterImage,
    ClusterRow,
    ControllerRow,
    LastAddresses,
    NodeRow,
    ShardRow,
    addresses_key,
    cluster_key,
    controller_key,
    encode_row,
    is_per_node,
    node_key,
    shard_key,
)
from gateway.cluster.placement import place
from gateway.cluster.session_timing import SessionTiming
from storage.cluster import MAX_NODES


class ControllerState(Enum):
    """How far this controller has replayed the log."""

    SYNCING = "syncing"
    """It waits until its own row is replayed, at first and after a failed write."""
    DECIDING = "deciding"
    RESIGNED = "resigned"
    """It has lost or given up the role."""


TRANSITIONS: Mapping[ControllerState, Set[ControllerState]] = {
    # state                   may become
    ControllerState.SYNCING: {ControllerState.DECIDING, ControllerState.RESIGNED},
    ControllerState.DECIDING: {ControllerState.SYNCING, ControllerState.RESIGNED},
    ControllerState.RESIGNED: set(),
}


@dataclass(slots=True)
class _Session:
    """A registered node, as this controller sees it.

    `expires` is in seconds of the controller's clock. `sequence` is the number of the last
    heartbeat. `ready` and `released` have the epoch of each shard that the node reported as such.
    """

    row: NodeRow
    expires: float
    sequence: int = -1
    has_ended: bool = False
    has_reported: bool = False
    """A heartbeat has arrived since the role was acquired or last disturbed."""
    is_gone: bool = False
    """Its presence was lost, and no heartbeat has arrived since."""
    is_leaving: bool = False
    ready: Mapping[int, int] = field(default_factory=dict)
    released: Mapping[int, int] = field(default_factory=dict)


class Controller:
    """Created when the role has been acquired and the log replayed to its end into `image`.

    `node` is the controller's own node. `cluster` is written if the log has no cluster yet.
    `first_epoch` is the epoch of a shard's first leader. `confirmed` is the time when the
    acquisition of the role began. `replaced` is the silent controller that this node replaced by
    force, None if it did not use force. Times are in seconds of one monotonic clock. Every input
    returns the actions to carry out.
    """

    def __init__(
        self,
        node: NodeRow,
        cluster: ClusterRow,
        image: ClusterImage,
        timing: SessionTiming,
        confirmed: float,
        now: float,
        first_epoch: int = 1,
        replaced: ControllerRow | None = None,
    ) -> None:
        self._image = image
        self._timing = timing
        self._cluster = cluster
        self._first_epoch = first_epoch
        previous = image.controller
        self._row = ControllerRow(
            node.node_id, node.incarnation, previous.epoch + 1 if previous else 1
        )
        self._last_registration = self._row.epoch << 32
        former = image.nodes.get(previous.node_id) if previous else None
        is_running = previous and former and former.incarnation == previous.incarnation
        self._former = former.registration if former and is_running else 0
        """Registration of the previous controller's process, 0 if it is not registered."""
        self._was_silent = replaced is not None and replaced == previous
        self._state = ControllerState.SYNCING
        self._is_writing = False
        self._retry_at = now
        self._confirmed = confirmed
        self._next_confirmation = now
        self._seen = now
        self._sessions: dict[int, _Session] = {}
        self._applicants: dict[int, tuple[NodeRow, float]] = {}
        """Processes to register: by node id, the row and the time when its heartbeat expires."""
        self._undecided: object = None
        """The last facts by which no shard was to change, see `_decide_shards`."""
        self._unreadable: dict[bytes, float] = {}
        """Keys of the rows that cannot be read, and the time when each was noticed."""

    @property
    def epoch(self) -> int:
        return self._row.epoch

    @property
    def next_deadline(self) -> float:
        """When to call `tick`. A process that calls it later is considered to have been paused."""
        deadlines = [self._next_confirmation, self._seen + self._timing.heartbeat_interval]
        deadlines += [
            one.expires
            for one in self._sessions.values()
            if self._can_expire(one) and one.expires > self._seen
        ]
        return min(deadlines)

    # Inputs

    def tick(self, now: float) -> list[ControllerAction]:
        self._observe(now)
        return self._act(now)

    def on_heartbeat(self, message: NodeHeartbeat, now: float) -> list[ControllerAction]:
        self._observe(now)
        actions: list[ControllerAction] = []
        if self._state is ControllerState.RESIGNED:
            return actions
        is_known = self._record(message, now, actions)
        if self._is_confirmed(now):
            reply = HeartbeatReply(
                message.node.incarnation,
                message.sequence,
                self._row.epoch,
                is_known,
                self._lease_of(message.node, now),
            )
            actions.append(SendMessage(message.node.node_id, reply))
        return actions + self._act(now)

    def on_gone(self, node_id: int, now: float) -> list[ControllerAction]:
        """The node's presence was lost: its session ends soon, unless a heartbeat arrives."""
        self._observe(now)
        session = self._sessions.get(node_id)
        if session is not None and not self._is_own(session.row):
            session.is_gone = True
            if self._has_probably_ended(session, now):
                session.expires = min(session.expires, now + self._timing.gone_session)
        return self._act(now)

    def on_rows(self, now: float) -> list[ControllerAction]:
        """Rows of the log have been applied to the image."""
        self._observe(now)
        return self._act(now)

    def on_put_done(self, now: float) -> list[ControllerAction]:
        """The write was stored and replayed."""
        self._observe(now)
        self._is_writing = False
        if self._state is ControllerState.SYNCING:
            self._move(ControllerState.DECIDING)
        return self._act(now)

    def on_put_failed(self, now: float) -> list[ControllerAction]:
        """The write failed. Whether it was stored is known only after another write."""
        self._observe(now)
        self._is_writing = False
        self._retry_at = now + self._timing.heartbeat_interval
        if self._state is ControllerState.DECIDING:
            self._move(ControllerState.SYNCING)
        return self._act(now)

    def on_confirmed(self, asked: float, now: float) -> list[ControllerAction]:
        """The store lock was still held at the time `asked` or later."""
        self._observe(now)
        if not self._is_confirmed(now):
            self._disturbed(now)
        self._confirmed = max(self._confirmed, asked)
        return self._act(now)

    def on_lost(self, now: float) -> list[ControllerAction]:
        """Another process is the controller."""
        self._observe(now)
        if self._state is not ControllerState.RESIGNED:
            self._move(ControllerState.RESIGNED)
        return []

    def resign(self, now: float) -> list[ControllerAction]:
        """Give up the role. The runtime releases the lock after the write, also if it failed.

        When the other nodes replay the row, they try to lead at once.
        """
        self._observe(now)
        if self._state is ControllerState.RESIGNED:
            return []
        self._move(ControllerState.RESIGNED)
        return [
            WriteRows({controller_key(): encode_row(ControllerRow(NO_NODE, "", self._row.epoch))})
        ]

    # Sessions

    def _observe(self, now: float) -> None:
        """Renew all sessions after a pause of this process, which received no heartbeats in it."""
        if now - self._seen > 2 * self._timing.heartbeat_interval:
            self._disturbed(now)
        self._seen = now

    def _is_confirmed(self, now: float) -> bool:
        return now - self._confirmed < self._timing.role_lease

    def _has_probably_ended(self, session: _Session, now: float) -> bool:
        """Whether the loss of a presence is evidence of a node's end.

        Evidence is that the node was connected since the last disturbance. After a pause of this
        process, only heartbeats count that arrive after the next confirmation, not those that
        waited here: a pause is at least as long as the lease of the role.

        The previous controller's process has lost the store lock as well. That is sufficient
        evidence, also soon after a disturbance: it still has a time for a heartbeat.
        """
        return self._is_confirmed(now) and (
            session.row.registration == self._former or session.has_reported
        )

    def _lease_of(self, node: NodeRow, now: float) -> float:
        """Seconds that a lease granted now lasts, from the sending of the node's heartbeat."""
        timing = self._timing
        lease = timing.controller_lease if self._is_own(node) else timing.lease
        return lease - (now - self._confirmed)

    def _disturbed(self, now: float) -> None:
        """Heartbeats may not have arrived: renew all sessions."""
        for session in self._sessions.values():
            session.has_reported = False
            session.expires = now + self._timing.session_timeout

    def _is_own(self, row: NodeRow) -> bool:
        return row.node_id == self._row.node_id and row.incarnation == self._row.incarnation

    def _can_expire(self, session: _Session) -> bool:
        return not session.has_ended and not self._is_own(session.row)

    def _record(self, message: NodeHeartbeat, now: float, actions: list[ControllerAction]) -> bool:
        """Store what a heartbeat reports. Returns whether its registration is in effect."""
        node = message.node
        expires = now + self._timing.session_timeout
        session = self._sessions.get(node.node_id)
        if (
            session is None
            or session.has_ended
            or session.row.incarnation != node.incarnation
            or node_key(node.node_id) in self._image.unreadable
        ):
            if message.is_leaving:
                self._applicants.pop(node.node_id, None)
            else:
                self._applicants[node.node_id] = (node, expires)
            return False
        session.expires = expires
        session.has_reported = True
        if session.is_gone:
            session.is_gone = False
            actions.append(WatchPresence(node.node_id))
        if message.sequence > session.sequence:
            session.sequence = message.sequence
            session.is_leaving = message.is_leaving
            session.ready = dict(message.ready)
            session.released = dict(message.released)
            # A process may change its addresses.
            session.row = replace(node, registration=session.row.registration)
        return node.registration == session.row.registration

    def _follow_nodes(self, now: float, actions: list[ControllerAction]) -> None:
        """Keep one session per registration in the image."""
        for node_id, session in list(self._sessions.items()):
            row = self._image.nodes.get(node_id)
            if row is None or row.registration != session.row.registration:
                del self._sessions[node_id]
                if not self._is_own(session.row):
                    actions.append(UnwatchPresence(node_id))
        for node_id, row in self._image.nodes.items():
            if node_id in self._sessions:
                continue
            is_silent = self._was_silent and row.registration == self._former
            timing = self._timing
            session = _Session(
                row, now + (timing.controller_session if is_silent else timing.session_timeout)
            )
            self._sessions[node_id] = session
            applicant = self._applicants.get(node_id)
            if applicant and applicant[0].incarnation == row.incarnation:
                del self._applicants[node_id]
            if node_id == self._row.node_id:
                # An earlier process with the same id has ended: only one at a time can use an id.
                session.has_ended = not self._is_own(row)
            if not self._is_own(row):
                actions.append(WatchPresence(node_id))

    # Decisions

    def _act(self, now: float) -> list[ControllerAction]:
        actions: list[ControllerAction] = []
        if self._state is ControllerState.RESIGNED:
            return actions
        self._follow_nodes(now, actions)
        known = self._unreadable
        self._unreadable = {key: known.get(key, now) for key in self._image.unreadable}
        if now >= self._next_confirmation:
            self._next_confirmation = now + self._timing.heartbeat_interval
            actions.append(ConfirmRole())
        if self._is_writing or not self._is_confirmed(now):
            return actions
        rows: dict[bytes, bytes | None] = {}
        if self._state is ControllerState.SYNCING:
            if now >= self._retry_at:
                rows[controller_key()] = encode_row(self._row)
        elif all(self._may_delete(key, since, now) for key, since in self._unreadable.items()):
            self._decide(now, rows)
        if rows:
            self._is_writing = True
            actions.append(WriteRows(rows))
        return actions

    def _may_delete(self, key: bytes, since: float, now: float) -> bool:
        """Whether an unreadable row describes a node whose last lease has ended."""
        return is_per_node(key) and now - since >= self._timing.session_timeout

    def _decide(self, now: float, rows: dict[bytes, bytes | None]) -> None:
        rows.update(dict.fromkeys(self._unreadable))
        for node_id, session in self._sessions.items():
            has_expired = self._can_expire(session) and now >= session.expires
            if has_expired or node_key(node_id) in self._unreadable:
                session.has_ended = True
        if self._image.cluster is None:
            rows[cluster_key()] = encode_row(self._cluster)
        nodes = self._decide_nodes(now, rows)
        leaving = {one.row.node_id for one in self._sessions.values() if one.is_leaving}
        self._decide_shards(nodes, leaving & set(nodes), rows)

    def _decide_nodes(self, now: float, rows: dict[bytes, bytes | None]) -> dict[int, NodeRow]:
        """Delete, register and update nodes. Returns those that are registered afterwards."""
        nodes = {}
        for node_id, session in self._sessions.items():
            if session.has_ended or self._may_go(session):
                rows[node_key(node_id)] = None
                session.has_ended = True
                continue
            nodes[node_id] = session.row
            if session.row != self._image.nodes[node_id]:
                rows[node_key(node_id)] = encode_row(session.row)
        for node_id, (row, expires) in list(self._applicants.items()):
            if now >= expires:
                del self._applicants[node_id]
            elif node_id not in nodes and len(nodes) < MAX_NODES:
                self._last_registration += 1
                nodes[node_id] = replace(row, registration=self._last_registration)
                rows[node_key(node_id)] = encode_row(nodes[node_id])
        self._keep_addresses(nodes, rows)
        return nodes

    def _keep_addresses(
        self, nodes: Mapping[int, NodeRow], rows: dict[bytes, bytes | None]
    ) -> None:
        """Store the addresses of these nodes.

        Of the nodes that left, the MAX_NODES lowest ids keep theirs.
        """
        known = self._image.last_addresses
        for node_id, row in nodes.items():
            last = LastAddresses(row.addresses)
            if known.get(node_id) != last:
                rows[addresses_key(node_id)] = encode_row(last)
        for node_id in sorted(known.keys() - nodes.keys())[MAX_NODES:]:
            rows[addresses_key(node_id)] = None

    def _may_go(self, session: _Session) -> bool:
        """Whether a leaving node may be deleted: it leads no shard, or it is the last node.

        It is not the last node while the controller's own node is not registered yet, or while
        another process waits to be registered.
        """
        if not session.is_leaving:
            return False
        others = (
            one
            for one in self._sessions.values()
            if one is not session and not one.is_leaving and not one.has_ended
        )
        is_last = (
            not any(others)
            and not self._applicants
            and any(self._is_own(one.row) for one in self._sessions.values())
        )
        return is_last or not any(
            shard.is_led_by(session.row) for shard in self._image.shards.values()
        )

    def _decide_shards(
        self, nodes: Mapping[int, NodeRow], leaving: Set[int], rows: dict[bytes, bytes | None]
    ) -> None:
        # Everything below depends on these facts only. They rarely change, and there are several
        # decisions in each heartbeat interval.
        reports = {node_id: (one.ready, one.released) for node_id, one in self._sessions.items()}
        facts = self._image.changes, nodes, leaving, reports
        if not rows and facts == self._undecided:
            return
        shards = range((self._image.cluster or self._cluster).shard_count)
        candidates = set(nodes) - leaving
        known = self._image.shards
        current = {}
        for shard, row in known.items():
            if row.is_led_by(nodes.get(row.leader)):
                is_moving = row.successor in candidates
                current[shard] = row.successor if is_moving else row.leader
        targets = place(shards, candidates, current)
        changed: dict[int, ShardRow] = {}
        for shard in shards:
            old = known.get(shard)
            target = nodes.get(targets.get(shard, NO_NODE))
            if old is None or not old.is_led_by(nodes.get(old.leader)):
                new = None if target is None else self._led_by(target, old)
            elif old.successor != NO_NODE:
                new = self._continue_move(shard, old, nodes[old.leader], target, candidates)
            else:
                new = None
            if new is not None:
                changed[shard] = new
        if not changed and not rows:
            changed = self._begin_moves(targets, leaving)
            if not changed:
                self._undecided = facts
        for shard, row in changed.items():
            rows[shard_key(shard)] = encode_row(row)

    def _led_by(self, node: NodeRow, row: ShardRow | None) -> ShardRow:
        """Return the row of a shard that `node` leads next.

        Nodes name a successor to clients with the next epoch. If another node leads instead, its
        epoch is the one after that.
        """
        if row is None:
            return ShardRow(node.node_id, node.registration, self._first_epoch)
        is_named = row.successor in (NO_NODE, node.node_id)
        return ShardRow(node.node_id, node.registration, row.epoch + (1 if is_named else 2))

    def _continue_move(
        self,
        shard: int,
        row: ShardRow,
        leader: NodeRow,
        target: NodeRow | None,
        candidates: Set[int],
    ) -> ShardRow | None:
        """Return the row that completes a move, or changes it if the successor is gone.

        None if the row need not change yet. A move is never cancelled in the same epoch, because
        the leader may have released the shard already: if it is to keep the shard, it leads it in
        the next epoch.
        """
        is_released = self._sessions[row.leader].released.get(shard) == row.epoch
        if target is None:
            return None
        if is_released:
            return self._led_by(target, row)
        if row.successor in candidates:
            return None
        if target == leader:
            return self._led_by(leader, row)
        return replace(row, successor=target.node_id)

    def _begin_moves(self, targets: Mapping[int, int], leaving: Set[int]) -> dict[int, ShardRow]:
        """Name successors for shards that are not on their targets.

        A shard that is not ready counts as moving and does not move, unless its leader is leaving:
        it may be a shard that cannot be opened. A leaving node hands over at least one shard at a
        time, ready shards first, however many shards of other nodes are not ready.
        """
        known = self._image.shards
        settled = [shard for shard in targets if known[shard].successor == NO_NODE]
        unready = {shard for shard in settled if not self._is_ready(shard, known[shard])}
        moving = len(targets) - len(settled)
        opening = sum(known[shard].leader not in leaving for shard in unready)
        wanted = [
            shard
            for shard in settled
            if known[shard].leader != targets[shard]
            and (known[shard].leader in leaving or shard not in unready)
        ]
        wanted.sort(key=lambda shard: (known[shard].leader not in leaving, shard in unready, shard))
        free = self._timing.moves_at_once - moving - opening
        if wanted and known[wanted[0]].leader in leaving:
            free = max(free, 1 - moving)
        return {
            shard: replace(known[shard], successor=targets[shard])
            for shard in wanted[: max(free, 0)]
        }

    def _is_ready(self, shard: int, row: ShardRow) -> bool:
        return self._sessions[row.leader].ready.get(shard) == row.epoch

    def _move(self, state: ControllerState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise RuntimeError(
                f"a controller in state {self._state.value} cannot move to {state.value}"
            )
        self._state = state
