"""The traffic log of a process: creates recorders and writes their rows once per interval."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from auth.mechanism import Principal
from gateway.coroutines import Cancel, Clock, call_later
from gateway.traffic.client_identity import PeerAddress
from gateway.traffic.connection_recorder import ConnectionRecorder
from gateway.traffic.counters import RowLimits
from gateway.traffic.log_files import base36
from gateway.traffic.recorder import NULL_RECORDER, Recorder
from gateway.traffic.traffic_rows import Row, encode_lines

#: Connections are spread over this many slots of an interval, because writing the rows of 10,000
#: connections at once would block the reactor.
SLOTS = 240

#: Rows built in one reactor turn, plus those of the turn's last connection: about 10 ms. Clients
#: can put many connections with a thousand rows each into one slot.
MAX_ROWS_PER_TURN = 500

#: Bytes of an address hash. Among a million addresses, the chance of two equal hashes is one in 37
#: million.
_HASH_BYTES = 8


class LineSink(Protocol):
    """A destination of rows, as JSON lines."""

    def put(self, block: bytes, lines: int, /) -> None: ...
    async def stop(self, seconds: float, /) -> None: ...


class RecorderFactory:
    """Creates recorders. This base class is used without a traffic log."""

    def connection(self, peer: PeerAddress, principal: Principal | None) -> Recorder:
        """Return the recorder of a new connection; `principal` is None until it has logged in."""
        return NULL_RECORDER

    async def close(self, seconds: float) -> None:
        """Write the remaining rows, for at most `seconds` per sink."""


NO_TRAFFIC_LOG = RecorderFactory()


class TrafficLog(RecorderFactory):
    """Writes rows of all connections.

    Every row contains `node` and `cluster`; connection names contain `node` and `start` (ms since
    1970). Usage rows are written every `interval` seconds. In an interval a connection has at most
    `max_keys` rows for topics and groups, all connections together `max_rows`. `salt` enables
    hashing of addresses. `topic_name` returns the name of a topic given by any name or id.
    """

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
        # The recorders of each slot, and the slot of each recorder.
        self._slots: list[dict[ConnectionRecorder, None]] = [{} for _ in range(SLOTS)]
        self._slot_of: dict[ConnectionRecorder, int] = {}
        self._next_slot = 0
        # Recorders whose slot is due and whose rows are not written yet.
        self._pending: OrderedDict[ConnectionRecorder, None] = OrderedDict()
        self._next_due = 0.0
        self._cancel: Cancel | None = None
        self._cancel_pending: Cancel | None = None

    def start(self) -> None:
        self._next_due = self._clock.seconds()
        self._schedule()

    def _schedule(self) -> None:
        # Scheduled from the due time, not from now, so that a busy reactor does not lengthen the
        # interval. After a delay of more than an interval, the slots missed are not repeated.
        now = self._clock.seconds()
        self._next_due = max(self._next_due, now - SLOTS * self._slot_seconds) + self._slot_seconds
        self._cancel = call_later(self._clock, max(self._next_due - now, 0), self._run_slot)

    def connection(self, peer: PeerAddress, principal: Principal | None) -> Recorder:
        if self._salt is not None:
            hidden = blake2b(
                peer.address.encode(), key=self._salt, digest_size=_HASH_BYTES
            ).hexdigest()
            peer = msgspec.structs.replace(peer, address=f"h:{hidden}")
        name = f"{self._name_prefix}-{self._connection_count}"
        recorder = ConnectionRecorder(self, name, peer, principal)
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
        """Number the rows and pass them to the sinks. A missing number in the files is a dropped
        row.
        """
        if not rows:
            return
        for row in rows:
            row.sequence = self._sequence
            self._sequence += 1
        block = encode_lines(rows)
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
        # Scheduled first, so that an error here does not stop the log.
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
            # Let the reactor serve requests in between.
            self._cancel_pending = call_later(self._clock, 0, self._write_pending)
        self.write(rows)


def read_salt(path: Path) -> bytes:
    """Return the first line of a file. Raises ValueError if it cannot be read or is empty."""
    try:
        salt = path.read_bytes().split(b"\n")[0].strip()
    except OSError as failure:
        raise ValueError(f"traffic_log_salt_file: {path}: {failure.strerror}") from failure
    if not salt:
        raise ValueError(
            f"traffic_log_salt_file: {path}: the first line is empty; write a secret there"
        )
    return salt
