"""What gateways of a cluster share, in memory: several processes on one medium, driven by a clock.

    medium = SharedMedium(clock)
    one, two = medium.process("one"), medium.process("two")

Everything takes `delay` seconds: a put from its call to its acknowledgement, a burst on its way to
followers, a message, a role change. Faults: `kill` and `suspend` a process, `drop_presence` as a
restarted broker does, `held_alone` by an older gateway, `put_faults`, and `loses` for messages.
Passes the contract tests of `tests/storage/test_cluster_medium.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock

from storage.cluster import (
    MAX_CALL_BYTES,
    MAX_NODES,
    NodeIdInUse,
    OtherController,
    Rows,
)
from storage.log import EntryTooLarge, Fenced, StorageFailed, StoreInUse
from storage.pulsar.cluster.replay import Replay

MAX_KEY_BYTES = 512
MAX_PUT_BYTES = 4 << 20


class PutFault(Enum):
    """What happens to a put that fails with StorageFailed."""

    STORED = "stored"
    NOT_STORED = "not stored"


class SharedMedium:
    """What survives processes: the log, who writes it, who holds which node id."""

    def __init__(self, clock: Clock, delay: float = 0.001) -> None:
        self.clock = clock
        self.delay = delay
        self.bursts: list[Rows] = []
        self.writer: MemoryProcess | None = None
        self.term = 0
        """Changes with each writer; a writer with an older term is fenced."""
        self.held_alone: str | None = None
        """The older gateway that holds the store, if any."""
        self.put_faults: deque[PutFault | None] = deque()
        """The fate of the next puts; None for success."""
        self.loses: Callable[[int, bytes], bool] = lambda node_id, message: False
        """Whether a message to a node is lost."""
        self.holders: dict[int, MemoryProcess] = {}
        self.processes: list[MemoryProcess] = []

    def process(self, name: str) -> MemoryProcess:
        """A new process on this medium."""
        made = MemoryProcess(self, name)
        self.processes.append(made)
        return made

    def drop_presence(self, node_id: int) -> None:
        """Tell watchers that a node has gone although it lives."""
        for process in self.processes:
            process.presence.gone(node_id)

    def append(self, rows: Rows) -> int:
        """Store one burst; returns its revision."""
        self.bursts.append(dict(rows))
        revision = len(self.bursts)
        for process in self.processes:
            if process.log.is_open:
                process.later(lambda log=process.log: log.arrived(revision, rows))
        return revision


class MemoryProcess:
    """A `ClusterMedium`, and the faults of its process."""

    def __init__(self, medium: SharedMedium, name: str) -> None:
        self.medium = medium
        self.name = name
        self.is_killed = False
        self._is_suspended = False
        self._backlog: list[Callable[[], None]] = []
        self._last_due = 0.0
        self.log = MemoryMetadataLog(self)
        self.presence = MemoryPresence(self)
        self.inbox = MemoryInbox(self)

    def kill(self) -> None:
        """End the process: nothing reaches it any more, and what it held is free."""
        self.is_killed = True
        self.log.is_open = False
        if self.medium.writer is self:
            self.medium.writer = None
        self.presence.drop()
        self.inbox.node_id = None

    def suspend(self) -> None:
        """As SIGSTOP: it keeps what it holds, and notices nothing until `resume`."""
        self._is_suspended = True

    def resume(self) -> None:
        self._is_suspended = False
        backlog, self._backlog = self._backlog, []
        for call in backlog:
            call()

    def later(self, call: Callable[[], None]) -> None:
        """Run `call` in this process after the medium's delay, in the order of these calls."""
        clock = self.medium.clock
        self._last_due = max(self._last_due, clock.seconds() + self.medium.delay)
        clock.callLater(self._last_due - clock.seconds(), self._arrive, call)

    def answer(self) -> Deferred[None]:
        """Fires after the medium's delay."""
        answered: Deferred[None] = Deferred()
        self.later(lambda: answered.called or answered.callback(None))
        return answered

    def _arrive(self, call: Callable[[], None]) -> None:
        if self._is_suspended and not self.is_killed:
            self._backlog.append(call)
        elif not self.is_killed:
            call()


class MemoryMetadataLog:
    def __init__(self, process: MemoryProcess) -> None:
        self._process = process
        self._medium = process.medium
        self._replay = Replay()
        self._term: int | None = None
        self._refused_in: int | None = None
        """Term of the writer that refused the last attempt."""
        self._on_lost: Callable[[str], None] = lambda reason: None
        self.is_open = False

    @property
    def rows(self) -> Mapping[bytes, bytes]:
        return self._replay.rows

    @property
    def revision(self) -> int:
        return self._replay.revision

    @property
    def is_writer(self) -> bool:
        return self._term is not None

    async def open(self) -> None:
        await self._process.answer()
        self.is_open = True
        self._replay_all()

    def watch(self, call: Callable[[Rows], None]) -> None:
        self._replay.watch(call)

    def when_lost(self, call: Callable[[str], None]) -> None:
        self._on_lost = call

    async def acquire(self, force: bool) -> None:
        if self._term is not None:
            return
        await self._process.answer()
        medium = self._medium
        if medium.held_alone is not None:
            raise StoreInUse(f"the store is in use by {medium.held_alone}")
        other = medium.writer
        before, self._refused_in = self._refused_in, medium.term
        if other is not None and (not force or before not in (None, medium.term)):
            raise OtherController(f"the store has another controller: {other.name}")
        self._refused_in = None
        medium.term += 1
        medium.writer = self._process
        if other is not None:
            other.later(lambda: other.log.fenced(f"{self._process.name} has taken over the store"))
        self._term = medium.term
        self._replay_all()

    async def release(self) -> None:
        if self._term is None:
            return
        self._term = None
        if self._medium.writer is self._process:
            self._medium.writer = None
        await self._process.answer()

    async def confirm(self) -> None:
        if self._term is None:
            raise Fenced(f"{self._process.name} is not the controller")
        term = self._term
        is_held = term == self._medium.term
        await self._process.answer()
        if not is_held:
            self.fenced("another process has taken over the store")
        if self._term != term:
            raise Fenced("another process has taken over the store")

    def put(self, rows: Rows) -> Awaitable[None]:
        if self._term is None:
            return fail(Fenced(f"{self._process.name} is not the controller"))
        if not all(1 <= len(key) <= MAX_KEY_BYTES and key != b"revision" for key in rows):
            return fail(ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes"))
        if sum(len(key) + len(value or b"") for key, value in rows.items()) > MAX_PUT_BYTES:
            return fail(EntryTooLarge("the rows are too large"))
        if not rows:
            return succeed(None)
        stored: Deferred[None] = Deferred()
        fault = self._medium.put_faults.popleft() if self._medium.put_faults else None
        is_held = self._term == self._medium.term
        revision = 0
        if is_held and fault is not PutFault.NOT_STORED:
            revision = self._medium.append(rows)

        def acknowledge() -> None:
            if not is_held:
                self.fenced("another process has taken over the store")
                stored.errback(Fenced("another process has taken over the store"))
            elif fault is not None:
                stored.errback(StorageFailed("Pulsar did not answer; the outcome is unknown"))
            else:
                self._replay.apply(revision, rows)
                stored.callback(None)

        self._process.later(acknowledge)
        return stored

    async def wait_for(self, revision: int) -> None:
        await self._replay.wait_for(revision)

    async def close(self) -> None:
        await self.release()
        self.is_open = False
        self._replay.close()

    def arrived(self, revision: int, rows: Rows) -> None:
        """A burst has reached this process."""
        if self.is_open:
            self._replay.apply(revision, rows)

    def fenced(self, reason: str) -> None:
        """This process has noticed that another one is the writer."""
        if self._term is not None and self._term != self._medium.term:
            self._term = None
            self._on_lost(reason)

    def _replay_all(self) -> None:
        rows: dict[bytes, bytes] = {}
        for burst in self._medium.bursts:
            for key, value in burst.items():
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        self._replay.replace(len(self._medium.bursts), rows)


class MemoryPresence:
    def __init__(self, process: MemoryProcess) -> None:
        self._process = process
        self._medium = process.medium
        self._description = ""
        self._node_id: int | None = None
        self._watches: dict[int, Callable[[], None]] = {}
        self._on_taken: Callable[[str], None] = lambda reason: None

    def when_taken(self, call: Callable[[str], None]) -> None:
        self._on_taken = call

    def take_away(self, reason: str) -> None:
        """Report that another process has the claimed id."""
        self._process.later(lambda: self._on_taken(reason))

    async def claim(self, node_id: int, description: str, *, repeat: bool = True) -> None:
        await self._process.answer()
        holder = self._medium.holders.get(node_id)
        if holder is not None:
            raise NodeIdInUse(
                f"node id {node_id} is in use by {holder.presence._description}: use --node-id"
            )
        self._description = description
        self._node_id = node_id
        self._medium.holders[node_id] = self._process

    def watch(self, node_id: int, on_gone: Callable[[], None]) -> Callable[[], None]:
        if len(self._watches) >= MAX_NODES:
            raise StorageFailed("too many watches")
        self._watches[node_id] = on_gone
        if node_id not in self._medium.holders:
            self.gone(node_id)

        def stop() -> None:
            if self._watches.get(node_id) is on_gone:
                del self._watches[node_id]

        return stop

    async def release(self) -> None:
        self._watches.clear()
        self.drop()
        await self._process.answer()

    def drop(self) -> None:
        """Free the node id, if this process has one."""
        node_id, self._node_id = self._node_id, None
        if node_id is not None:
            del self._medium.holders[node_id]
            for process in self._medium.processes:
                process.presence.gone(node_id)

    def gone(self, node_id: int) -> None:
        """Tell the watch of this node, if there is one."""
        on_gone = self._watches.get(node_id)

        def tell() -> None:
            if on_gone is not None and self._watches.get(node_id) is on_gone:
                del self._watches[node_id]
                on_gone()

        self._process.later(tell)


class MemoryInbox:
    def __init__(self, process: MemoryProcess) -> None:
        self._process = process
        self.node_id: int | None = None
        self._on_message: Callable[[bytes], None] = lambda message: None

    async def open(self, node_id: int, on_message: Callable[[bytes], None]) -> None:
        await self._process.answer()
        self.node_id = node_id
        self._on_message = on_message

    def send(self, node_id: int, message: bytes) -> None:
        if len(message) > MAX_CALL_BYTES:
            raise ValueError(f"a message has {len(message)} bytes, the limit is {MAX_CALL_BYTES}")
        medium = self._process.medium
        if self._process.is_killed or medium.loses(node_id, message):
            return
        for process in medium.processes:
            if process.inbox.node_id == node_id:
                process.later(lambda inbox=process.inbox: inbox.arrived(node_id, message))

    async def close(self) -> None:
        self.node_id = None

    def arrived(self, node_id: int, message: bytes) -> None:
        if self.node_id == node_id:
            self._on_message(message)
