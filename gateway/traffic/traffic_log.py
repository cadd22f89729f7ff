"""The traffic log of a process: its recorders, their rows once a minute, and the writer behind them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.coroutines import Cancel, Clock, call_later
from gateway.protocol.session import LoginSession
from gateway.traffic.client_identity import Peer
from gateway.traffic.connection_recorder import ConnectionRecorder
from gateway.traffic.counters import RowLimits
from gateway.traffic.log_files import base36
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_rows import Row

#: An interval has so many steps, and each connection its own of them: the rows of ten thousand in one go would hold up all of them.
SLOTS = 240

#: That are made in one go, and what the last connection of them has: some 10 ms of the reactor's time. A stranger may choose the connections of one slot, and
#: have a thousand rows in each.
MAX_ROWS_PER_TURN = 500

#: Of an address's hash: that two of a million addresses have the same one has a chance of one in 37 million.
_HASH_BYTES = 8


class LineSink(Protocol):
    """Where lines go."""

    def put(self, block: bytes, lines: int, /) -> None: ...
    async def stop(self, seconds: float, /) -> None: ...


class RecorderFactory:
    """No traffic log."""

    def connection(self, peer: Peer, session: LoginSession) -> Recorder:
        """What notes the doings of a new connection."""
        return NULL_RECORDER

    async def close(self, seconds: float) -> None:
        """Write what there is, to each place for at most so long."""


NO_TRAFFIC_LOG = RecorderFactory()


class TrafficLog(RecorderFactory):
    """`node` and `cluster` are in each row, and with `start` (ms since 1970) in the names of connections. Rows of use are written every `interval`
    seconds. A connection has at most `max_keys` rows of topics and groups in that time, all of them `max_rows`; `salt` hides addresses; `topic_name` says what a topic is
    called that was named by whatever name or id."""

    def __init__(
        self,
        sinks: Sequence[LineSink],
        node: int,
        cluster: str,
        *,
        start: int,
        now: Callable[[], int],
        clock: Clock,
        interval: float,
        max_keys: int,
        max_rows: int,
        salt: bytes | None,
        topic_name: Callable[[str | bytes], str],
        ticks: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.node = node
        self.cluster = cluster
        self.limits = RowLimits(max_keys, max_rows)
        self.now = now
        self.ticks = ticks
        self.topic_name = topic_name
        self._sinks = sinks
        self._clock = clock
        self._slot_seconds = interval / SLOTS
        self._salt = None if salt is None else blake2b(salt).digest()
        self._name_prefix = f"{node}-{base36(start)}"
        self._connection_count = 0
        self._sequence = 0
        # Those of each slot, and the slot of each.
        self._slots: list[dict[ConnectionRecorder, None]] = [{} for _ in range(SLOTS)]
        self._slot_of: dict[ConnectionRecorder, int] = {}
        self._next_slot = 0
        # Those whose slot has come, and that have not been written since.
        self._pending: OrderedDict[ConnectionRecorder, None] = OrderedDict()
        self._next_due = 0.0
        self._encoder = msgspec.json.Encoder()
        self._cancel: Cancel | None = None
        self._cancel_pending: Cancel | None = None

    def start(self) -> None:
        self._next_due = self._clock.seconds()
        self._schedule()

    def _schedule(self) -> None:
        # From when it was due, not from when a busy reactor came to it: an interval is no longer than it says. What stood still for longer than
        # that is not made up for.
        now = self._clock.seconds()
        self._next_due = max(self._next_due, now - SLOTS * self._slot_seconds) + self._slot_seconds
        self._cancel = call_later(self._clock, max(self._next_due - now, 0), self._run_slot)

    def connection(self, peer: Peer, session: LoginSession) -> Recorder:
        if self._salt is not None:
            hidden = blake2b(
                peer.address.encode(), key=self._salt, digest_size=_HASH_BYTES
            ).hexdigest()
            peer = msgspec.structs.replace(peer, address=f"h:{hidden}")
        name = f"{self._name_prefix}-{self._connection_count}"
        recorder = ConnectionRecorder(self, name, peer, session)
        slot = self._slot_of[recorder] = self._connection_count % SLOTS
        self._slots[slot][recorder] = None
        self._connection_count += 1
        return recorder

    def remove(self, recorder: ConnectionRecorder) -> None:
        slot = self._slot_of.pop(recorder, None)
        if slot is not None:
            del self._slots[slot][recorder]
        self._pending.pop(recorder, None)

    def write(self, rows: Sequence[Row]) -> None:
        """Number the rows and hand them over. A number that is missing in the files is a row that was dropped."""
        if not rows:
            return
        for row in rows:
            row.sequence = self._sequence
            self._sequence += 1
        block = self._encoder.encode_lines(rows)
        for sink in self._sinks:
            sink.put(block, len(rows))

    async def close(self, seconds: float) -> None:
        for cancel in (self._cancel, self._cancel_pending):
            if cancel is not None:
                cancel()
        for recorder in list(self._slot_of):
            recorder.closed("drain")
        for sink in self._sinks:
            await sink.stop(seconds)

    def _run_slot(self) -> None:
        # First: whatever becomes of this one, the next comes.
        self._schedule()
        self._pending.update(self._slots[self._next_slot])
        self._next_slot = (self._next_slot + 1) % SLOTS
        if self._cancel_pending is None:
            self._write_pending()

    def _write_pending(self) -> None:
        self._cancel_pending = None
        rows: list[Row] = []
        while self._pending and len(rows) < MAX_ROWS_PER_TURN:
            recorder, _ = self._pending.popitem(last=False)
            rows += recorder.interval_rows()
        if self._pending:
            # Requests are served in between.
            self._cancel_pending = call_later(self._clock, 0, self._write_pending)
        self.write(rows)


def read_salt(path: Path) -> bytes:
    """The first line of a file. Raises ValueError where there is none to be read."""
    try:
        salt = path.read_bytes().split(b"\n")[0].strip()
    except OSError as failure:
        raise ValueError(f"traffic_log_salt_file: {path}: {failure.strerror}") from failure
    if not salt:
        raise ValueError(
            f"traffic_log_salt_file: {path}: its first line is empty, and would hide nothing"
        )
    return salt
