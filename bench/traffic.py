"""`make bench-traffic`: CPU cost of the traffic log, or of authorization and quotas (--secured).

One gateway has two listeners, and its traffic log records only one of them. Both get the same load
in turns: five Produce requests in flight with a full batch for each partition, and Fetch requests
one after the other, as Kafka's clients send at full speed.

The compared figure is the gateway's CPU seconds per GiB, in slices of some tenths of a second; the
first listener changes with each pair of slices. Two processes would differ by some percent for as
long as they run, depending on their memory layout, and two runs of Kafka's producer by how full its
batches are. Single slices differ by more than the log costs, but the median of hundreds of pairs is
stable; the table has its 95 % confidence interval.

The last column is the cost of the recorder alone, with warm caches (bench/recorder_cost.py).

With --secured there is no traffic log. Connections of one listener are checked by the authorizer
and counted by quotas for bytes, in the last step also for time, which are too high to be reached;
the other listener does neither.
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
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse

from bench import clients, recorder_cost, replay
from bench.__main__ import replace_between_marks
from bench.compared_listeners import OPEN, UNLOGGED
from bench.servers import BenchGateway
from bench.steps import WarmUpLimits, repeat_until_stable
from tests.testkit.gateway import MIB, Peer

BEGIN, END = "<!-- traffic: begin -->", "<!-- traffic: end -->"
SECURED_BEGIN, SECURED_END = "<!-- secured: begin -->", "<!-- secured: end -->"

#: Quotas that no client reaches.
BYTE_QUOTAS = {"producer_byte_rate": 1e15, "consumer_byte_rate": 1e15}
TIME_QUOTA = {"request_percentage": 1e6}


FIRST = "produce, 1 partition"
REQUESTS, READ_MIB = 150, 64
"""Size of a slice: Produce requests, and MiB read. Each takes some tenths of a CPU second."""


class CpuPair(msgspec.Struct, frozen=True):
    """CPU seconds per GiB of two adjacent slices."""

    without: float
    with_log: float


class LogCost(msgspec.Struct):
    """One kind of load: the pairs of all rounds."""

    name: str
    pairs: list[CpuPair] = []
    #: CPU seconds per GiB of the recorder alone, None if it is not compared.
    recorder_seconds: float | None = None

    @property
    def ratios(self) -> list[float]:
        """CPU time with the log divided by that without, sorted."""
        return sorted(pair.with_log / pair.without for pair in self.pairs)


class ListenerConnection(msgspec.Struct, frozen=True):
    """A connection to one listener of the gateway."""

    gateway: BenchGateway
    peer: Peer


SliceCost = Callable[[ListenerConnection], float]
"""Runs one slice on a connection. Returns the gateway's CPU seconds per GiB."""


def median_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, by the binomial distribution of ranks."""
    rounds, rank, outside = len(ratios), 0, 2 / 2 ** len(ratios)
    while outside < 0.05 and rank < (rounds - 1) // 2:
        rank += 1
        outside += 2 * comb(rounds, rank) / 2**rounds
    rank -= outside >= 0.05 and rank > 0
    return ratios[rank], ratios[-1 - rank]


def table(rows: Sequence[LogCost], compared: str = "with the traffic log") -> str:
    heads = ["step", "CPU s/GiB without", compared, "ratio (95 % interval)"]
    if rows[0].recorder_seconds is not None:
        heads.append("the recorder alone")
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        without, with_log = (
            median(pair[at] for pair in map(msgspec.structs.astuple, row.pairs)) for at in (0, 1)
        )
        low, high = median_interval(row.ratios)
        ratio = f"**{median(row.ratios):.3f}** ({low:.3f}-{high:.3f})"
        lines.append(
            [
                row.name,
                f"{without:.2f}",
                f"{with_log:.2f}",
                ratio,
                *([] if row.recorder_seconds is None else [_share(row.recorder_seconds, without)]),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _share(recorder_seconds: float, of: float) -> str:
    return f"{recorder_seconds:.3f} s/GiB, {recorder_seconds / of:.1%}"


def measure(
    connections: tuple[ListenerConnection, ListenerConnection],
    loads: dict[str, SliceCost],
    rounds: int,
    say: Callable[[str], None],
) -> list[LogCost]:
    """`connections`: the one that is not logged, and the one that is."""
    rows = []
    for name, load in loads.items():
        row = LogCost(name, [])
        for number in range(rounds):
            found = {at: load(connections[at]) for at in ((0, 1) if number % 2 == 0 else (1, 0))}
            row.pairs.append(CpuPair(found[0], found[1]))
            if (number + 1) % 20 == 0:
                say(f"{name}, {number + 1} of {rounds}: {median(row.ratios):.3f}")
        rows.append(row)
    return rows


def produced(gateway: BenchGateway, partitions: int) -> SliceCost:
    """Slices of Produce requests with one full batch for each partition of a topic."""
    topic, records = f"produced-{partitions}", bytes(recorder_cost.full_batch())
    clients.create(gateway.bootstrap, topic, partitions)
    frame = replay.produce_frame(topic, partitions, records)
    return lambda connection: _cpu(
        connection,
        REQUESTS * partitions * len(records),
        lambda: replay.produce(connection.peer, frame, REQUESTS),
    )


def fetched(gateway: BenchGateway, writer: Peer) -> SliceCost:
    """Slices of Fetch requests for 1 MiB each, the default of Kafka's consumer."""
    topic, records = "fetched", bytes(recorder_cost.full_batch())
    clients.create(gateway.bootstrap, topic, 1)
    batches = READ_MIB * MIB // len(records)
    replay.produce(writer, replay.produce_frame(topic, 1, records), batches)
    frames = list(replay.fetch_frames(topic, records, batches))

    def read(connection: ListenerConnection) -> None:
        if (size := replay.fetch(connection.peer, frames)) < batches * len(records):
            raise clients.ClientFailed(f"read {size} of {batches * len(records)} bytes")

    return lambda connection: _cpu(connection, batches * len(records), lambda: read(connection))


def _cpu(connection: ListenerConnection, size: int, work: Callable[[], None]) -> float:
    before = connection.gateway.cpu_seconds()
    work()
    return (connection.gateway.cpu_seconds() - before) * recorder_cost.GIB / size


def set_quotas(peer: Peer, quotas: dict[str, float]) -> None:
    """Set quotas for all users, on the listener that counts them."""
    kind = AlterClientQuotasRequest.EntryData
    entry = kind(
        entity=[kind.EntityData(entity_type="user", entity_name=None)],
        ops=[kind.OpData(key=key, value=value, remove=False) for key, value in quotas.items()],
    )
    asked = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    (row,) = peer.request(asked, AlterClientQuotasResponse, 1).entries
    if row.error_code:
        raise clients.ClientFailed(f"quotas were refused: {row.error_message}")


def measure_secured(options: argparse.Namespace) -> list[LogCost]:
    """Compare a listener with authorization and quotas to one without."""
    arguments = ("--listener", f"{OPEN}://127.0.0.1:0")
    for setting in (
        f"listener_security_protocol_map={OPEN}:PLAINTEXT",
        "authorizer=acls",
        "super_users=User:ANONYMOUS",
    ):
        arguments += ("--set", setting)
    gateway = BenchGateway.start(
        subprocess.DEVNULL, arguments=arguments, module="bench.compared_listeners"
    )
    try:
        secured = replay.connected(gateway.bootstrap)
        set_quotas(secured, BYTE_QUOTAS)
        connections = (
            ListenerConnection(gateway, replay.connected(gateway.others[0])),
            ListenerConnection(gateway, secured),
        )
        loads = _loads(gateway, secured, options.partitions)
        repeat_until_stable(lambda: loads[FIRST](connections[1]), WarmUpLimits(), _say)
        rows = measure(connections, loads, options.rounds, _say)
        set_quotas(secured, TIME_QUOTA)
        timed = {f"{FIRST}, also time": loads[FIRST]}
        return [*rows, *measure(connections, timed, options.rounds, _say)]
    finally:
        gateway.stop()


def _loads(gateway: BenchGateway, writer: Peer, partitions: int) -> dict[str, SliceCost]:
    return {
        FIRST: produced(gateway, 1),
        f"produce, {partitions} partitions": produced(gateway, partitions),
        "fetch, as stored": fetched(gateway, writer),
    }


def main() -> int:
    options = _options()
    busy = " ".join(f"{average:.2f}" for average in os.getloadavg())
    if options.secured:
        rows = measure_secured(options)
        heading = "with authorization and quotas"
        _report(f"{_conditions(options, busy)}\n\n{table(rows, heading)}", options)
        return 0
    with tempfile.TemporaryDirectory(prefix="kopgate-bench-traffic-") as folder:
        unlogged = (
            "--listener",
            f"{UNLOGGED}://127.0.0.1:0",
            "--set",
            f"listener_security_protocol_map={UNLOGGED}:PLAINTEXT",
        )
        gateway = BenchGateway.start(
            subprocess.DEVNULL,
            arguments=(*unlogged, "--traffic-log", folder),
            module="bench.compared_listeners",
        )
        try:
            seen = replay.connected(gateway.bootstrap)
            connections = (
                ListenerConnection(gateway, replay.connected(gateway.others[0])),
                ListenerConnection(gateway, seen),
            )
            loads = _loads(gateway, seen, options.partitions)
            repeat_until_stable(lambda: loads[FIRST](connections[1]), WarmUpLimits(), _say)
            rows = measure(connections, loads, options.rounds, _say)
            for row, recorder_seconds in zip(
                rows,
                (
                    recorder_cost.produce_cost(1),
                    recorder_cost.produce_cost(options.partitions),
                    recorder_cost.fetch_cost(),
                ),
                strict=True,
            ):
                row.recorder_seconds = recorder_seconds
        finally:
            gateway.stop()
        written = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl.gz"))
    _report(
        f"{_conditions(options, busy)} Size of the log: {written / 1024:.0f} KiB, "
        f"compressed.\n\n{table(rows)}",
        options,
    )
    return 0


def _report(text: str, options: argparse.Namespace) -> None:
    print(text)
    if options.out is not None:
        marks = (SECURED_BEGIN, SECURED_END) if options.secured else (BEGIN, END)
        options.out.write_text(replace_between_marks(options.out.read_text(), text, *marks))


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def _conditions(options: argparse.Namespace, busy: str) -> str:
    arguments = f"--rounds {options.rounds} --partitions {options.partitions}"
    if options.secured:
        arguments += " --secured"
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-traffic ARGS="{arguments}"`, '
        f"Python {platform.python_version()}, "
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
        help="number of pairs of slices (200)",
    )
    parser.add_argument(
        "--partitions", type=int, default=6, help="partitions of the second topic (6)"
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="compare authorization and quotas instead of the traffic log",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
