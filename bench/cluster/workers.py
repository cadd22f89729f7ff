"""`make bench-workers`: how much more several workers of one machine carry than one.

On a machine with few cores, Pulsar and the producers need what a second worker would use. So each
worker gets a small part of a core (--cores), which a control group enforces, and the others have
the rest. If the workers use all they get and the others do not, the rates of N workers and of one
show the factor that N workers have where each has a core. With --cores 0 there is no limit.

Producers of librdkafka send batches of 16 KiB at full speed, acks=all, five requests in flight per
connection. Each writes to one of 12 partitions: a producer that writes to all of them in turn waits
for the slower worker, and then sends the other one batches that are not full, which cost more CPU
time per byte. Numbers of workers take turns in each round. Only the seconds after the warm-up
count. Control groups require root.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from confluent_kafka import Producer

from bench.__main__ import replace_between_marks
from bench.clients import BATCH_BYTES, LINGER_MS, RECORD_BYTES
from bench.cluster.cpu_limits import each_limited
from bench.progress import StepProgress
from bench.servers import cpu_seconds, is_balanced, shards_led
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways
from tests.peers.cluster.load import create_topic
from tests.testkit import jvm
from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import Pulsar
from tests.testkit.tenant import Tenant

BEGIN, END = "<!-- workers: begin -->", "<!-- workers: end -->"
TOPIC = "bench-workers"
PARTITIONS = 12
#: Two per partition keep each worker busy all the time.
PRODUCERS = 2 * PARTITIONS
#: Records in a producer's queue: enough for full batches in flight and waiting.
QUEUED = 10 * BATCH_BYTES // RECORD_BYTES
IDLE_SECONDS = 5
WARM_UP_SECONDS = 10
#: Time of a start, for the estimate of the time left.
START_SECONDS = 8


class WorkersResult(msgspec.Struct, frozen=True):
    """One run. `cores` are CPU seconds per second, of all workers together and of Pulsar.

    `idle_cores` are those of the workers before the producers start.
    """

    workers: int
    mib_per_second: float
    cores: float
    pulsar_cores: float
    load_cores: float
    idle_cores: float

    @property
    def cpu_per_gib(self) -> float:
        return self.cores / self.mib_per_second * 1024


class FullSpeedProducers:
    """Producers in threads, which send until the context ends. `acknowledged` counts records."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._counts = [0] * PRODUCERS
        self._errors: list[str] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(PRODUCERS)
        ]

    @property
    def acknowledged(self) -> int:
        """Raises RuntimeError if a record was refused."""
        if self._errors:
            raise RuntimeError(f"a record was refused: {self._errors[0]}")
        return sum(self._counts)

    def __enter__(self) -> FullSpeedProducers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "max.in.flight.requests.per.connection": 5,
                "queue.buffering.max.messages": QUEUED,
                "log_level": 0,
            }
        )

        def answered(error: Any, message: Any) -> None:
            if error is None:
                self._counts[number] += 1
            else:
                self._errors.append(str(error))

        value, partition = os.urandom(RECORD_BYTES), number % PARTITIONS
        while not self._is_over.is_set():
            try:
                producer.produce(TOPIC, value, partition=partition, on_delivery=answered)
            except BufferError:
                producer.poll(0.1)
        producer.purge()
        producer.flush(10)


@contextmanager
def started(tenant: Tenant, workers: int) -> Iterator[tuple[str, list[int]]]:
    """A gateway with this number of workers. Returns its addresses and the pids of the workers."""
    folder = Path(tempfile.mkdtemp(prefix="kopgate-bench-"))
    others = [f"127.0.0.1:{port}" for port in free_ports(workers - 1)] if workers > 1 else []
    listeners = [word for one in others for word in ("--listener", f"PLAINTEXT://{one}")]
    options = (*in_pulsar(tenant, None), "--workers", str(workers), *listeners)
    gateways = Gateways(folder, options, 1, {})
    try:
        gateways.launch()
        gateways.until(lambda: shards_led(gateways), lambda led: is_balanced(led, workers))
        pid = gateways.nodes[1].process.pid
        yield ",".join([gateways.bootstrap, *others]), children(pid) if workers > 1 else [pid]
        gateways.end()
    finally:
        gateways.kill()
        shutil.rmtree(folder, ignore_errors=True)


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def measure(pulsar: Pulsar, workers: int, cores: float, seconds: int) -> WorkersResult:
    """Run the producers on a new gateway, of whose workers each has at most `cores`, or no limit
    if that is 0.
    """

    def now() -> tuple[float, float, float, float, float]:
        return (
            time.monotonic(),
            load.acknowledged,
            sum(map(cpu_seconds, pids)),
            cpu_seconds(pulsar.pid),
            time.process_time(),
        )

    with started(pulsar.tenant(), workers) as (bootstrap, pids):
        create_topic(bootstrap, TOPIC, PARTITIONS)
        idle_before = sum(map(cpu_seconds, pids))
        time.sleep(IDLE_SECONDS)
        idle = (sum(map(cpu_seconds, pids)) - idle_before) / IDLE_SECONDS
        limits = each_limited(pids, cores) if cores else nullcontext()
        with limits, FullSpeedProducers(bootstrap) as load:
            time.sleep(WARM_UP_SECONDS)
            before = now()
            time.sleep(seconds)
            took, records, *used = (end - begin for begin, end in zip(before, now(), strict=True))
    mib = records * RECORD_BYTES / (1 << 20)
    return WorkersResult(workers, mib / took, *(one / took for one in used), idle)


def table(results: Sequence[WorkersResult], cores: float) -> str:
    """Medians of all runs with the same number of workers, compared with the smallest number."""
    counts = sorted({one.workers for one in results})
    base = [one for one in results if one.workers == counts[0]]
    heads = (
        "workers",
        "limit of each",
        "MiB/s (min-max)",
        f"times {counts[0]}",
        "CPU s/GiB",
        "cores: workers",
        "workers before the load",
        "Pulsar",
        "producers",
    )
    rows = [heads, ["---"] * len(heads)]
    for count in counts:
        runs = [one for one in results if one.workers == count]
        rates = [one.mib_per_second for one in runs]
        rows.append(
            [
                str(count),
                f"{cores:g} cores" if cores else "none",
                f"{median(rates):.1f} ({min(rates):.1f}-{max(rates):.1f})",
                f"**{median(rates) / median(one.mib_per_second for one in base):.2f}**",
                f"{median(one.cpu_per_gib for one in runs):.1f}",
                *(
                    f"{median(getattr(one, name) for one in runs):.2f}"
                    for name in ("cores", "idle_cores", "pulsar_cores", "load_cores")
                ),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-workers ARGS=",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers (1 2)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each number (5)")
    parser.add_argument("--seconds", type=int, default=20, help="measured time of a run (20)")
    parser.add_argument("--cores", type=float, default=0.25, help="limit of each worker (0.25)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="put the table into this file")
    options = parser.parse_args(arguments)
    results = []
    counts = options.workers * options.rounds
    guesses = [START_SECONDS + IDLE_SECONDS + WARM_UP_SECONDS + options.seconds] * len(counts)
    progress = StepProgress(guesses, time.monotonic)
    with Pulsar.start(memory="1g", flags=jvm.SERIAL) as pulsar:
        for count in counts:
            print(progress.next(f"{count} workers"), file=sys.stderr)
            results.append(measure(pulsar, count, options.cores, options.seconds))
            print(f"# {results[-1]}", file=sys.stderr, flush=True)
    block = f"{_heading(arguments)}\n\n{table(results, options.cores)}"
    print(block)
    if options.out:
        options.out.write_text(replace_between_marks(options.out.read_text(), block, BEGIN, END))
    return 0


def _heading(arguments: Sequence[str]) -> str:
    options = f' ARGS="{" ".join(arguments)}"' if arguments else ""
    return (
        f"Measured with `make bench-workers{options}`, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}, Pulsar and producers on the same cores."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
