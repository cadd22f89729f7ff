"""`make bench`: the gateway beside Kafka 3.9.2, alternating between them, medians of several rounds, as ratios.

For every codec a fresh topic (made by the first record, one partition) is produced into and then read three times: by today's client as it is stored, by 0.10.2.2, which gets format 1,
and by 0.9.0.1, which gets format 0. What is compared is the server's CPU seconds per GiB of record values: on a shared machine that says
more than speed does, and the ratio of two servers in one run says more than either figure.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from bench.clients import RECORD_BYTES, fetch, produce
from bench.servers import Gateway, Reference, Server

CODECS = ("none", "lz4", "gzip", "snappy", "zstd")
READERS = {"fetch, as stored": "3.9.2", "fetch, to format 1": "0.10.2.2", "fetch, to format 0": "0.9.0.1"}
LATENCY_RATE = 2000
LATENCY_SECONDS = 15
WARM_UP_MIB = 64


class Figure(msgspec.Struct, frozen=True):
    """One measurement of one server: MiB/s, CPU seconds per GiB, p99 in ms (-1 where it has none)."""

    row: str
    codec: str
    server: str
    rate: float
    cpu_per_gib: float
    p99: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over so many (3)")
    parser.add_argument("--mib", type=int, default=256, help="record values of each topic, in MiB (256)")
    parser.add_argument("--codecs", default="none,lz4,gzip", help=f"some of {','.join(CODECS)} (none,lz4,gzip)")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks.md"), help="the table is written into this file")
    options = parser.parse_args()
    figures: list[Figure] = []
    servers: list[Server] = [Gateway.start(), Reference.start()]
    try:
        for server in servers:
            _warm_up(server)
        for number in range(options.rounds):
            figures += _round(number, servers if number % 2 == 0 else servers[::-1], options.mib, options.codecs.split(","))
        for server in servers:
            print(f"# {server.name}: at most {server.memory_bytes() >> 20} MiB resident", file=sys.stderr)
    finally:
        for server in servers:
            server.stop()
    table = _table(figures)
    print(table)
    _write(options.out, table, f'make bench ARGS="--rounds {options.rounds} --mib {options.mib} --codecs {options.codecs}"')
    return 0


def _round(number: int, servers: list[Server], mib: int, codecs: list[str]) -> Iterator[Figure]:
    """One round: every step is done on one server and then on the other. Both go on running from round to round, as servers do."""
    for codec in codecs:
        topic = f"bench-{number}-{codec}"
        for server in servers:
            yield _produce(server, topic, mib, codec)
        for row, client in READERS.items():
            if codec == "zstd" and client != "3.9.2":
                continue
            for server in servers:
                yield _fetch(server, row, topic, mib, codec, client)
    for server in servers:
        yield _latency(server, f"latency-{number}")


def _records(mib: int) -> int:
    return mib * (1 << 20) // RECORD_BYTES


def _warm_up(server: Server) -> None:
    """Kafka's code is compiled while it runs: without this it would be measured cold."""
    for codec in ("none", "gzip"):
        topic = f"warm-{codec}"
        produce(server.bootstrap, topic, _records(WARM_UP_MIB), codec)
        for client in READERS.values():
            fetch(server.bootstrap, topic, _records(WARM_UP_MIB), client)


def _measure(server: Server, mib: int, work: Callable[[], float]) -> tuple[float, float]:
    before = server.cpu_seconds()
    rate = work()
    return rate, (server.cpu_seconds() - before) * 1024 / mib


def _produce(server: Server, topic: str, mib: int, codec: str) -> Figure:
    outcome = []

    def work() -> float:
        outcome.append(produce(server.bootstrap, topic, _records(mib), codec))
        return outcome[0].rate

    rate, cpu = _measure(server, mib, work)
    return _said(Figure("produce", codec, server.name, rate, cpu, outcome[0].p99))


def _fetch(server: Server, row: str, topic: str, mib: int, codec: str, client: str) -> Figure:
    rate, cpu = _measure(server, mib, lambda: fetch(server.bootstrap, topic, _records(mib), client))
    return _said(Figure(row, codec, server.name, rate, cpu, -1))


def _latency(server: Server, topic: str) -> Figure:
    """At a steady 2,000 records/s, where p99 is the server's and not the producer's own queue."""
    count = LATENCY_RATE * LATENCY_SECONDS
    mib = count * RECORD_BYTES / (1 << 20)
    before = server.cpu_seconds()
    outcome = produce(server.bootstrap, topic, count, "none", LATENCY_RATE)
    cpu = (server.cpu_seconds() - before) * 1024 / mib
    return _said(Figure(f"produce at {LATENCY_RATE} records/s", "none", server.name, outcome.rate, cpu, outcome.p99))


def _said(figure: Figure) -> Figure:
    print(f"# {figure.row}, {figure.codec}, {figure.server}: {figure.rate:.0f} MiB/s, {figure.cpu_per_gib:.2f} CPU s/GiB", file=sys.stderr)
    return figure


def _table(figures: list[Figure]) -> str:
    lines = [
        "| step | codec | kopgate CPU s/GiB | Kafka CPU s/GiB | ratio (min-max) | kopgate MiB/s | Kafka MiB/s | kopgate p99 ms | Kafka p99 ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row, codec in dict.fromkeys((figure.row, figure.codec) for figure in figures):
        ours = [figure for figure in figures if (figure.row, figure.codec, figure.server) == (row, codec, Gateway.name)]
        theirs = [figure for figure in figures if (figure.row, figure.codec, figure.server) == (row, codec, Reference.name)]
        ratios = [a.cpu_per_gib / b.cpu_per_gib for a, b in zip(ours, theirs, strict=True) if b.cpu_per_gib]
        cells = [
            row,
            codec,
            f"{median(f.cpu_per_gib for f in ours):.2f}",
            f"{median(f.cpu_per_gib for f in theirs):.2f}",
            f"**{median(ratios):.2f}** ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{median(f.rate for f in ours):.0f}",
            f"{median(f.rate for f in theirs):.0f}",
            *("-" if side[0].p99 < 0 else f"{median(f.p99 for f in side):.0f}" for side in (ours, theirs)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def _write(out: Path, table: str, made_by: str) -> None:
    """Put the table between its marks, keeping what people wrote around it."""
    said = f"Measured on {datetime.now(UTC):%Y-%m-%d} with `{made_by}`, Python {platform.python_version()}, {platform.machine()}."
    block = f"{BEGIN}\n{said}\n\n{table}\n{END}"
    text = out.read_text() if out.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(before + block + after)


if __name__ == "__main__":
    sys.exit(main())
