"""`make bench-traffic`: what the traffic log costs. One gateway has two listeners, of which its traffic log sees one; they take turns at the same load.

The load is what Kafka's own producer and consumer send at full speed: five Produce requests on their way with a full batch for each partition, and
Fetch requests one after the other. What is compared is the gateway's CPU seconds for a GiB, all threads together, slice by slice of some tenths of a
second: which listener goes first changes with each. Two processes would differ by some percent for as long as they live, by where their memory came
to lie, and two runs of Kafka's producer by how it fills its batches; within one process, single slices differ by more than the log can cost on a
machine that others use, too, and the median of hundreds by little. How little is told by the range in which that median lies with 95 %. The last column is
what telling the log of the requests takes by itself, with warm caches (bench/noting.py).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from statistics import median

import msgspec

from bench import clients, noting, replay
from bench.__main__ import between_marks
from bench.doors import UNSEEN
from bench.servers import Gateway
from bench.steps import Settled, until_settled
from tests.peers.gateway import MIB, Peer

BEGIN, END = "<!-- traffic: begin -->", "<!-- traffic: end -->"


FIRST = "produce, 1 partition"
REQUESTS, READ_MIB = 150, 64
"""Of a slice: Produce requests, and what is read. Each takes the gateway some tenths of a second of CPU."""


class Pair(msgspec.Struct, frozen=True):
    """CPU seconds per GiB in one round."""

    without: float
    with_log: float


class Row(msgspec.Struct):
    """One kind of load, round by round."""

    name: str
    pairs: list[Pair] = []
    #: CPU seconds per GiB that telling of it takes by itself.
    noted: float = 0.0

    @property
    def ratios(self) -> list[float]:
        """With the log for one without, the smallest first."""
        return sorted(pair.with_log / pair.without for pair in self.pairs)


class Door(msgspec.Struct, frozen=True):
    """A connection to one listener of the gateway."""

    gateway: Gateway
    peer: Peer


Load = Callable[[Door], float]
"""CPU seconds per GiB that the gateway took for a slice."""


def certain(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which of them the median of all rounds that there could be lies, in 95 of 100 cases (by the binomial distribution of their order)."""
    rounds, rank, outside = len(ratios), 0, 2 / 2 ** len(ratios)
    while outside < 0.05 and rank < (rounds - 1) // 2:
        rank += 1
        outside += 2 * comb(rounds, rank) / 2**rounds
    rank -= outside >= 0.05 and rank > 0
    return ratios[rank], ratios[-1 - rank]


def table(rows: Sequence[Row]) -> str:
    heads = [
        "step",
        "CPU s/GiB without",
        "with the traffic log",
        "ratio (median's range)",
        "the log by itself",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        without, with_log = (
            median(pair[at] for pair in map(msgspec.structs.astuple, row.pairs)) for at in (0, 1)
        )
        low, high = certain(row.ratios)
        ratio = f"**{median(row.ratios):.3f}** ({low:.3f}-{high:.3f})"
        lines.append(
            [row.name, f"{without:.2f}", f"{with_log:.2f}", ratio, _share(row.noted, without)]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _share(noted: float, of: float) -> str:
    return f"{noted:.3f} s/GiB, {noted / of:.1%}"


def measure(
    doors: tuple[Door, Door], loads: dict[str, Load], rounds: int, say: Callable[[str], None]
) -> list[Row]:
    """`doors` are the one that the log does not see and the one that it does."""
    rows = []
    for name, load in loads.items():
        row = Row(name, [])
        for number in range(rounds):
            found = {at: load(doors[at]) for at in ((0, 1) if number % 2 == 0 else (1, 0))}
            row.pairs.append(Pair(found[0], found[1]))
            if (number + 1) % 20 == 0:
                say(f"{name}, {number + 1} of {rounds}: {median(row.ratios):.3f}")
        rows.append(row)
    return rows


def produced(gateway: Gateway, partitions: int) -> Load:
    """Requests with one full batch for each partition of a topic."""
    topic, records = f"produced-{partitions}", bytes(noting.full_batch())
    clients.create(gateway.bootstrap, topic, partitions)
    frame = replay.produce_frame(topic, partitions, records)
    return lambda door: _cpu(
        door,
        REQUESTS * partitions * len(records),
        lambda: replay.produce(door.peer, frame, REQUESTS),
    )


def fetched(gateway: Gateway, writer: Peer) -> Load:
    """Replies with as many full batches as a consumer asks for at a time."""
    topic, records = "fetched", bytes(noting.full_batch())
    clients.create(gateway.bootstrap, topic, 1)
    batches = READ_MIB * MIB // len(records)
    replay.produce(writer, replay.produce_frame(topic, 1, records), batches)
    frames = list(replay.fetch_frames(topic, records, batches))

    def read(door: Door) -> None:
        if (size := replay.fetch(door.peer, frames)) < batches * len(records):
            raise clients.ClientFailed(f"of {batches * len(records)} bytes {size} came")

    return lambda door: _cpu(door, batches * len(records), lambda: read(door))


def _cpu(door: Door, size: int, work: Callable[[], None]) -> float:
    before = door.gateway.cpu_seconds()
    work()
    return (door.gateway.cpu_seconds() - before) * noting.GIB / size


def main() -> int:
    options = _options()
    busy = " ".join(f"{average:.2f}" for average in os.getloadavg())
    with tempfile.TemporaryDirectory(prefix="kopgate-bench-traffic-") as folder:
        unseen = (
            "--listener",
            f"{UNSEEN}://127.0.0.1:0",
            "--set",
            f"listener_security_protocol_map={UNSEEN}:PLAINTEXT",
        )
        gateway = Gateway.start(
            subprocess.DEVNULL, arguments=(*unseen, "--traffic-log", folder), module="bench.doors"
        )
        try:
            seen = replay.connected(gateway.bootstrap)
            doors = Door(gateway, replay.connected(gateway.others[0])), Door(gateway, seen)
            loads = {
                FIRST: produced(gateway, 1),
                f"produce, {options.partitions} partitions": produced(gateway, options.partitions),
                "fetch, as stored": fetched(gateway, seen),
            }
            until_settled(lambda: loads[FIRST](doors[1]), Settled(), _say)
            rows = measure(doors, loads, options.rounds, _say)
            for row, noted in zip(
                rows,
                (noting.producing(1), noting.producing(options.partitions), noting.fetching()),
                strict=True,
            ):
                row.noted = noted
        finally:
            gateway.stop()
        written = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl.gz"))
    text = f"{_made_by(options, busy)} The log itself: {written / 1024:.0f} KiB, compressed.\n\n{table(rows)}"
    print(text)
    if options.out is not None:
        options.out.write_text(between_marks(options.out.read_text(), text, BEGIN, END))
    return 0


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def _made_by(options: argparse.Namespace, busy: str) -> str:
    arguments = f"--rounds {options.rounds} --partitions {options.partitions}"
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-traffic ARGS="{arguments}"`, Python {platform.python_version()}, '
        f"{os.cpu_count()} cores of {platform.machine()}, load average before it {busy}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-traffic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=200,
        help="medians are taken over so many pairs of slices (200)",
    )
    parser.add_argument("--partitions", type=int, default=6, help="of the second topic (6)")
    parser.add_argument(
        "--out",
        type=Path,
        help="the table goes into this file, between its marks; without it, it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
