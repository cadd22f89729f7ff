"""`make bench-groups`: heartbeat and commit latency with many consumer groups.

All members connect, then join at the same moment, then stay: each sends a heartbeat every 3 s and
commits its partitions every 5 s, the defaults of Java consumers, in the request versions of Java
3.9. The members are one program in Go (bench/go/members.go). Latency is measured from just before a
request is written until the kernel has received the last byte of its reply, so it does not include
the program's own delays.

The server is one gateway on an embedded store, or with --gateways each of these numbers of gateways
on one Pulsar. Members follow FindCoordinator. Apache Kafka is measured with --kafka, twice: as it
is by default, when it acknowledges a commit from the page cache, and syncing each commit to disk,
as the gateway does (log.flush.interval.messages=1).

1,000 groups of 4 members send 1,333 heartbeats and 800 commits per second on 4,000 connections. It
takes about two minutes per server.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.__main__ import replace_between_marks
from bench.clients import ClientFailed, create
from bench.servers import BenchCluster, BenchGateway, BenchServer, KafkaServer, cpu_seconds
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
        return f"{self.p50:.1f} / {self.p99:.1f} / {self.max:.0f}"


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


def table(outcomes: list[GroupsResult], load: GroupLoad) -> str:
    rows = [_HEADS, ["---"] * len(_HEADS), *(_cells(one, load) for one in outcomes)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(one: GroupsResult, load: GroupLoad) -> list[str]:
    memory = (
        f"{kib(one.end_bytes - one.idle_bytes, load):.1f}, "
        f"{kib(one.connected_bytes - one.idle_bytes, load):.1f} for the connection"
    )
    return [
        one.server,
        str(one.heartbeat),
        str(one.commit),
        f"{one.cores:.2f}"
        + ("" if one.pulsar_cores is None else f", Pulsar {one.pulsar_cores:.2f}"),
        f"{one.connected_seconds:.1f} s",
        f"{one.joined_seconds:.1f} s",
        # The JVM's memory is its heap size, regardless of its contents.
        "-" if one.server in (KafkaServer.name, SYNCED_KAFKA) else memory,
    ]


def kib(size: int, load: GroupLoad) -> float:
    """KiB per member."""
    return size / load.all_members / 1024


@contextmanager
def servers(options: argparse.Namespace, pulsar: Pulsar | None) -> Iterator[Iterator[BenchServer]]:
    """The servers, one after the other; each is stopped before the next one is started."""
    running: list[BenchServer] = []
    starts: list[Callable[[], BenchServer]] = [_gateway]
    if pulsar is not None:
        starts = [partial(BenchCluster.start, pulsar.tenant(), count) for count in options.gateways]
    if options.kafka:
        starts += [_kafka, _synced_kafka]

    def each() -> Iterator[BenchServer]:
        for start in starts:
            running.append(start())
            yield running[-1]
            running.pop().stop()

    try:
        yield each()
    finally:
        for server in running:
            server.stop()


def _gateway() -> BenchServer:
    """Without its log, which has lines for every group."""
    return BenchGateway.start(subprocess.DEVNULL)


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


def main() -> int:
    options = _options()
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
    outcomes = []
    with servers(options, pulsar) as each:
        for server in each:
            used = pulsar if isinstance(server, BenchCluster) else None
            one = measure(server, _load(options), _say, used)
            outcomes.append(one)
            _say(
                f"{one.server}: heartbeats {one.heartbeat}, commits {one.commit}; member program: "
                f"{one.load_cores:.2f} cores, requests sent {one.late} ms late (p50 / p99 / max), "
                f"{one.rejoined} rejoined"
            )
    return outcomes


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def _conditions(options: argparse.Namespace, busy: str) -> str:
    arguments = (
        f"--groups {options.groups} --members {options.members} --partitions {options.partitions} "
        f"--seconds {options.seconds}"
    )
    if options.gateways:
        arguments += f" --gateways {' '.join(map(str, options.gateways))}"
    arguments += " --kafka" if options.kafka else ""
    return (
        f'Measured with `make bench-groups ARGS="{arguments}"`, '
        f"Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}, load average before it {busy}."
    )


def _options() -> argparse.Namespace:
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
        "--gateways",
        type=int,
        nargs="+",
        metavar="N",
        help="measure clusters of N gateways on one Pulsar, one after the other",
    )
    parser.add_argument(
        "--kafka", action="store_true", help="measure Apache Kafka as well, also syncing"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
