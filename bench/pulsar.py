"""`make bench-pulsar`: CPU time of the gateway on Apache Pulsar beside a native Pulsar application.

- Produce: Kafka's producer sends batches of 16 KiB through the gateway, into one partition and into
  six. The native application sends messages of 16 KiB, with a thousand in flight as is usual there,
  and with as many as Kafka's producer.
- Fetch: a Java consumer reads through a restarted gateway, which must read everything from Pulsar;
  a native reader reads its topic, with the library's default of a thousand messages prefetched, and
  with as many as the gateway prefetches. What opens the topic is not measured; through the gateway
  that is a consumer of one record.
- Both send 2,000 records per second, in batches.

The compared figure is CPU seconds per GiB: the gateway's against the native application's, which is
the cost of the client library alone. The broker's work is the same for both. Both take turns, and
the table has medians over several rounds; the ratio varies less than either figure.

It takes about ten minutes on two cores, and twice the stored bytes under $TMPDIR.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from bench import clients
from bench.__main__ import replace_between_marks
from bench.clients import RECORD_BYTES, record_count
from bench.measurements import Measurement, compare, table
from bench.progress import StepProgress
from bench.servers import BenchGateway
from bench.steps import Step
from storage.pulsar.client.topic_readers import MAX_QUEUE_MESSAGES
from tests.testkit import jvm
from tests.testkit.kafka import VERSION
from tests.testkit.pulsar import Pulsar

BEGIN, END = "<!-- pulsar: begin -->", "<!-- pulsar: end -->"

NATIVE = "pulsar-client"
MESSAGE_BYTES = clients.BATCH_BYTES
PENDING = 1000
"""Messages in flight in the native application: half of a Kafka producer's buffer."""
FEW_PENDING = 5
"""Requests in flight of Kafka's producer (max.in.flight.requests.per.connection)."""
PARTITIONS = 6
_PRODUCE = f"produce, {MESSAGE_BYTES >> 10} KiB batches"
PRODUCE = f"{_PRODUCE}, 1 partition"
PRODUCE_FEW_PENDING = f"{PRODUCE}, {FEW_PENDING} in flight on both sides"
PRODUCE_PARTITIONS = f"{_PRODUCE}, {PARTITIONS} partitions"
PARTITIONS_PENDING = FEW_PENDING * PARTITIONS
"""Batches in flight of Kafka's producer if each request has one for every partition."""
PRODUCE_PARTITIONS_PENDING = (
    f"{PRODUCE_PARTITIONS}, at most {PARTITIONS_PENDING} in flight on both sides"
)
FETCH = "read, not cached"
PREFETCHED = 1000
"""Messages that the native application's reader prefetches: the library's default."""
FETCH_FEW_PREFETCHED = f"{FETCH}, {MAX_QUEUE_MESSAGES} messages prefetched on both sides"
PACED = f"produce at {clients.PACE} records/s"
NATIVE_SECONDS = 300


class GatewayAndNative:
    """One broker with a gateway on it, and one native application at a time."""

    def __init__(self, broker: Pulsar) -> None:
        self._tenant = broker.tenant()
        self._own = self._tenant.settings()
        self.gateway = self._start()

    def _start(self) -> BenchGateway:
        own = self._own
        names = {"kafkaTenant": own.tenant, "kafkaNamespace": own.namespace}
        names |= {
            "kafkaMetadataTenant": own.metadata_tenant,
            "kafkaMetadataNamespace": own.metadata_namespace,
        }
        settings = [word for name, value in names.items() for word in ("--set", f"{name}={value}")]
        return BenchGateway.start(
            store=own.service_url, arguments=["--pulsar-admin", own.admin_url, *settings]
        )

    def restart(self) -> None:
        """Restart the gateway, so that its cache is empty, and wait until it is idle."""
        self.gateway.stop()
        self.gateway = self._start()
        self.gateway.wait_until_idle()

    def make_native(self, name: str, partitions: int = 1) -> str:
        """Create a topic for the native application, partitioned like those of the gateway."""
        self._tenant.admin(
            "PUT",
            f"persistent/{self._own.tenant}/{self._own.namespace}/{name}/partitions",
            partitions,
        )
        return (
            self.native_topic(name)
            if partitions == 1
            else f"persistent://{self._own.tenant}/{self._own.namespace}/{name}"
        )

    def native_topic(self, name: str) -> str:
        return f"persistent://{self._own.tenant}/{self._own.namespace}/{name}-partition-0"

    def native(self, what: str, *arguments: object) -> list[float]:
        """Run the native application. Returns the numbers in its last line."""
        argv = [
            sys.executable,
            "-m",
            "bench.native",
            what,
            self._own.service_url,
            *map(str, arguments),
        ]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=NATIVE_SECONDS,
            check=True,
        )
        return [float(word) for word in done.stdout.splitlines()[-1].split()]

    def cpu_of(self, work: Callable[[], float]) -> tuple[float, float]:
        """The result of `work`, and the gateway's CPU seconds meanwhile."""
        before = self.gateway.cpu_seconds()
        result = work()
        return result, self.gateway.cpu_seconds() - before


def plan(sides: GatewayAndNative, rounds: int, mib: int) -> Iterator[Step]:
    """All steps. The first side changes every round."""
    messages = mib * (1 << 20) // MESSAGE_BYTES
    for number in range(rounds):
        ours, theirs = f"bench-{number}", f"native-{number}"
        for pair in (
            (
                _produce(sides, PRODUCE, ours, mib),
                _produce_natively(sides, PRODUCE, theirs, mib, messages),
            ),
            (
                _produce(sides, PRODUCE_FEW_PENDING, f"{ours}-few", mib),
                _produce_natively(
                    sides, PRODUCE_FEW_PENDING, f"{theirs}-few", mib, messages, pending=FEW_PENDING
                ),
            ),
            (
                _produce(sides, PRODUCE_PARTITIONS, f"{ours}-many", mib, PARTITIONS),
                _produce_natively(
                    sides, PRODUCE_PARTITIONS, f"{theirs}-many", mib, messages, PARTITIONS
                ),
            ),
            (
                _produce(sides, PRODUCE_PARTITIONS_PENDING, f"{ours}-both", mib, PARTITIONS),
                _produce_natively(
                    sides,
                    PRODUCE_PARTITIONS_PENDING,
                    f"{theirs}-both",
                    mib,
                    messages,
                    PARTITIONS,
                    PARTITIONS_PENDING,
                ),
            ),
            (
                _fetch(sides, FETCH, ours, mib),
                _read_natively(sides, FETCH, theirs, mib, messages, PREFETCHED),
            ),
            (
                _fetch(sides, FETCH_FEW_PREFETCHED, ours, mib),
                _read_natively(
                    sides, FETCH_FEW_PREFETCHED, theirs, mib, messages, MAX_QUEUE_MESSAGES
                ),
            ),
            (_paced(sides, f"{ours}-paced"), _pace_natively(sides, f"{theirs}-paced")),
        ):
            yield from pair if number % 2 == 0 else pair[::-1]


def _produce(sides: GatewayAndNative, what: str, topic: str, mib: int, partitions: int = 1) -> Step:
    def run() -> Measurement:
        bootstrap = sides.gateway.bootstrap
        clients.create(bootstrap, topic, partitions)
        rate, seconds = sides.cpu_of(
            lambda: clients.produce(bootstrap, topic, record_count(mib), "none")
        )
        return Measurement(what, "none", BenchGateway.name, seconds * 1024 / mib, rate)

    return Step(f"{what}, {BenchGateway.name}", 3 + mib / 20, run)


def _produce_natively(
    sides: GatewayAndNative,
    what: str,
    name: str,
    mib: int,
    messages: int,
    partitions: int = 1,
    pending: int = PENDING,
) -> Step:
    def run() -> Measurement:
        rate, seconds = sides.native(
            "produce", sides.make_native(name, partitions), messages, MESSAGE_BYTES, pending
        )
        return Measurement(what, "none", NATIVE, seconds * 1024 / mib, rate)

    return Step(f"{what}, {NATIVE}", 1 + mib / 100, run)


def _fetch(sides: GatewayAndNative, what: str, topic: str, mib: int) -> Step:
    def run() -> Measurement:
        sides.restart()
        # The native application's reader is open as well before it is measured, and the gateway
        # compiles the codec of a request's version when it receives the first one.
        clients.fetch(sides.gateway.bootstrap, topic, 1, VERSION)
        rate, seconds = sides.cpu_of(
            lambda: clients.fetch(sides.gateway.bootstrap, topic, record_count(mib), VERSION)
        )
        return Measurement(what, "none", BenchGateway.name, seconds * 1024 / mib, rate)

    return Step(f"{what}, {BenchGateway.name}", 5 + mib / 40, run)


def _read_natively(
    sides: GatewayAndNative, what: str, name: str, mib: int, messages: int, prefetched: int
) -> Step:
    def run() -> Measurement:
        rate, seconds = sides.native("read", sides.native_topic(name), messages, prefetched)
        return Measurement(what, "none", NATIVE, seconds * 1024 / mib, rate)

    return Step(f"{what}, {NATIVE}", 1 + mib / 100, run)


def _paced(sides: GatewayAndNative, topic: str) -> Step:
    def run() -> Measurement:
        marks: list[float] = []
        clients.create(sides.gateway.bootstrap, topic, 1)
        latencies = clients.produce_at_pace(
            sides.gateway.bootstrap, topic, lambda: marks.append(sides.gateway.cpu_seconds())
        )
        began, ended = marks
        mib = _paced_mib()
        return Measurement(
            PACED,
            "none",
            BenchGateway.name,
            (ended - began) * 1024 / mib,
            mib / clients.PACE_SECONDS,
            latencies.p50,
            latencies.p99,
        )

    return Step(
        f"{PACED}, {BenchGateway.name}",
        3 + clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS,
        run,
    )


def _pace_natively(sides: GatewayAndNative, name: str) -> Step:
    def run() -> Measurement:
        numbers = (RECORD_BYTES, clients.PACE, clients.PACE_WARM_UP_SECONDS, clients.PACE_SECONDS)
        p50, p99, rate, seconds = sides.native("pace", sides.make_native(name), *numbers)
        return Measurement(PACED, "none", NATIVE, seconds * 1024 / _paced_mib(), rate, p50, p99)

    return Step(f"{PACED}, {NATIVE}", 1 + clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS, run)


def _paced_mib() -> float:
    return clients.PACE * clients.PACE_SECONDS * RECORD_BYTES / (1 << 20)


def main() -> int:
    options = _options()
    figures: list[Measurement] = []
    with Pulsar.start(memory=options.memory, flags=jvm.SERIAL) as broker:
        sides = GatewayAndNative(broker)
        try:
            # One unmeasured round warms up the JVM and the page cache.
            for step in plan(sides, 1, min(options.mib, 64)):
                print(f"# warm-up: {step.run()}", file=sys.stderr)
            sides = _replace(sides, broker)
            steps = list(plan(sides, options.rounds, options.mib))
            progress = StepProgress([step.seconds for step in steps], time.monotonic)
            for step in steps:
                print(progress.next(step.name), file=sys.stderr)
                figures.append(step.run())
                print(f"# {figures[-1]}", file=sys.stderr)
        finally:
            sides.gateway.stop()
    made = table(compare(figures, BenchGateway.name, NATIVE), NATIVE)
    print(made)
    if options.out is not None:
        options.out.write_text(
            replace_between_marks(
                options.out.read_text(), f"{_conditions(options)}\n\n{made}", BEGIN, END
            )
        )
    return 0


def _replace(sides: GatewayAndNative, broker: Pulsar) -> GatewayAndNative:
    sides.gateway.stop()
    return GatewayAndNative(broker)


def _conditions(options: argparse.Namespace) -> str:
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-pulsar ARGS="--rounds '
        f'{options.rounds} --mib {options.mib}"`, '
        f"Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}, "
        "broker and BookKeeper in one JVM on the same cores."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-pulsar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (3)")
    parser.add_argument(
        "--mib", type=int, default=256, help="MiB written or read in each step (256)"
    )
    parser.add_argument("--memory", default="1g", help="heap and direct memory of the broker (1g)")
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
