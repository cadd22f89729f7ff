"""`make bench`: CPU time of the gateway beside Apache Kafka under the same load.

The servers take turns at every step, and the table has medians over several rounds.

- Produce: for each codec, into new topics with one partition and with several.
- Fetch: the topic with one partition, by the current client as stored, by 0.10.2.2, which gets
  format 1, and by 0.9.0.1, which gets format 0.
- A producer at a steady pace.
- Produce with batches of one record, as applications send that wait for each record.

With --beside, the gateway of another checkout is measured in the same rounds. The table gets a
column for the ratio to it, and a second table compares it with Kafka. --without-kafka leaves Kafka
out, which is quicker; then the only table compares the two gateways.
With --values json, the records of full batches are JSON events, which compress better than the
letters of Kafka's tool, and the table is a separate one.
With --log-flush os, a gateway with this setting is measured as well, in a separate table.

In rows with "both sync" Kafka's topic has flush.messages=1: like the gateway, it then acknowledges
only what is on disk.

The compared figure is the server's CPU seconds per GiB of record values. On a shared machine it
varies less than throughput, and the ratio of two servers in one run varies less than either.

With the defaults it takes about 25 minutes on two cores and up to 9 GiB under $TMPDIR. Both grow
with --rounds, --mib, the codecs and the partitions (--rounds 1 --mib 1024: 35 minutes). A third
server adds half. Progress and the estimated remaining time go to stderr.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import msgspec

from bench.chart import svg
from bench.clients import write_events
from bench.measurements import Measurement, compare, tables
from bench.progress import StepProgress
from bench.servers import COLLECTORS, BenchGateway, BenchServer, KafkaServer, name_in, running
from bench.steps import CODECS, RoundLoad, WarmUpLimits, plan, warm_up

DOCUMENT = Path("docs/benchmarks.md")
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
BEGIN_JSON, END_JSON = "<!-- bench-json: begin -->", "<!-- bench-json: end -->"

#: Packages of the gateway that may have extension modules.
PACKAGES = ("gateway", "auth", "compat", "records", "storage", "reports")

#: Upper bound of a store's disk bytes per byte of record values: headers, partly filled pages,
#: indexes.
DISK_BYTES_PER_BYTE = 1.3


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        events = None
        if options.values == "json":
            events = Path(folder) / "events"
            write_events(events)
        return _measure(options, msgspec.structs.replace(_load(options), values=events))


def _measure(options: argparse.Namespace, load: RoundLoad) -> int:
    figures: list[Measurement] = []
    with running(server_starts(options)) as servers:
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
    names = [server.name for server in servers]
    peer = names[1] if options.without_kafka else "Kafka"
    beside = None if options.beside is None else name_in(options.beside, BenchGateway.name)
    made = tables(figures, names, peer, beside)
    print(made)
    if (out := file_to_write(options)) is not None:
        said = f"{_conditions(options)} Peak resident memory: {resident}."
        if options.values == "json":
            _write(out, f"{said}\n\n{made}", BEGIN_JSON, END_JSON)
        else:
            title = f"CPU time of kopgate divided by {peer}'s, per GiB of record values"
            chart = out.with_suffix(".svg")
            _write(out, f"{said}\n\n![{title}]({chart.name})\n\n{made}")
            chart.write_text(svg(compare(figures, *names[:2]), title))
    return 0


def server_starts(options: argparse.Namespace) -> list[Callable[[], BenchServer]]:
    """Functions that start the servers: this gateway, then what it is compared with."""
    starts: list[Callable[[], BenchServer]] = [BenchGateway.start]
    if not options.without_kafka:
        starts.append(partial(KafkaServer.start, options.collector, message_max_bytes="1048588"))
    if options.beside is not None:
        starts.append(partial(BenchGateway.start, checkout=options.beside))
    if options.log_flush == "os":
        starts.append(_unsynced_gateway)
    return starts


def _unsynced_gateway() -> BenchServer:
    server = BenchGateway.start(arguments=("--set", "log_flush=os"))
    server.name += ", log_flush=os"
    return server


def file_to_write(options: argparse.Namespace) -> Path | None:
    """The file for the tables; None if they are only printed."""
    out: Path | None = options.out
    is_published = options.beside is None and options.log_flush == "fsync"
    if out is None and is_published and not options.only_small:
        return DOCUMENT
    return out


def _load(options: argparse.Namespace) -> RoundLoad:
    return RoundLoad(
        options.mib, options.codecs, options.partitions, options.small, options.only_small
    )


def _say(line: str) -> None:
    print(f"# {line}", file=sys.stderr)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=at_least_one, default=3, help="number of rounds (3)")
    parser.add_argument(
        "--mib", type=at_least_one, default=128, help="record values of each topic, in MiB (128)"
    )
    parser.add_argument(
        "--codecs",
        type=_codecs,
        default="none,lz4,gzip",
        help=f"comma-separated, of {','.join(CODECS)} (none,lz4,gzip)",
    )
    parser.add_argument(
        "--partitions",
        type=_partitions,
        default="1,6",
        help="partitions of the topics; without 1 nothing is fetched (1,6)",
    )
    parser.add_argument(
        "--small",
        type=_partitions,
        default="1,16",
        help="partitions of the topics with batches of one record of 1 KiB and linger.ms=1 (1,16)",
    )
    parser.add_argument(
        "--values",
        choices=("letters", "json"),
        default="letters",
        help="record values: random capital letters, or JSON events of 1 KiB (letters)",
    )
    parser.add_argument(
        "--only-small",
        action="store_true",
        help="measure only those; the table is only printed, unless --out is given",
    )
    parser.add_argument(
        "--log-flush",
        choices=("fsync", "os"),
        default="fsync",
        help="os: measure a gateway with log_flush=os, too; the tables are only printed, unless "
        "--out is given (fsync)",
    )
    parser.add_argument(
        "--collector",
        choices=COLLECTORS,
        default="g1",
        help="garbage collector of Kafka's JVM; g1 with the flags of its scripts (g1)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"file for the tables; the chart is written beside it as .svg ({DOCUMENT})",
    )
    add_beside_option(parser, "; the tables are only printed, unless --out is given")
    parser.add_argument(
        "--without-kafka",
        action="store_true",
        help="with --beside, measure the two gateways only",
    )
    options = parser.parse_args(arguments)
    if options.without_kafka and options.beside is None:
        parser.error("--without-kafka needs --beside: there is nothing to compare with")
    _check_disk_space(parser, options)
    return options


def add_beside_option(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add --beside CHECKOUT, for all benchmarks that can measure another version of the sources.

    `more` is appended to the help of the option.
    """
    parser.add_argument(
        "--beside",
        type=built_checkout,
        metavar="CHECKOUT",
        help="measure the gateway of another checkout as well, in turns with this one (build its "
        f"extension modules first: `python setup.py build_ext --inplace`){more}",
    )


def checkouts(options: argparse.Namespace) -> list[Path | None]:
    """Checkouts whose gateways are measured: this one, which is None, and that of --beside."""
    return [None] if options.beside is None else [None, options.beside]


def built_checkout(text: str) -> Path:
    """A folder with the gateway's sources and their extension modules.

    Raises ArgumentTypeError.
    """
    folder = Path(text)
    if not (folder / "gateway" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text!r} has no gateway/__init__.py")
    for source in (path for name in PACKAGES for path in (folder / name).rglob("*.pyx")):
        # Without them the gateway runs, too, but in pure Python.
        if not any(source.with_suffix(suffix).exists() for suffix in EXTENSION_SUFFIXES):
            raise argparse.ArgumentTypeError(
                f"{source} is not compiled; run `python setup.py build_ext --inplace` in {text!r}"
            )
    return folder


def _check_disk_space(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    load = _load(options)
    warm_up_mib = len(load.codecs) * min(WarmUpLimits().mib, load.mib) * WarmUpLimits().limit
    mib = (options.rounds * load.mib_per_round() + warm_up_mib) * DISK_BYTES_PER_BYTE
    needed = int(mib * len(server_starts(options))) << 20
    if needed > (free := shutil.disk_usage(tempfile.gettempdir()).free):
        parser.error(
            f"not enough disk space: needs up to {needed >> 30} GiB in {tempfile.gettempdir()}, "
            f"{free >> 30} GiB are free"
        )


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _partitions(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(map(at_least_one, text.split(","))))


def _codecs(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in CODECS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {','.join(CODECS)}")
    return names


def _conditions(options: argparse.Namespace) -> str:
    arguments = (
        f"--rounds {options.rounds} --mib {options.mib} --codecs {','.join(options.codecs)} "
        f"--partitions {','.join(map(str, options.partitions))} "
        f"--small {','.join(map(str, options.small))} --values {options.values} "
        f"--collector {options.collector}"
    )
    arguments += " --log-flush os" if options.log_flush == "os" else ""
    arguments += " --only-small" if options.only_small else ""
    arguments += f" --beside {options.beside}" if options.beside is not None else ""
    arguments += " --without-kafka" if options.without_kafka else ""
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench ARGS="{arguments}"`, Python '
        f"{platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}."
    )


def _write(out: Path, block: str, *marks: str) -> None:
    text = out.read_text() if out.exists() else "# Benchmarks\n\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(replace_between_marks(text, block, *marks))


def replace_between_marks(text: str, block: str, begin: str = BEGIN, end: str = END) -> str:
    """Replace the text between the marks, or append marks and block if there are none."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    block = "\n".join(map(_wrap, block.split("\n")))
    return f"{before}{begin}\n{block}\n{end}{after}"


def _wrap(line: str) -> str:
    """Wrap a line of prose; tables and images stay on one line."""
    if line.startswith(("|", "![")):
        return line
    return textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main())
