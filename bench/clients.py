"""Java clients that create the load: Kafka's producer benchmark, a paced producer, a consumer."""

from __future__ import annotations

import json
import random
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from kafka.admin import KafkaAdminClient

from tests.testkit import jvm
from tests.testkit.cache import maven_jars
from tests.testkit.kafka import TOOLS, VERSION, java

SOURCES = Path(__file__).parent / "java"
JVM_FLAGS = jvm.SERIAL
RECORD_BYTES = 1024
BATCH_BYTES = 16384
LINGER_MS = 5

SMALL_BATCH_BYTES = 1024
"""With records of RECORD_BYTES each batch has one record."""
SMALL_LINGER_MS = 1

PACE = 2000
"""Records per second of the paced producer: few enough that its own queue adds no latency."""
PACE_WARM_UP_SECONDS = 10
PACE_SECONDS = 15

EVENTS = 10_000
"""Different JSON events. A producer sends them in random order, so that hardly any is twice in a
batch.
"""

START_SECONDS = 120
"""Time limit of a client, in addition to the time for its records."""
SLOWEST_MIB_PER_SECOND = 2
"""A client is considered hung below this rate; all steps are at least five times as fast."""

#: The last line of the output. Lines printed every five seconds have no percentiles.
_SUMMARY = re.compile(r"(?P<records>\d+) records sent, .*\((?P<rate>[\d.]+) MB/sec\).* 99th")


class ClientFailed(Exception):
    """A client failed or hung. The message ends with the last part of its output."""


class Latencies(msgspec.Struct, frozen=True):
    """From send() to the acknowledgement, in ms, including the linger time."""

    p50: float
    p99: float


def record_count(mib: float) -> int:
    return int(mib * (1 << 20)) // RECORD_BYTES


def create(
    bootstrap: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until every partition has a leader."""
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


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    codec: str,
    *,
    batch_bytes: int = BATCH_BYTES,
    linger_ms: int = LINGER_MS,
    values: Path | None = None,
) -> float:
    """Run kafka-producer-perf-test at full speed. Returns MiB of record values per second.

    The values are random capital letters, or lines of the file `values` (`write_events`).
    """
    sent = ("--record-size", str(RECORD_BYTES)) if values is None else ("--payload-file", values)
    argv = java(
        TOOLS["kafka-producer-perf-test"],
        "--topic", topic,
        "--num-records", str(records),
        *map(str, sent),
        "--throughput", "-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        f"linger.ms={linger_ms}",
        f"batch.size={batch_bytes}",
        f"compression.type={codec}",
        flags=JVM_FLAGS,
        log_level="ERROR",
    )  # fmt: skip
    return rate_of(run(argv, records), records)


def write_events(path: Path) -> None:
    """Write EVENTS lines of RECORD_BYTES: events of a shop as JSON, the same in each run."""
    chance = random.Random(1)
    path.write_text("".join(f"{_event(chance, number)}\n" for number in range(EVENTS)))


def _event(chance: random.Random, number: int) -> str:
    words = ("light", "blue", "cotton", "large", "kitchen", "garden", "set", "of", "two", "steel")
    event = {
        "id": f"{chance.getrandbits(128):032x}",
        "type": chance.choice(("page_view", "search", "add_to_cart", "purchase")),
        "time": 1_700_000_000_000 + 37 * number,
        "user": {"id": chance.randrange(10**6), "country": chance.choice(("DE", "FR", "US"))},
        "session": f"{chance.getrandbits(64):016x}",
        "page": f"https://shop.example/products/{chance.randrange(10**5)}?campaign=autumn",
        "agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "items": [
            {
                "sku": f"SKU-{chance.randrange(10**6):06d}",
                "name": " ".join(chance.choices(words, k=4)),
                "quantity": chance.randint(1, 5),
                "price": chance.randrange(10**4) / 100,
            }
            for _ in range(4)
        ],
        "text": "",
    }
    missing = RECORD_BYTES - len(json.dumps(event))
    assert missing >= 0
    event["text"] = " ".join(chance.choices(words, k=RECORD_BYTES))[:missing]
    return json.dumps(event)


def rate_of(printed: str, records: int) -> float:
    """The rate in the tool's last summary line.

    Raises ClientFailed unless the line is about `records` records: the tool continues when sends
    fail, and exits with 0.
    """
    summaries = [match for line in printed.splitlines() if (match := _SUMMARY.search(line))]
    if not summaries or int(summaries[-1]["records"]) != records:
        raise ClientFailed(f"fewer than {records} records were sent: {printed[-2000:]}")
    return float(summaries[-1]["rate"])


def produce_at_pace(bootstrap: str, topic: str, marked: Callable[[], None]) -> Latencies:
    """Send records at PACE. `marked` is called when the warm-up has ended and after the last
    record.
    """
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
    """Read `records` records with Java kafka-clients of version `client`. Returns MiB/s of record
    values.
    """
    size, seconds = run(
        [*_own_program("Fetch", client), bootstrap, topic, str(records)], records
    ).split()[-2:]
    return int(size) / (1 << 20) / float(seconds)


def _own_program(name: str, client: str) -> list[str]:
    """Command line of a program in bench/java, compiled against this version of kafka-clients."""
    jars = maven_jars((f"org.apache.kafka:kafka-clients:{client}", "org.slf4j:slf4j-nop:1.7.36"))
    return jvm.argv([f"{jars}/*"], SOURCES / f"{name}.java", flags=["-Xmx512m", *JVM_FLAGS])


def run(
    argv: Sequence[str], records: int, printed: Callable[[str], None] = lambda line: None
) -> str:
    """Run a client and return its output; `printed` is called for each line as it arrives.

    Raises ClientFailed if the client fails or takes longer than its time limit for `records`
    records.
    """
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
            f"{' '.join(argv)} exited with {code} (time limit {limit:.0f} s): {text[-2000:]}"
        )
    return text
