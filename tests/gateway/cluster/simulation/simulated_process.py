"""A gateway process in the simulation: drives `Member` and `Controller`, serves its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.cluster.cluster_actions import (
    CloseShard,
    ConfirmRole,
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
from gateway.cluster.cluster_messages import HeartbeatReply, decode_message, encode_message
from gateway.cluster.controller import Controller
from gateway.cluster.image import ClusterImage, ClusterRow, NodeRow
from gateway.cluster.member import Member
from gateway.cluster.session_timing import SessionTiming
from tests.gateway.cluster.simulation.simulated_pulsar import (
    FAILED,
    FENCED,
    IN_USE,
    EntryLog,
    Producer,
    SimulatedPulsar,
)


@dataclass
class Rules:
    """Configuration of the processes; tests change it to break an invariant.

    `checks_lease` and `checks_epoch`: after fencing a table or partition, before writing to it.
    """

    timing: SessionTiming = field(default_factory=SessionTiming.of)
    shard_count: int = 4
    checks_lease: bool = True
    checks_epoch: bool = True


class Handle:
    """A log opened for writing."""

    def __init__(self, log: EntryLog, epoch: int) -> None:
        self.log = log
        self.epoch = epoch
        self.token: int | None = None
        self.is_busy = False


class SimulatedProcess:
    """`rate` and `offset` define its clock. `checks` receives what it does (`invariants.py`)."""

    def __init__(
        self,
        pulsar: SimulatedPulsar,
        node_id: int,
        incarnation: str,
        rules: Rules,
        checks: Any,
        rate: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        self.pulsar = pulsar
        self.time = pulsar.time
        self.random = pulsar.random
        self.node_id = node_id
        self.incarnation = incarnation
        self.rules = rules
        self.checks = checks
        self.rate = rate
        self.offset = offset
        self.replay_factor = self.random.choice((0.2, 1.0, 1.0, 10.0))
        self.is_alive = True
        self.is_paused = False
        self.is_connected = True
        self.outages = 0
        self.presence_lost_at = float("-inf")
        self.has_left = False
        self.image = ClusterImage()
        self.position = 0
        self.member: Member | None = None
        self.controller: Controller | None = None
        self.lock_token = -1
        self.refused_by = -1
        self.writer_token = -1
        self.presence_token = -1
        self.is_claiming = False
        self.watched_controller: int | None = None
        self.shards: dict[int, tuple[Handle, Handle]] = {}
        """Table and partition of each open shard."""
        self.closing: dict[int, int] = {}
        self.opening: dict[int, int] = {}
        self.busy: Counter[int] = Counter()
        """Requests in flight by shard."""
        self._deferred: list[Callable[[], None]] = []
        self._wake_at = float("inf")

    def __repr__(self) -> str:
        return f"{self.node_id}.{self.incarnation}"

    @property
    def is_reachable(self) -> bool:
        return self.is_connected and not self.is_paused

    def clock(self) -> float:
        return self.offset + self.time.now * self.rate

    def note(self, text: str) -> None:
        self.checks.note(f"{self!r} {text}")

    # Starts, pauses and ends

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in this process: now, after a pause, or never."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._deferred.append(call)
            return
        call()
        self._after_turn()

    def _after_turn(self) -> None:
        if not self.is_alive or self.member is None:
            return
        self.checks.after_turn(self)
        deadline = self.member.next_deadline
        if self.controller is not None:
            deadline = min(deadline, self.controller.next_deadline)
        at = max(self.time.now, (deadline - self.offset) / self.rate + 1e-6)
        if at < self._wake_at:
            self._wake_at = at
            self.time.after(at - self.time.now, lambda: self.post(lambda: self._wake(at)))

    def _wake(self, at: float) -> None:
        if at != self._wake_at or self.member is None:
            return
        self._wake_at = float("inf")
        self.act(self.member.tick(self.clock()))
        if self.controller is not None:
            self.act(self.controller.tick(self.clock()))

    def pause(self) -> None:
        self.is_paused = True
        self.outages += 1
        self.pulsar.became_unreachable(self)

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            self.post(call)
        self.pulsar.reconnect(self)

    def cut(self) -> None:
        self.is_connected = False
        self.outages += 1
        self.pulsar.became_unreachable(self)

    def heal(self) -> None:
        self.is_connected = True
        self.pulsar.reconnect(self)

    def kill(self) -> None:
        self.note("is killed")
        self.is_alive = False
        self.pulsar.processes.remove(self)
        if self.is_connected:
            self.time.after(0.005, lambda: self.pulsar.disconnect(self))
        else:
            self.time.after(self.random.uniform(30, 60), lambda: self.pulsar.disconnect(self))

    def start(self) -> None:
        self.pulsar.processes.append(self)
        self._claim()

    def _claim(self) -> None:
        def execute() -> Any:
            producer = self.pulsar.presence.setdefault(self.node_id, Producer())
            before = producer.holder
            token = producer.acquire(self, force=False)
            if token is not None and before is not None and before is not self:
                before.presence_lost_at = self.time.now
            return token or IN_USE

        def done(result: Any) -> None:
            if result in (FAILED, IN_USE):
                if result == IN_USE and self._is_replaced():
                    self.kill()
                    return
                self.time.after(0.5, lambda: self.post(self._claim))
                return
            self.presence_token = result
            self.is_claiming = False
            if self.member is None:
                self.pulsar.request(self, lambda: len(self.pulsar.log), self._joined)

        self.pulsar.request(self, execute, done)

    def _is_replaced(self) -> bool:
        """Whether another process of this node is running."""
        holder = self.pulsar.presence[self.node_id].holder
        return holder is not None and holder is not self and holder.is_alive

    def check_presence(self) -> None:
        """Claim the presence again if it was lost."""
        producer = self.pulsar.presence.get(self.node_id)
        is_lost = producer is not None and producer.token != self.presence_token
        if self.member is not None and is_lost and not self.is_claiming:
            self.is_claiming = True
            self._claim()

    def _joined(self, end: Any) -> None:
        if end == FAILED:
            self.pulsar.request(self, lambda: len(self.pulsar.log), self._joined)
            return
        self._apply(end)
        row = NodeRow(self.node_id, self.incarnation, 0, {"PLAINTEXT": ("host", 9092)})
        jitter = self.random.uniform(0, self.rules.timing.heartbeat_interval)
        self.member = Member(row, self.image, self.rules.timing, jitter, self.clock())
        self.note("started")
        self.act(self.member.tick(self.clock()))
        self.replay(len(self.pulsar.log))
        self._work()

    def leave(self) -> None:
        if self.member is not None:
            self.note("is leaving")
            self.act(self.member.leave(self.clock()))
            # As `ClusterNode.leave` after its timeout.
            self.time.after(10, lambda: self.post(self.kill))

    # Inputs

    def _apply(self, end: int) -> None:
        for rows in self.pulsar.log[self.position : end]:
            assert self.image.apply(rows) == []
        self.position = max(self.position, end)

    def replay(self, end: int) -> None:
        if self.member is None or end <= self.position:
            return
        self._apply(end)
        self.act(self.member.on_rows(self.clock()))
        if not self.member.node.registration:
            # The controller may have removed this node because its presence was lost.
            self.check_presence()
        if self.controller is not None:
            self.act(self.controller.on_rows(self.clock()))

    def on_message(self, data: bytes) -> None:
        message = decode_message(data)
        if self.member is None or message is None:
            return
        if isinstance(message, HeartbeatReply):
            self.act(self.member.on_reply(message, self.clock()))
        elif self.controller is not None:
            self.act(self.controller.on_heartbeat(message, self.clock()))

    # Actions

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case SendMessage(node_id, message):
                    self._send(node_id, encode_message(message))
                case WriteRows(rows):
                    self._write(dict(rows))
                case ConfirmRole():
                    self._confirm()
                case WatchPresence(node_id):
                    self._watch(node_id)
                case UnwatchPresence(node_id):
                    self.pulsar.unwatch(self, node_id)
                case WatchController(node_id):
                    self._watch_controller(node_id)
                case UnwatchController():
                    self._unwatch_controller()
                case OpenShard(shard, epoch):
                    self._open(shard, epoch)
                case CloseShard(shard, epoch):
                    self.closing[shard] = epoch
                    self._close_when_idle(shard)
                case TryToLead(force):
                    self._acquire(force)
                case NodeLeft():
                    self._left()
                case _:
                    self.note(type(action).__name__)

    def _send(self, node_id: int, data: bytes) -> None:
        if node_id == self.node_id:
            self.time.after(0, lambda: self.post(lambda: self.on_message(data)))
        else:
            self.pulsar.send(self, node_id, data)

    def _watch(self, node_id: int) -> None:
        controller = self.controller

        def gone() -> None:
            if controller is self.controller and controller is not None:
                self.note(f"noticed that node {node_id} is gone")
                self.act(controller.on_gone(node_id, self.clock()))

        self.pulsar.watch(self, node_id, gone)

    def _watch_controller(self, node_id: int) -> None:
        self._unwatch_controller()

        def gone() -> None:
            if self.watched_controller == node_id and self.member is not None:
                self.note(f"noticed that the controller {node_id} is gone")
                self.watched_controller = None
                self.act(self.member.controller_gone(self.clock()))

        self.watched_controller = node_id
        self.pulsar.watch(self, node_id, gone)

    def _unwatch_controller(self) -> None:
        if self.watched_controller is not None:
            self.pulsar.unwatch(self, self.watched_controller)
            self.watched_controller = None

    def _write(self, rows: dict[bytes, bytes | None]) -> None:
        controller = self.controller

        def done(result: Any) -> None:
            if controller is not self.controller or controller is None:
                return
            if result == FENCED:
                self._lose_role()
            elif result == FAILED:
                self.note("put failed")
                self.act(controller.on_put_failed(self.clock()))
            else:
                self.replay(result)
                self.act(controller.on_put_done(self.clock()))

        self.pulsar.put(self, self.writer_token, rows, done)

    def _confirm(self) -> None:
        controller, asked, token = self.controller, self.clock(), self.lock_token

        def done(result: Any) -> None:
            if controller is not self.controller or controller is None:
                return
            if result == FENCED:
                self._lose_role()
            elif result != FAILED:
                self.act(controller.on_confirmed(asked, self.clock()))

        self.pulsar.request(self, lambda: True if self.pulsar.lock.use(token) else FENCED, done)

    def _lose_role(self) -> None:
        self.note("lost the role")
        controller, self.controller = self.controller, None
        if controller is not None and self.member is not None:
            self.act(controller.on_lost(self.clock()))
            for node_id in list(self.pulsar.watchers):
                self.pulsar.unwatch(self, node_id)
            self.act(self.member.lead_lost(self.clock()))

    def _acquire(self, force: bool) -> None:
        """Take the lock, fence the log, replay the log to its end.

        `PulsarMetadataLog` also confirms the lock before it uses the log. The invariants hold
        without that, because the role is confirmed only up to the time when the lock was asked for,
        and because a writer that is fenced cannot decide anything.
        """
        assert self.member is not None
        member = self.member
        pulsar = self.pulsar
        asked = self.clock()
        replaced = self.image.controller if force else None

        def refuse(result: Any) -> None:
            self.act(member.lead_refused(result in (IN_USE, FENCED), self.clock()))

        def locked(result: Any) -> None:
            if result in (FAILED, IN_USE):
                refuse(result)
                return
            self.lock_token = result
            pulsar.request(self, lambda: pulsar.writer.acquire(self, force=True), fenced)

        def fenced(result: Any) -> None:
            if result == FAILED:
                pulsar.lock.release(self.lock_token)
                refuse(result)
                return
            self.writer_token = result
            pulsar.request(self, lambda: len(pulsar.log), read)

        def read(result: Any) -> None:
            if result == FAILED:
                pulsar.lock.release(self.lock_token)
                refuse(result)
                return
            self.note(f"leads{' by force' if force else ''}")
            self.replay(result)
            cluster = ClusterRow("cluster", self.rules.shard_count)
            now = self.clock()
            self.controller = Controller(
                member.node,
                cluster,
                self.image,
                self.rules.timing,
                asked,
                now,
                replaced=replaced,
            )
            # As `ClusterNode`: the member's watch ends before the controller's watches begin.
            self.act(member.lead_acquired(now))
            self.act(self.controller.tick(now))

        def take() -> Any:
            """Force replaces only the holder that refused the attempt before."""
            before, self.refused_by = self.refused_by, pulsar.lock.token
            may_fence = force and before in (-1, pulsar.lock.token)
            return pulsar.lock.acquire(self, may_fence) or IN_USE

        pulsar.request(self, take, locked)

    def _left(self) -> None:
        self.note("left")
        self.has_left = True
        if self.controller is None:
            self.kill()
            return
        actions = self.controller.resign(self.clock())
        self.controller = None
        for action in actions:
            self.pulsar.put(self, self.writer_token, dict(action.rows), lambda _: self.kill())
        if not actions:
            self.kill()

    # Shards

    def may_write(self, shard: int, epoch: int) -> bool:
        """The check between fencing and writing."""
        assert self.member is not None
        return not self.rules.checks_lease or (
            self.member.has_lease(self.clock()) and self.closing.get(shard) != epoch
        )

    def _fence(self, handle: Handle, shard: int, done: Callable[[bool], None]) -> None:
        """Acquire the right to write; `done` receives whether this process may use it."""

        def execute() -> Any:
            token = handle.log.producer.acquire(self, force=True)
            return token, handle.log.last_epoch

        def fenced(result: Any) -> None:
            self.busy[shard] -= 1
            is_usable = result != FAILED and self.may_write(shard, handle.epoch)
            if is_usable and self.rules.checks_epoch:
                is_usable = result[1] <= handle.epoch
            if is_usable:
                handle.token = result[0]
                handle.log.opened_epoch = max(handle.log.opened_epoch, handle.epoch)
            elif result != FAILED:
                handle.log.producer.release(result[0])
            done(is_usable)

        self.busy[shard] += 1
        self.pulsar.request(self, execute, fenced)

    def _append(self, handle: Handle, shard: int, done: Callable[[bool], None]) -> None:
        value = f"{self!r} {self.random.random()}"
        token, log = handle.token, handle.log
        handle.is_busy = True
        self.busy[shard] += 1

        def execute() -> Any:
            if token is None or not log.producer.use(token):
                return FENCED
            self.checks.on_append(self, log, handle.epoch)
            log.entries.append((handle.epoch, value))
            return len(log.entries) - 1

        def answered(result: Any) -> None:
            handle.is_busy = False
            self.busy[shard] -= 1
            if result in (FAILED, FENCED):
                handle.token = None
                done(False)
            else:
                self.checks.on_acknowledged(log, result, (handle.epoch, value))
                done(True)

        self.pulsar.request(self, execute, answered)

    def _open(self, shard: int, epoch: int) -> None:
        assert self.member is not None
        member = self.member
        table = Handle(self.pulsar.tables[shard], epoch)
        partition = Handle(self.pulsar.partitions[shard], epoch)
        self.opening[shard] = epoch

        def finish(is_open: bool) -> None:
            del self.opening[shard]
            if is_open:
                self.shards[shard] = (table, partition)
                self.act(member.shard_opened(shard, epoch, self.clock()))
            else:
                self.act(member.shard_failed(shard, epoch, self.clock()))
            self._close_when_idle(shard)

        def fenced(is_usable: bool) -> None:
            if is_usable:
                self._append(table, shard, finish)
            else:
                finish(False)

        self._fence(table, shard, fenced)

    def _close_when_idle(self, shard: int) -> None:
        """Complete a CloseShard when nothing of the shard is in flight."""
        epoch = self.closing.get(shard)
        if epoch is None or shard in self.opening or self.busy[shard]:
            return

        def closed() -> None:
            assert self.member is not None
            if self.closing.get(shard) != epoch:
                return
            del self.closing[shard]
            self.act(self.member.shard_closed(shard, epoch, self.clock()))

        self.shards.pop(shard, None)
        self.time.after(self.random.uniform(0.001, 0.05), lambda: self.post(closed))

    # Clients

    def _work(self) -> None:
        """Write to a random shard from time to time."""
        if self.member is None or not self.is_alive:
            return
        self.time.after(self.random.uniform(0.1, 0.4), lambda: self.post(self._work))
        served = [
            shard
            for shard in self.shards
            if self.member.leads(shard, self.clock()) and shard not in self.closing
        ]
        if not served:
            return
        shard = self.random.choice(served)
        table, partition = self.shards[shard]
        handle = table if self.random.random() < 0.2 else partition
        if handle.is_busy:
            return
        if handle.token is not None:
            self._append(handle, shard, lambda stored: self._written(shard, handle, stored))
        else:
            handle.is_busy = True
            self._fence(handle, shard, lambda is_usable: self._fenced(shard, handle))

    def _fenced(self, shard: int, handle: Handle) -> None:
        handle.is_busy = False
        if handle.token is not None and self.closing.get(shard) != handle.epoch:
            self._append(handle, shard, lambda stored: self._written(shard, handle, stored))
        self._close_when_idle(shard)

    def _written(self, shard: int, handle: Handle, stored: bool) -> None:
        pair = self.shards.get(shard)
        if not stored and pair and handle is pair[0] and shard not in self.closing:
            # The shard's table was taken: open the shard again.
            assert self.member is not None
            del self.shards[shard]
            self.act(self.member.shard_failed(shard, handle.epoch, self.clock()))
        self._close_when_idle(shard)
