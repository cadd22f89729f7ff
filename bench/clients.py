"""The load: Kafka's own producer benchmark, a producer that keeps a steady pace, and a consumer of any Java client version that assigns its
partition itself."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from kafka.admin import KafkaAdminClient

from tests.peers import jvm
from tests.peers.cache import cached, command, fingerprint, maven_jars
from tests.peers.kafka import TOOLS, VERSION, java

SOURCES = Path(__file__).parent / "java"
RECORD_BYTES = 1024
BATCH_BYTES = 16384
LINGER_MS = 5

PACE = 2000
"""Records a second of the steady producer: so few that a latency is the server's and not that of the producer's own queue."""
PACE_WARM_UP_SECONDS = 10
PACE_SECONDS = 15

START_SECONDS = 120
"""What a client may take besides its records."""
SLOWEST_MIB_PER_SECOND = 2
"""A client that is slower hangs: everything here moves more than five times as much."""

#: The line at the end; those that come every five seconds until then have no percentiles.
_SUMMARY = re.compile(r"(?P<records>\d+) records sent, .*\((?P<rate>[\d.]+) MB/sec\).* 99th")


class ClientFailed(Exception):
    """A client went wrong or hung; the message ends with the tail of what it printed."""


class Latencies(msgspec.Struct, frozen=True):
    """From send() to the acknowledgement, in ms, the linger included."""

    p50: float
    p99: float


def record_count(mib: float) -> int:
    return int(mib * (1 << 20)) // RECORD_BYTES


def create(
    bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None
) -> None:
    """Make a topic; returns when every partition of it has a leader."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics(
            {
                topic: {
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": dict(configs or {}),
                }
            },
            wait_for_metadata=True,
        )
    finally:
        admin.close()


def produce(bootstrap: str, topic: str, records: int, codec: str) -> float:
    """Kafka's kafka-producer-perf-test, as fast as it goes: MiB of record values per second."""
    argv = java(
        TOOLS["kafka-producer-perf-test"],
        "--topic", topic,
        "--num-records", str(records),
        "--record-size", str(RECORD_BYTES),
        "--throughput", "-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        f"linger.ms={LINGER_MS}",
        f"batch.size={BATCH_BYTES}",
        f"compression.type={codec}",
        log_level="ERROR",
    )  # fmt: skip
    return rate_of(run(argv, records), records)


def rate_of(printed: str, records: int) -> float:
    """What the tool's last summary says. Raises ClientFailed unless it is of so many records: it goes on when sends fail, and ends with 0."""
    summaries = [match for line in printed.splitlines() if (match := _SUMMARY.search(line))]
    if not summaries or int(summaries[-1]["records"]) != records:
        raise ClientFailed(f"not all of {records} records were sent: {printed[-2000:]}")
    return float(summaries[-1]["rate"])


def produce_at_pace(bootstrap: str, topic: str, marked: Callable[[], None]) -> Latencies:
    """One record after the other at PACE. The first ones warm up what is new; `marked` is called when the others begin and when they are through."""
    numbers = (RECORD_BYTES, PACE, PACE_WARM_UP_SECONDS, PACE_SECONDS, LINGER_MS, BATCH_BYTES)
    argv = [*_own_program("Paced", VERSION), bootstrap, topic, *map(str, numbers)]
    printed = run(
        argv,
        PACE * (PACE_WARM_UP_SECONDS + PACE_SECONDS),
        lambda line: marked() if line == "mark\n" else None,
    )
    p50, p99 = printed.split()[-2:]
    return Latencies(float(p50), float(p99))


def fetch(bootstrap: str, topic: str, records: int, client: str) -> float:
    """MiB of record values per second, read by Java kafka-clients of that version."""
    size, seconds = run(
        [*_own_program("Fetch", client), bootstrap, topic, str(records)], records
    ).split()[-2:]
    return int(size) / (1 << 20) / float(seconds)


def _own_program(name: str, client: str) -> list[str]:
    """The argv of one of our programs, compiled against kafka-clients of that version."""
    jars = maven_jars((f"org.apache.kafka:kafka-clients:{client}", "org.slf4j:slf4j-nop:1.7.36"))
    source = SOURCES / f"{name}.java"

    def build(folder: Path) -> None:
        command(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), str(source)])

    classes = cached(f"bench/{fingerprint((client, source.read_bytes()))}", build)
    return jvm.argv([classes, f"{jars}/*"], name, flags=["-Xmx512m", *jvm.SERIAL])


def run(
    argv: Sequence[str], records: int, printed: Callable[[str], None] = lambda line: None
) -> str:
    """What the client printed; `printed` gets each line when it comes. Raises ClientFailed, also when so few records take too long."""
    limit = START_SECONDS + records * RECORD_BYTES / (1 << 20) / SLOWEST_MIB_PER_SECOND
    lines: list[str] = []
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                printed(line)
                lines.append(line)
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
    text = "".join(lines)
    if code:
        raise ClientFailed(
            f"{' '.join(argv)} ended with {code} (its time is {limit:.0f} s): {text[-2000:]}"
        )
    return text
