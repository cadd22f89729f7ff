"""`make bench`: the gateway beside Apache Kafka, alternating between them, medians of several rounds, as ratios.

For every codec fresh topics of one partition and of several are produced into. The one of one partition is then read three times: by today's
client as it is stored, by 0.10.2.2, which gets format 1, and by 0.9.0.1, which gets format 0. At last one producer sends at a steady pace. Where a
row says "both sync", Kafka has the topic config flush.messages=1: it too acknowledges only what is on disk, as the gateway always does. What is
compared is the server's CPU seconds per GiB of record values: on a shared machine that says more than speed does, and the ratio of two servers in
one run says more than either figure.

As it is, it takes some 25 minutes on two cores, and up to 9 GiB under $TMPDIR until it ends; both grow with --rounds, --mib, the codecs and the
partitions (--rounds 1 --mib 1024: 35 minutes). What is being run, and how many minutes are left, goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.chart import svg
from bench.measurements import Comparison, Measurement, compare, table
from bench.progress import StepProgress
from bench.servers import COLLECTORS, BenchServer, GatewayServer, KafkaServer
from bench.steps import CODECS, RoundLoad, WarmUpLimits, plan, warm_up

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"

#: What a store takes of the disk for a byte of record values, at most: headers, pages that are not full, indexes.
DISK_BYTES_PER_BYTE = 1.3


def main() -> int:
    options = _options()
    load = RoundLoad(options.mib, options.codecs, options.partitions)
    figures: list[Measurement] = []
    servers: list[BenchServer] = []
    try:
        servers.append(GatewayServer.start())
        servers.append(KafkaServer.start(options.collector))
        for server in servers:
            warm_up(server, load, WarmUpLimits(), _say)
        steps = plan(servers, options.rounds, load)
        progress = StepProgress([step.seconds for step in steps], time.monotonic)
        for step in steps:
            print(progress.next(step.name), file=sys.stderr)
            figures.append(step.run())
            _say(str(figures[-1]))
        resident = ", ".join(
            f"{server.name} {server.memory_bytes() >> 20} MiB" for server in servers
        )
    finally:
        for server in servers:
            server.stop()
    comparisons = compare(figures, GatewayServer.name, KafkaServer.name)
    print(table(comparisons))
    _write(options.out, comparisons, f"{_conditions(options)} Resident at most: {resident}.")
    return 0


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=_at_least_one, default=3, help="medians are taken over so many (3)"
    )
    parser.add_argument(
        "--mib", type=_at_least_one, default=128, help="record values of each topic, in MiB (128)"
    )
    parser.add_argument(
        "--codecs",
        type=_codecs,
        default="none,lz4,gzip",
        help=f"some of {','.join(CODECS)} (none,lz4,gzip)",
    )
    parser.add_argument(
        "--partitions",
        type=_partitions,
        default="1,6",
        help="of the topics produced into; without 1 nothing is fetched (1,6)",
    )
    parser.add_argument(
        "--collector",
        choices=COLLECTORS,
        default="g1",
        help="of Kafka's JVM; g1 with the flags of Kafka's own scripts (g1)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("docs/benchmarks.md"),
        help="the table goes into this file, a chart beside it as .svg",
    )
    options = parser.parse_args()
    load = RoundLoad(options.mib, options.codecs, options.partitions)
    warm_up_mib = len(load.codecs) * min(WarmUpLimits().mib, load.mib) * WarmUpLimits().limit
    needed = (
        int(2 * (options.rounds * load.mib_per_round() + warm_up_mib) * DISK_BYTES_PER_BYTE) << 20
    )
    if needed > (free := shutil.disk_usage(tempfile.gettempdir()).free):
        parser.error(
            f"this needs up to {needed >> 30} GiB in {tempfile.gettempdir()}, where {free >> 30} GiB are free"
        )
    return options


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("it must be 1 or more")
    return number


def _partitions(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(_at_least_one, text.split(","))))


def _codecs(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in CODECS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {','.join(CODECS)}")
    return names


def _conditions(options: argparse.Namespace) -> str:
    arguments = (
        f"--rounds {options.rounds} --mib {options.mib} --codecs {','.join(options.codecs)} "
        f"--partitions {','.join(map(str, options.partitions))} --collector {options.collector}"
    )
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench ARGS="{arguments}"`, Python {platform.python_version()}, '
        f"{os.cpu_count()} cores of {platform.machine()}."
    )


def _write(out: Path, comparisons: list[Comparison], said: str) -> None:
    """Put the table into the file, and the chart beside it."""
    title = "CPU seconds of kopgate for one of Kafka's, per GiB of record values"
    chart = out.with_suffix(".svg")
    text = out.read_text() if out.exists() else "# Benchmarks\n\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    chart.write_text(svg(comparisons, title))
    out.write_text(
        replace_between_marks(text, f"{said}\n\n![{title}]({chart.name})\n\n{table(comparisons)}")
    )


def replace_between_marks(text: str, block: str, begin: str = BEGIN, end: str = END) -> str:
    """The text with the block between its marks, which are put at its end where they are missing; what people wrote around them is kept."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{block}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
