"""What must hold in every run of the simulation.

1. Epochs: a shard's epochs only increase, each has one leader, and the log of a shard's table or
   partition has entries of non-decreasing epochs. So a former leader stores nothing after the new
   leader's first entry.
2. One writer: once a new leader has opened a log, a former leader stores nothing, except in the
   presence window.
3. One server: a node serves a shard (open, with a lease) only while no other process serves it,
   except in the presence window.
4. Nothing is lost: an acknowledged entry stays at its offset, and offsets are continuous.

The presence window of a process begins when the broker has closed its connection and another
process acquires its presence: the controller, or a new process of the node. The window ends when
the lease ends that the process has at that time, at most `lease` later on its own clock. A process
serves in the window only if it is alive and reconnects soon, for example after a restart of a
broker. Its writes are fenced.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gateway.cluster.image import ClusterImage, ShardRow
from tests.gateway.cluster.simulation.simulated_pulsar import EntryLog, SimulatedPulsar


class Violated(AssertionError):
    """An invariant does not hold."""


class Invariants:
    """Attached to the simulated Pulsar and to its processes."""

    def __init__(self, pulsar: SimulatedPulsar) -> None:
        self.pulsar = pulsar
        self.notes: deque[str] = deque(maxlen=300)
        self.image = ClusterImage()
        self.acknowledged: dict[tuple[int, int], tuple[int, str]] = {}
        self.writes = 0
        self.last_write = 0.0
        self._logs = {id(log): log for log in (*pulsar.partitions, *pulsar.tables)}
        self._serving: dict[int, frozenset[int]] = {}
        pulsar.on_append = self.on_rows

    def note(self, text: str) -> None:
        self.notes.append(f"{self.pulsar.time.now:8.3f} {text}")

    def require(self, condition: bool, text: str) -> None:
        if not condition:
            raise Violated(text)

    def on_rows(self, rows: dict[bytes, bytes | None]) -> None:
        before = dict(self.image.shards)
        self.image.apply(rows)
        self.writes += 1
        changed = False
        self.last_write = self.pulsar.time.now
        for shard, row in self.image.shards.items():
            old = before.get(shard)
            if row != old:
                changed = True
                self.note(f"shard {shard}: {_describe(row)}")
            if old is None or row == old:
                continue
            is_same = (row.leader, row.registration) == (old.leader, old.registration)
            self.require(
                row.epoch > old.epoch or (row.epoch == old.epoch and is_same),
                f"epoch of shard {shard} changed from {old} to {row}",
            )
        named = ", ".join(
            key.decode().replace("\0", " ") + (" deleted" if value is None else "")
            for key, value in rows.items()
            if not key.startswith(b"shards")
        )
        if not named and not changed:
            named = f"{len(rows)} rows without a change"
        if named:
            self.note(f"log: {named}")

    def in_presence_window(self, process: Any) -> bool:
        lease = process.rules.timing.lease / process.rate
        return self.pulsar.time.now <= process.presence_lost_at + lease

    def on_append(self, process: Any, log: EntryLog, epoch: int) -> None:
        """An append is about to be stored."""
        self.require(
            epoch >= log.last_epoch,
            f"{process!r} stored an entry of epoch {epoch} after one of epoch {log.last_epoch}",
        )
        self.require(
            epoch >= log.opened_epoch or self.in_presence_window(process),
            f"{process!r} stored an entry of epoch {epoch}, opened in epoch {log.opened_epoch}",
        )

    def on_acknowledged(self, log: EntryLog, offset: int, entry: tuple[int, str]) -> None:
        self.acknowledged[id(log), offset] = entry

    def after_turn(self, process: Any) -> None:
        """After each turn of a process, check that no other process serves the same shards."""
        if process.member is None:
            return
        now = process.clock()
        if not process.member.has_lease(now):
            self._serving.pop(id(process), None)
            return
        served = frozenset(shard for shard in process.shards if process.member.leads(shard, now))
        before = self._serving.get(id(process), frozenset())
        self._serving[id(process)] = served
        for shard in served - before:
            for other in self.pulsar.processes:
                if (
                    other is process
                    or other.is_paused
                    or other.member is None
                    or not other.member.leads(shard, other.clock())
                ):
                    continue
                self.require(
                    self.in_presence_window(other) or self.in_presence_window(process),
                    f"{process!r} serves shard {shard} beside {other!r}",
                )

    def at_end(self) -> None:
        for (log, offset), entry in self.acknowledged.items():
            entries = self._logs[log].entries
            self.require(
                offset < len(entries) and entries[offset] == entry,
                f"acknowledged entry {entry} at offset {offset} is lost",
            )


def _describe(row: ShardRow) -> str:
    successor = f", successor {row.successor}" if row.successor >= 0 else ""
    return f"leader {row.leader}, epoch {row.epoch}{successor}"
