"""`make bench-shared`: requests of several kinds on one connection, on the gateway and on Kafka.

The load is created by real clients, which use the servers in turns:

- One Sarama client writes a record and waits until its consumer has read it, repeatedly ("echoes"),
  or writes records without waiting while its consumer reads them ("records"). Producer and consumer
  share a connection; with a group, so do commits and heartbeats.
- A librdkafka consumer commits while its Fetch waits on an idle topic. Version 0.11 does both on
  one connection; newer versions commit on a separate connection.
- A librdkafka consumer of an idle topic that commits nothing, or once a second: the CPU time of the
  server and of the client per second.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import msgspec

from bench.__main__ import add_beside_option, checkouts, replace_between_marks
from bench.clients import create
from bench.servers import (
    BenchGateway,
    BenchServer,
    KafkaServer,
    cpu_seconds,
    in_turn,
    running,
)
from tests.legacy_clients.clients import Client, run, table
from tests.legacy_clients.install import install

BEGIN, END = "<!-- shared: begin -->", "<!-- shared: end -->"

SARAMAS = ("sarama-1.19.0-as-2.0.0", "sarama-1.61.1")
LIBRDKAFKAS = ("confluent-0.11.6", "confluent-2.16.1")
COMMIT_EVERY_MS = 1000

#: Time for a consumer to connect and join before its CPU time is measured.
SETTLE_SECONDS = 5.0
CLIENT_SECONDS = 300.0


class SharedLoad(msgspec.Struct, frozen=True):
    """`runs` runs of `records` echoes, `commits` commits, `seconds` s for each idle consumer."""

    runs: int = 20
    records: int = 40
    commits: int = 200
    seconds: int = 20


class LoadResult(msgspec.Struct):
    """One kind of load: values by server, and the function that formats them."""

    name: str
    summary: Callable[[Sequence[float]], str]
    figures: dict[str, list[float]] = {}

    def add(self, server: BenchServer, figures: Sequence[float]) -> None:
        self.figures.setdefault(server.name, []).extend(figures)


def duration_summary(seconds: Sequence[float]) -> str:
    """Median and range of durations in seconds."""
    return f"{median(seconds):.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"


def latency_summary(seconds: Sequence[float]) -> str:
    """p50, p99 and maximum, in ms."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return f"{cuts[49] * 1000:.1f} / {cuts[98] * 1000:.1f} / {max(seconds) * 1000:.0f} ms"


def cpu_summary(shares: Sequence[float]) -> str:
    """Median and range of CPU time, in ms per second."""
    return f"{median(shares) * 1000:.2f} ms ({min(shares) * 1000:.2f}-{max(shares) * 1000:.2f})"


def measure(
    servers: Sequence[BenchServer], load: SharedLoad, say: Callable[[str], None]
) -> list[LoadResult]:
    """All rows. The servers take turns in every run, and the first one changes every run."""
    kinds = [
        (verb, client, is_grouped)
        for client in SARAMAS
        for verb in ("echo", "stream")
        for is_grouped in (False, True)
    ]
    rows = [
        LoadResult(
            f"{load.records} {'echoes' if verb == 'echo' else 'records'}, "
            f"{client}{', in a group' * is_grouped}",
            duration_summary,
        )
        for verb, client, is_grouped in kinds
    ]
    for number, server in _turns(servers, load.runs):
        for row, (verb, client, is_grouped) in zip(rows, kinds, strict=True):
            topic = f"{verb}-{client}-{is_grouped}-{number}"
            create(server.bootstrap, topic, 1)
            words = ("--group", topic) if is_grouped else ()
            row.add(
                server,
                [sum(_seconds(table()[client], verb, server, *words, f"{topic}:{load.records}"))],
            )
            say(f"{row.name}, {server.name}: {row.figures[server.name][-1]:.2f} s")
    for name in LIBRDKAFKAS:
        rows += _commits(servers, table()[name], load, say)
    return rows


def _commits(
    servers: Sequence[BenchServer], client: Client, load: SharedLoad, say: Callable[[str], None]
) -> Iterator[LoadResult]:
    topic, group = f"idle-{client.name}", ("--group", client.name)
    committing = LoadResult(f"a commit, {client.name}, p50 / p99 / max", latency_summary)
    for server in servers:
        create(server.bootstrap, topic, 1)
        committing.add(
            server, _seconds(client, "commits", server, *group, f"{topic}:{load.commits}")
        )
        say(f"{committing.name}, {server.name}: {latency_summary(committing.figures[server.name])}")
    yield committing
    busy = "--every", str(COMMIT_EVERY_MS), *group, f"{topic}:1000000"
    for kind, words in {
        "that only fetches": ("consume", f"{topic}:0:0:1"),
        "that commits every second": ("commits", *busy),
    }.items():
        rows = [
            LoadResult(f"{whose} CPU per second, {client.name} {kind}", cpu_summary)
            for whose in ("server's", "client's")
        ]
        for _, server in _turns(servers, 3):
            for row, share in zip(rows, _cpu(client, server, words, load.seconds), strict=True):
                row.add(server, [share])
                say(f"{row.name}, {server.name}: {share * 1000:.2f} ms")
        yield from rows


def _turns(servers: Sequence[BenchServer], runs: int) -> Iterator[tuple[int, BenchServer]]:
    return ((number, server) for number in range(runs) for server in in_turn(servers, number))


def _seconds(client: Client, verb: str, server: BenchServer, *words: str) -> list[float]:
    return [
        float(line)
        for line in run(client, verb, server.bootstrap, words, timeout=CLIENT_SECONDS).splitlines()
    ]


def _cpu(
    client: Client, server: BenchServer, words: Sequence[str], seconds: float
) -> tuple[float, float]:
    """CPU seconds per second of the server and of the client while the client runs."""
    verb, *rest = words
    argv = [
        *install(client),
        verb,
        "--bootstrap",
        server.bootstrap,
        "--timeout",
        str(CLIENT_SECONDS),
        *rest,
    ]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            time.sleep(SETTLE_SECONDS)
            began, before = time.monotonic(), (server.cpu_seconds(), cpu_seconds(process.pid))
            time.sleep(seconds)
            after, took = (server.cpu_seconds(), cpu_seconds(process.pid)), time.monotonic() - began
        finally:
            process.kill()
    return (after[0] - before[0]) / took, (after[1] - before[1]) / took


def markdown(rows: Sequence[LoadResult], names: Sequence[str]) -> str:
    lines = [["load", *names], ["---"] * (1 + len(names))]
    lines += [[row.name, *(row.summary(row.figures[name]) for name in names)] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> int:
    options = _options()
    load = SharedLoad(options.runs, options.records, options.commits, options.seconds)
    busy = " ".join(f"{average:.2f}" for average in os.getloadavg())
    starts: list[Callable[[], BenchServer]] = [
        partial(_gateway, checkout) for checkout in checkouts(options)
    ]
    if options.kafka:
        starts.append(KafkaServer.start)
    with running(starts) as servers:
        rows = measure(servers, load, lambda line: print(f"# {line}", file=sys.stderr))
    text = f"{_conditions(options, busy)}\n\n{markdown(rows, [server.name for server in servers])}"
    print(text)
    if options.out is not None:
        options.out.write_text(replace_between_marks(options.out.read_text(), text, BEGIN, END))
    return 0


def _gateway(checkout: Path | None) -> BenchServer:
    arguments = ("--set", "group_initial_rebalance_delay_ms=0")
    return BenchGateway.start(subprocess.DEVNULL, arguments=arguments, checkout=checkout)


def _conditions(options: argparse.Namespace, busy: str) -> str:
    arguments = (
        f"--runs {options.runs} --records {options.records} --commits {options.commits} --seconds "
        f"{options.seconds}"
    )
    arguments += f" --beside {options.beside}" if options.beside is not None else ""
    arguments += " --kafka" if options.kafka else ""
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-shared ARGS="{arguments}"`, '
        f"Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}, load average before it {busy}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-shared",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs", type=int, default=20, help="runs of each kind of Sarama load (20)"
    )
    parser.add_argument("--records", type=int, default=40, help="records per run (40)")
    parser.add_argument(
        "--commits", type=int, default=200, help="commits of each librdkafka version (200)"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=20,
        help="measured time of each idle consumer, three times (20)",
    )
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka as well")
    add_beside_option(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
