"""The load: Kafka's own producer benchmark, and a consumer of any Java client version that assigns its partition itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec

from tests.peers.cache import cached, command, fingerprint, maven_jars
from tests.peers.kafka import TOOLS, java

SOURCE = Path(__file__).parent / "java" / "Fetch.java"
RECORD_BYTES = 1024
BATCH_BYTES = 16384
LINGER_MS = 5
TIMEOUT_SECONDS = 600

_SUMMARY = re.compile(r"(?P<records>\d+) records sent, .*\((?P<rate>[\d.]+) MB/sec\).* (?P<p50>\d+) ms 50th, .* (?P<p99>\d+) ms 99th")


class Produced(msgspec.Struct, frozen=True):
    """MB/s as Kafka's tool counts (MiB of record values), latencies in ms."""

    rate: float
    p50: float
    p99: float


def produce(bootstrap: str, topic: str, records: int, codec: str, throughput: int = -1) -> Produced:
    """Kafka's kafka-producer-perf-test. `throughput` in records/s, -1 for as fast as it goes."""
    argv = java(
        TOOLS["kafka-producer-perf-test"],
        "--topic", topic,
        "--num-records", str(records),
        "--record-size", str(RECORD_BYTES),
        "--throughput", str(throughput),
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        f"linger.ms={LINGER_MS}",
        f"batch.size={BATCH_BYTES}",
        f"compression.type={codec}",
        log_level="ERROR",
    )  # fmt: skip
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    summary = [match for line in done.stdout.splitlines() if (match := _SUMMARY.search(line))]
    if done.returncode or not summary or int(summary[-1]["records"]) != records:
        raise RuntimeError(f"the producer failed on {topic}: {(done.stdout + done.stderr)[-2000:]}")
    return Produced(float(summary[-1]["rate"]), float(summary[-1]["p50"]), float(summary[-1]["p99"]))


def fetch(bootstrap: str, topic: str, records: int, client: str) -> float:
    """MiB of record values per second, read by Java kafka-clients of that version."""
    jars, classes = _fetcher(client)
    argv = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{classes}:{jars}/*", "Fetch", bootstrap, topic, str(records)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"the consumer {client} failed on {topic}: {(done.stdout + done.stderr)[-2000:]}")
    size, seconds = done.stdout.split()[-2:]
    return int(size) / (1 << 20) / float(seconds)


def _fetcher(client: str) -> tuple[Path, Path]:
    jars = maven_jars((f"org.apache.kafka:kafka-clients:{client}", "org.slf4j:slf4j-nop:1.7.36"))

    def build(folder: Path) -> None:
        command(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(folder), str(SOURCE)])

    return jars, cached(f"bench/{fingerprint((client, SOURCE.read_bytes()))}", build)
