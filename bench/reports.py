"""`make bench-reports`: time and memory to ingest and report 1 and 10 million usage rows.

The logs are generated: 300 applications on 600 connections for 30 days, six requests per connection
and minute, one compressed file per hour. Bytes and latencies are random, because they vary most in
real logs. Each size runs in a separate process, so that its peak memory can be measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from isal import igzip

from bench.__main__ import replace_between_marks

BEGIN, END = "<!-- reports: begin -->", "<!-- reports: end -->"
DAYS, APPLICATIONS, CONNECTIONS = 30, 300, 600
#: Api key, oldest and newest version, and whether its rows have a topic.
REQUESTS = [
    (0, 1, 9, True),
    (1, 3, 12, True),
    (3, 0, 9, False),
    (8, 2, 8, False),
    (9, 1, 7, False),
    (12, 0, 4, False),
]
HOUR = 3_600_000
MEMORY = "2g"


def logs(folder: Path, rows: int, now: datetime) -> int:
    """Write a log of about `rows` usage rows. Returns its uncompressed size in bytes."""
    minutes = max(1, round(rows / (DAYS * 24 * CONNECTIONS * len(REQUESTS))))
    connections = (
        CONNECTIONS
        if rows >= DAYS * 24 * CONNECTIONS * len(REQUESTS)
        else max(1, rows // (DAYS * 24 * len(REQUESTS)))
    )
    first = int(
        (now - timedelta(days=DAYS)).replace(minute=0, second=0, microsecond=0).timestamp() * 1000
    )
    encode = msgspec.json.Encoder().encode
    size = sequence = 0
    for hour in range(DAYS * 24):
        begin = first + hour * HOUR
        at = datetime.fromtimestamp(begin / 1000, UTC)
        place = folder / f"date={at:%Y-%m-%d}" / f"hour={at:%H}"
        place.mkdir(parents=True, exist_ok=True)
        lines = []
        for row in _rows(begin, minutes, connections, opens=hour == 0):
            lines.append(encode(row | {"sequence": sequence}))
            sequence += 1
        content = b"\n".join(lines) + b"\n"
        size += len(content)
        (place / f"1-mh0000-{hour}.jsonl.gz").write_bytes(igzip.compress(content, 1))
    return size


def _rows(begin: int, minutes: int, connections: int, opens: bool) -> Iterator[dict[str, Any]]:
    for number in range(connections):
        application = number % APPLICATIONS
        both = {
            "v": 1,
            "node": 1,
            "cluster": "bench",
            "connection": f"1-mh0000-{number}",
            "listener": "PLAINTEXT",
            "principal": f"User:{application % 40}",
        }
        if opens:
            yield both | _logged_in(begin, number, application)
        chance = Random(begin + number)
        for minute in range(minutes):
            end = begin + minute * 60_000 + 59_000
            yield from (both | row for row in _used_in_a_minute(end, application, chance))


def _logged_in(at: int, number: int, application: int) -> dict[str, Any]:
    return {
        "kind": "connection",
        "at": at,
        "event": "authenticated",
        "peer": f"10.0.{application % 250}.{number % 250}",
        "protocol": "SASL_SSL",
        "mechanism": "PLAIN",
        "client_ids": [f"application-{application}"],
    }


def _used_in_a_minute(end: int, application: int, chance: Random) -> Iterator[dict[str, Any]]:
    # Every third application uses the versions of Kafka 0.10; the others those of 2.8, with a name.
    old = application % 3 == 0
    named = {} if old else {"software": "apache-kafka-java", "software_version": "2.8.2"}
    for key, oldest, newest, has_topic in REQUESTS:
        latencies = [chance.getrandbits(4) for _ in range(4)]
        of_topic = (
            _of_topic(key, application, old)
            if has_topic
            else {"requests": sum(latencies), "group": f"group-{application}"}
        )
        yield (
            named
            | of_topic
            | {
                "kind": "usage",
                "at": end,
                "began": end - 59_000,
                "client_id": f"application-{application}",
                "api_key": key,
                "api_version": oldest if old else newest,
                "bytes_in": 1000 + chance.getrandbits(16),
                "bytes_out": 500 + chance.getrandbits(10),
                "latency_us_sum": chance.getrandbits(18),
                "latency_us_buckets": [*latencies, 0, 0, 0, 0, 0, 0, 0, 0],
            }
        )


def _of_topic(key: int, application: int, old: bool) -> dict[str, Any]:
    row = {
        "topic": f"topic-{application % 100}",
        "records": 50,
        f"magic_{'out' if key else 'in'}": {"1" if old else "2": 5},
    }
    converted = {
        "conversions": 5,
        "converted_records": 50,
        "converted_bytes": 9000,
        "conversion_cpu_us": 70,
    }
    return row | converted if old and key else row


def measure(rows: int, folder: Path, cores: int) -> dict[str, Any]:
    """Elapsed and CPU seconds of ingest and report, and peak memory of Spark and Python in MiB."""
    from reports.analysis import facts
    from reports.ingest.ingest_job import ingest, stored
    from reports.ingest.schema import USAGE
    from reports.run import ReportRequest, run
    from reports.spark_session import open_session

    now = datetime.now(UTC)
    size = logs(folder / "logs", rows, now)
    packed = sum(path.stat().st_size for path in (folder / "logs").rglob("*.gz"))
    spark = open_session(f"local[{cores}]", MEMORY)
    order = ReportRequest(folder / "logs", folder / "out", facts.load_target("kafka-4.0"))
    processes = [os.getpid(), *_with_children(spark.sparkContext._gateway.proc.pid)]
    began, began_cpu = time.monotonic(), _cpu(processes)
    ingest(spark, folder / "logs", order.tables, now)
    taken, taken_cpu = time.monotonic(), _cpu(processes)
    run(spark, order, now)
    reported, reported_cpu = time.monotonic(), _cpu(processes)
    found = stored(spark, order.tables, USAGE).count()
    tables = sum(path.stat().st_size for path in (folder / "out" / "tables").rglob("*.parquet"))
    peaks = {"spark_mib": _peak(processes[1:]), "python_mib": _peak(processes[:1])}
    spark.stop()
    seconds = {"ingest": taken - began, "report": reported - taken}
    cpu = {"ingest_cpu": taken_cpu - began_cpu, "report_cpu": reported_cpu - taken_cpu}
    return {
        "rows": found,
        "json": size,
        "packed": packed,
        "tables": tables,
        **seconds,
        **cpu,
        **peaks,
    }


def _with_children(pid: int) -> list[int]:
    """The process and its children, because PySpark may start Java through a shell."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _cpu(pids: list[int]) -> float:
    """CPU seconds used by the processes."""
    ticks = [
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13] for pid in pids
    ]
    return sum(int(tick) for pair in ticks for tick in pair) / os.sysconf("SC_CLK_TCK")


def _peak(pids: list[int]) -> int:
    lines = [
        line
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return sum(int(line.split()[1]) for line in lines) // 1024


def as_markdown(measured: list[dict[str, Any]], line: str) -> str:
    head = (
        "| usage rows | JSON / compressed / tables, MiB | ingest: s (rows/s), CPU s | report: s "
        "(rows/s), CPU s | peak MiB: Spark, Python |"
    )
    rows = [head, "| --- | --- | --- | --- | --- |"]
    for one in measured:
        sizes = " / ".join(f"{one[name] / 2**20:,.0f}" for name in ("json", "packed", "tables"))
        speeds = [
            f"{one[name]:.0f} ({one['rows'] / one[name]:,.0f}), {one[f'{name}_cpu']:.0f}"
            for name in ("ingest", "report")
        ]
        rows.append(
            f"| {one['rows']:,} | {sizes} | {' | '.join(speeds)} | {one['spark_mib']:,}, "
            f"{one['python_mib']:,} |"
        )
    return "\n".join([line, "", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.reports", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path, help="document whose marked part is replaced")
    given = parser.parse_args()
    measured = []
    for rows in given.rows:
        with (
            tempfile.TemporaryDirectory() as folder,
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            measured.append(pool.apply(measure, (rows, Path(folder), given.cores)))
        sys.stderr.write(json.dumps(measured[-1]) + "\n")
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    sizes = " ".join(map(str, given.rows))
    line = (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-reports ARGS="--rows {sizes} '
        f'--cores {given.cores}"`, '
        f"Python {platform.python_version()}, PySpark {version('pyspark')}, {MEMORY} for Spark, "
        f"load average after it {load}."
    )
    text = as_markdown(measured, line)
    if given.out:
        given.out.write_text(
            replace_between_marks(given.out.read_text("utf-8"), text, BEGIN, END), "utf-8"
        )
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
