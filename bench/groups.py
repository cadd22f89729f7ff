"""`make bench-groups`: heartbeat and commit latency with many consumer groups.

All members connect, then join at the same moment, then stay: each sends a heartbeat every 3 s and
commits its partitions every 5 s, the defaults of Java consumers, in the request versions of Java
3.9. The members are one program in Go (bench/go/members.go). Latency is measured from just before a
request is written until the kernel has received the last byte of its reply, so it does not include
the program's own delays.

The server is one gateway on an embedded store, or with --gateways each of these numbers of gateways
on one Pulsar. Members follow FindCoordinator. With --beside the same is done with the gateway of
another checkout. Apache Kafka is measured with --kafka, twice: as it is by default, when it
acknowledges a commit from the page cache, and syncing each commit to disk, as the gateway does
(log.flush.interval.messages=1).

One server runs at a time. With --rounds the servers take turns: each is started in every round, the
first one changes every round, and the table has the median over the rounds and the range.

1,000 groups of 4 members send 1,333 heartbeats and 800 commits per second on 4,000 connections. It
takes about two minutes per server and round. Progress and the estimated remaining time go to
stderr.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.__main__ import add_beside_option, at_least_one, checkouts, replace_between_marks
from bench.clients import ClientFailed, create
from bench.progress import StepProgress
from bench.servers import (
    BenchCluster,
    BenchGateway,
    BenchServer,
    KafkaServer,
    cpu_seconds,
    in_turn,
    name_in,
)
from tests.testkit import jvm
from tests.testkit.cache import cached, command, fingerprint
from tests.testkit.pulsar import Pulsar

BEGIN, END = "<!-- groups: begin -->", "<!-- groups: end -->"
CLUSTER_BEGIN, CLUSTER_END = "<!-- groups-cluster: begin -->", "<!-- groups-cluster: end -->"

SOURCE = Path(__file__).parent / "go" / "members.go"
TOPIC = "bench-groups"
HEARTBEAT_SECONDS, COMMIT_SECONDS = 3, 5
"""The same intervals as in members.go."""

SYNCED_KAFKA = f"{KafkaServer.name}, which syncs as well"

PULSAR_MEMORY = "1g"
"""Heap, and direct memory, of Pulsar's JVM."""

START_SECONDS = 40
"""Estimate for the progress line: to start a server and to connect and join all members."""

STEP_SECONDS = 180
"""Time limit of a step, in addition to its measured time."""


class GroupLoad(msgspec.Struct, frozen=True):
    """`groups` groups of `members` members, which share the partitions of one topic."""

    groups: int
    members: int
    partitions: int
    seconds: int
    warm_up_seconds: int = 10

    @property
    def all_members(self) -> int:
        return self.groups * self.members

    def __str__(self) -> str:
        heartbeats, commits = (
            self.all_members / HEARTBEAT_SECONDS,
            self.all_members / COMMIT_SECONDS,
        )
        return (
            f"{self.groups:,} groups of {self.members}, one connection per member, each group on "
            f"the {self.partitions} partitions "
            f"of one topic; {heartbeats:,.0f} heartbeats and {commits:,.0f} commits per second "
            f"for {self.seconds} s"
        )


class LatencySummary(msgspec.Struct, frozen=True):
    """Percentiles of `count` latencies, in ms."""

    count: int
    p50: float
    p99: float
    max: float

    def __str__(self) -> str:
        return latencies([self])


def latencies(rounds: Sequence[LatencySummary]) -> str:
    """p50 / p99 / max: each the median over the rounds, with the range."""
    figures = (
        spread([one.p50 for one in rounds], 1),
        spread([one.p99 for one in rounds], 1),
        spread([one.max for one in rounds], 0),
    )
    return " / ".join(figures)


def spread(values: Sequence[float], digits: int) -> str:
    """The median; of several values, also the range."""
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


class GroupsResult(msgspec.Struct, frozen=True):
    """Measurements of one server.

    `*_bytes` are its anonymous memory: idle, with all members connected, and at the end. `cores`,
    `load_cores` and `pulsar_cores` are CPU seconds per second of the server, of the member program
    and of Pulsar (None without it).
    """

    server: str
    connected_seconds: float
    joined_seconds: float
    heartbeat: LatencySummary
    commit: LatencySummary
    cores: float
    load_cores: float
    late: LatencySummary
    rejoined: int
    idle_bytes: int
    connected_bytes: int
    end_bytes: int
    pulsar_cores: float | None = None


class MemberProgram:
    """The process of bench/go/members.go, which runs all members step by step."""

    def __init__(self, bootstrap: str, load: GroupLoad) -> None:
        words = [
            "-at",
            bootstrap,
            "-topic",
            TOPIC,
            "-partitions",
            str(load.partitions),
            "-groups",
            str(load.groups),
        ]
        words += [
            "-members",
            str(load.members),
            "-warm",
            f"{load.warm_up_seconds}s",
            "-window",
            f"{load.seconds}s",
        ]
        self._process = subprocess.Popen(
            [str(program()), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start_step(self) -> None:
        """Start the next step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read_line(self, seconds: float) -> dict[str, Any]:
        """The result of a step, as JSON.

        Raises ClientFailed if the program exits or prints nothing for `seconds`. Its stderr has the
        reason.
        """
        assert self._process.stdout is not None
        overdue = threading.Timer(seconds, self._process.kill)
        overdue.start()
        line = self._process.stdout.readline()
        overdue.cancel()
        if not line:
            raise ClientFailed(
                f"the members exited with {self._process.wait()} (time limit {seconds:.0f} s)"
            )
        said: dict[str, Any] = msgspec.json.decode(line)
        return said

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def __enter__(self) -> MemberProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def program() -> Path:
    """Path of the compiled members.go."""

    def build(folder: Path) -> None:
        command(
            ["go", "build", "-o", str(folder / "members"), str(SOURCE)], env={"CGO_ENABLED": "0"}
        )

    return cached(f"bench/{fingerprint((SOURCE.read_bytes(),))}", build) / "members"


def measure(
    server: BenchServer, load: GroupLoad, say: Callable[[str], None], pulsar: Pulsar | None = None
) -> GroupsResult:
    """Run all steps on one server, whose store is in `pulsar`. Raises ClientFailed."""
    create(server.bootstrap, TOPIC, load.partitions)
    idle = server.own_memory_bytes()
    with MemberProgram(server.bootstrap, load) as members:
        members.start_step()
        connected = members.read_line(STEP_SECONDS)["connected"]
        connected_bytes = server.own_memory_bytes()
        say(f"{server.name}: {load.all_members} connected after {connected:.1f} s")
        members.start_step()
        joined = members.read_line(STEP_SECONDS)
        say(
            f"{server.name}: all joined after {joined['joined']:.1f} s; p50 / p99 / max ms: "
            f"{msgspec.convert(joined['join'], LatencySummary)}"
        )
        members.start_step()
        members.read_line(STEP_SECONDS + load.warm_up_seconds)

        def cpu_now() -> tuple[float, float, float]:
            in_pulsar = cpu_seconds(pulsar.pid) if pulsar else 0.0
            return server.cpu_seconds(), members.cpu_seconds(), in_pulsar

        before = cpu_now()
        members.read_line(STEP_SECONDS + load.seconds)
        after = cpu_now()
        end_bytes = server.own_memory_bytes()
        found = members.read_line(STEP_SECONDS)
    cores, load_cores, pulsar_cores = (
        (end - begin) / found["seconds"] for begin, end in zip(before, after, strict=True)
    )
    heartbeat, commit, late = (
        msgspec.convert(found[name], LatencySummary) for name in ("heartbeat", "commit", "late")
    )
    rejoined = found["joinings"] - load.all_members
    return GroupsResult(
        server.name,
        connected,
        joined["joined"],
        heartbeat,
        commit,
        cores,
        load_cores,
        late,
        rejoined,
        idle,
        connected_bytes,
        end_bytes,
        pulsar_cores if pulsar else None,
    )


_HEADS = (
    "server",
    "heartbeats p50 / p99 / max ms",
    "commits p50 / p99 / max ms",
    "cores",
    "all connected",
    "all joined",
    "KiB per member",
)


def table(outcomes: Sequence[GroupsResult], load: GroupLoad) -> str:
    """A row for each server, in the order in which they were first measured."""
    rounds: dict[str, list[GroupsResult]] = {}
    for one in outcomes:
        rounds.setdefault(one.server, []).append(one)
    rows = [_HEADS, ["---"] * len(_HEADS)]
    rows += [_cells(name, results, load) for name, results in rounds.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(server: str, rounds: Sequence[GroupsResult], load: GroupLoad) -> list[str]:
    grown = spread([kib(one.end_bytes - one.idle_bytes, load) for one in rounds], 1)
    connection = spread([kib(one.connected_bytes - one.idle_bytes, load) for one in rounds], 1)
    pulsar = [one.pulsar_cores for one in rounds if one.pulsar_cores is not None]
    return [
        server,
        latencies([one.heartbeat for one in rounds]),
        latencies([one.commit for one in rounds]),
        spread([one.cores for one in rounds], 2)
        + (f", Pulsar {spread(pulsar, 2)}" if pulsar else ""),
        f"{spread([one.connected_seconds for one in rounds], 1)} s",
        f"{spread([one.joined_seconds for one in rounds], 1)} s",
        # The JVM's memory is its heap size, regardless of its contents.
        "-"
        if server in (KafkaServer.name, SYNCED_KAFKA)
        else f"{grown}, {connection} for the connection",
    ]


def kib(size: int, load: GroupLoad) -> float:
    """KiB per member."""
    return size / load.all_members / 1024


def server_starts(
    options: argparse.Namespace, pulsar: Pulsar | None
) -> dict[str, Callable[[], BenchServer]]:
    """Functions that start the servers, by their names."""
    starts: dict[str, Callable[[], BenchServer]] = {}
    if pulsar is None:
        for checkout in checkouts(options):
            starts[name_in(checkout, BenchGateway.name)] = partial(_gateway, checkout)
    else:
        for count, checkout in product(options.gateways, checkouts(options)):
            name = BenchCluster.name_of(count, checkout)
            starts[name] = partial(_cluster, pulsar, count, checkout)
    if options.kafka:
        starts |= {KafkaServer.name: _kafka, SYNCED_KAFKA: _synced_kafka}
    return starts


def measure_in_turns(
    starts: Mapping[str, Callable[[], BenchServer]],
    rounds: int,
    one: Callable[[BenchServer], GroupsResult],
    next_step: Callable[[str], None],
) -> list[GroupsResult]:
    """Run `one` on each server in every round; the first one changes every round.

    Each server is stopped before the next one is started. `next_step` gets the name of a step
    before it begins.
    """
    outcomes = []
    for number in range(rounds):
        for name in in_turn([*starts], number):
            next_step(f"round {number + 1}, {name}")
            server = starts[name]()
            try:
                outcomes.append(one(server))
            finally:
                server.stop()
    return outcomes


def _gateway(checkout: Path | None) -> BenchServer:
    """Without its log, which has lines for every group."""
    return BenchGateway.start(subprocess.DEVNULL, checkout=checkout)


def _cluster(pulsar: Pulsar, count: int, checkout: Path | None) -> BenchServer:
    return BenchCluster.start(pulsar.tenant(), count, checkout)


def _kafka(**settings: str) -> KafkaServer:
    """Kafka with its default rebalance delay and offsets partitions; tests use lower values.

    With its default backlog of 50 the kernel resets some of the simultaneous connections.
    """
    return KafkaServer.start(
        group_initial_rebalance_delay_ms="3000",
        offsets_topic_num_partitions="50",
        socket_listen_backlog_size="4096",
        **settings,
    )


def _synced_kafka() -> BenchServer:
    """Kafka that acknowledges a commit after it has been synced to disk, as the gateway does."""
    server = _kafka(log_flush_interval_messages="1")
    server.name = SYNCED_KAFKA
    return server


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    busy = " ".join(f"{average:.2f}" for average in os.getloadavg())
    if options.gateways:
        with Pulsar.start(memory=PULSAR_MEMORY, flags=jvm.SERIAL) as pulsar:
            outcomes = _measure_each(options, pulsar)
        marks = CLUSTER_BEGIN, CLUSTER_END
    else:
        outcomes = _measure_each(options, None)
        marks = BEGIN, END
    load = _load(options)
    text = f"{_conditions(options, busy)} {load}.\n\n{table(outcomes, load)}"
    print(text)
    if options.out is not None:
        options.out.write_text(replace_between_marks(options.out.read_text(), text, *marks))
    return 0


def _load(options: argparse.Namespace) -> GroupLoad:
    return GroupLoad(options.groups, options.members, options.partitions, options.seconds)


def _measure_each(options: argparse.Namespace, pulsar: Pulsar | None) -> list[GroupsResult]:
    load = _load(options)

    def one(server: BenchServer) -> GroupsResult:
        found = measure(server, load, _say, pulsar if isinstance(server, BenchCluster) else None)
        _say(
            f"{found.server}: heartbeats {found.heartbeat}, commits {found.commit}; member "
            f"program: {found.load_cores:.2f} cores, requests sent {found.late} ms late (p50 / p99 "
            f"/ max), {found.rejoined} rejoined"
        )
        return found

    starts = server_starts(options, pulsar)
    seconds = START_SECONDS + load.warm_up_seconds + load.seconds
    progress = StepProgress([seconds] * len(starts) * options.rounds, time.monotonic)
    return measure_in_turns(
        starts, options.rounds, one, lambda step: print(progress.next(step), file=sys.stderr)
    )


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def _conditions(options: argparse.Namespace, busy: str) -> str:
    arguments = (
        f"--groups {options.groups} --members {options.members} --partitions {options.partitions} "
        f"--seconds {options.seconds}"
    )
    if options.gateways:
        arguments += f" --gateways {' '.join(map(str, options.gateways))}"
    arguments += f" --rounds {options.rounds}" if options.rounds > 1 else ""
    arguments += " --kafka" if options.kafka else ""
    arguments += f" --beside {options.beside}" if options.beside is not None else ""
    return (
        f'Measured with `make bench-groups ARGS="{arguments}"`, '
        f"Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}, load average before it {busy}."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-groups",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--groups", type=int, default=1000, help="number of groups (1000)")
    parser.add_argument("--members", type=int, default=4, help="members per group (4)")
    parser.add_argument(
        "--partitions", type=int, default=8, help="partitions of the topic that all groups read (8)"
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="measured time, after a warm-up of 10 s (60)"
    )
    parser.add_argument(
        "--rounds", type=at_least_one, default=1, help="number of rounds, servers in turns (1)"
    )
    parser.add_argument(
        "--gateways",
        type=int,
        nargs="+",
        metavar="N",
        help="measure clusters of N gateways on one Pulsar, one after the other",
    )
    parser.add_argument(
        "--kafka", action="store_true", help="measure Apache Kafka as well, also syncing"
    )
    add_beside_option(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
