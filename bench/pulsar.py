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
the cost of the client library alone. The broker's work is the same for both. They take turns, and
the table has medians over several rounds; the ratio varies less than either figure.

With --beside, the gateway of another checkout is measured in the same rounds, on the same broker.
The table gets a column for the ratio to it, and a second table compares it with the native
application.

It takes about ten minutes on two cores, and twice the stored bytes under $TMPDIR; with --beside, 15
minutes and three times these bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench import clients
from bench.__main__ import add_beside_option, at_least_one, checkouts, replace_between_marks
from bench.clients import RECORD_BYTES, record_count
from bench.measurements import Measurement, tables
from bench.progress import StepProgress
from bench.servers import BenchGateway, in_turn, running
from bench.steps import Step, cpu_of
from storage.pulsar.client.topic_readers import MAX_QUEUE_MESSAGES
from tests.testkit import jvm
from tests.testkit.kafka import VERSION
from tests.testkit.pulsar import Pulsar
from tests.testkit.tenant import Tenant

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


class PulsarGateway:
    """A gateway on new namespaces of the tenant. `checkout` is as for `BenchGateway.start`."""

    def __init__(self, tenant: Tenant, checkout: Path | None = None) -> None:
        self._own = tenant.settings()
        self._checkout = checkout
        self.server = self._start()

    @property
    def name(self) -> str:
        return self.server.name

    def _start(self) -> BenchGateway:
        own = self._own
        names = {"kafkaTenant": own.tenant, "kafkaNamespace": own.namespace}
        names |= {
            "kafkaMetadataTenant": own.metadata_tenant,
            "kafkaMetadataNamespace": own.metadata_namespace,
        }
        settings = [word for name, value in names.items() for word in ("--set", f"{name}={value}")]
        server = BenchGateway.start(
            store=own.service_url,
            arguments=["--pulsar-admin", own.admin_url, *settings],
            checkout=self._checkout,
        )
        try:
            server.wait_until_idle()
        except TimeoutError:
            server.stop()
            raise
        return server

    def restart(self) -> None:
        """Restart the gateway, so that its cache is empty, and wait until it is idle."""
        self.server.stop()
        self.server = self._start()

    def stop(self) -> None:
        self.server.stop()


class NativeRunner:
    """Runs bench/native.py on topics in a new namespace of the tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._own = tenant.settings()

    def make(self, name: str, partitions: int = 1) -> str:
        """Create a topic, partitioned like those of the gateway."""
        self._tenant.admin(
            "PUT",
            f"persistent/{self._own.tenant}/{self._own.namespace}/{name}/partitions",
            partitions,
        )
        return (
            self.topic(name)
            if partitions == 1
            else f"persistent://{self._own.tenant}/{self._own.namespace}/{name}"
        )

    def topic(self, name: str) -> str:
        return f"persistent://{self._own.tenant}/{self._own.namespace}/{name}-partition-0"

    def run(self, what: str, *arguments: object) -> list[float]:
        """Run the application. Returns the numbers in its last line."""
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


def plan(
    gateways: Sequence[PulsarGateway], native: NativeRunner, rounds: int, mib: int
) -> Iterator[Step]:
    """All steps. Gateways and native application take turns; the first one changes every round."""
    messages = mib * (1 << 20) // MESSAGE_BYTES
    for number in range(rounds):
        ours, theirs = f"bench-{number}", f"native-{number}"
        for step_of, native_step in (
            (
                partial(_produce, PRODUCE, ours, mib, 1),
                _produce_natively(native, PRODUCE, theirs, mib, messages),
            ),
            (
                partial(_produce, PRODUCE_FEW_PENDING, f"{ours}-few", mib, 1),
                _produce_natively(
                    native, PRODUCE_FEW_PENDING, f"{theirs}-few", mib, messages, pending=FEW_PENDING
                ),
            ),
            (
                partial(_produce, PRODUCE_PARTITIONS, f"{ours}-many", mib, PARTITIONS),
                _produce_natively(
                    native, PRODUCE_PARTITIONS, f"{theirs}-many", mib, messages, PARTITIONS
                ),
            ),
            (
                partial(_produce, PRODUCE_PARTITIONS_PENDING, f"{ours}-both", mib, PARTITIONS),
                _produce_natively(
                    native,
                    PRODUCE_PARTITIONS_PENDING,
                    f"{theirs}-both",
                    mib,
                    messages,
                    PARTITIONS,
                    PARTITIONS_PENDING,
                ),
            ),
            (
                partial(_fetch, FETCH, ours, mib),
                _read_natively(native, FETCH, theirs, mib, messages, PREFETCHED),
            ),
            (
                partial(_fetch, FETCH_FEW_PREFETCHED, ours, mib),
                _read_natively(
                    native, FETCH_FEW_PREFETCHED, theirs, mib, messages, MAX_QUEUE_MESSAGES
                ),
            ),
            (partial(_paced, f"{ours}-paced"), _pace_natively(native, f"{theirs}-paced")),
        ):
            yield from in_turn([*map(step_of, gateways), native_step], number)


def _produce(what: str, topic: str, mib: int, partitions: int, gateway: PulsarGateway) -> Step:
    def run() -> Measurement:
        bootstrap = gateway.server.bootstrap
        clients.create(bootstrap, topic, partitions)
        rate, seconds = cpu_of(
            gateway.server, lambda: clients.produce(bootstrap, topic, record_count(mib), "none")
        )
        return Measurement(what, "none", gateway.name, seconds * 1024 / mib, rate)

    return Step(f"{what}, {gateway.name}", 3 + mib / 20, run)


def _produce_natively(
    native: NativeRunner,
    what: str,
    name: str,
    mib: int,
    messages: int,
    partitions: int = 1,
    pending: int = PENDING,
) -> Step:
    def run() -> Measurement:
        rate, seconds = native.run(
            "produce", native.make(name, partitions), messages, MESSAGE_BYTES, pending
        )
        return Measurement(what, "none", NATIVE, seconds * 1024 / mib, rate)

    return Step(f"{what}, {NATIVE}", 1 + mib / 100, run)


def _fetch(what: str, topic: str, mib: int, gateway: PulsarGateway) -> Step:
    def run() -> Measurement:
        gateway.restart()
        bootstrap = gateway.server.bootstrap
        # The native application's reader is open as well before it is measured, and the gateway
        # compiles the codec of a request's version when it receives the first one.
        clients.fetch(bootstrap, topic, 1, VERSION)
        rate, seconds = cpu_of(
            gateway.server, lambda: clients.fetch(bootstrap, topic, record_count(mib), VERSION)
        )
        return Measurement(what, "none", gateway.name, seconds * 1024 / mib, rate)

    return Step(f"{what}, {gateway.name}", 5 + mib / 40, run)


def _read_natively(
    native: NativeRunner, what: str, name: str, mib: int, messages: int, prefetched: int
) -> Step:
    def run() -> Measurement:
        rate, seconds = native.run("read", native.topic(name), messages, prefetched)
        return Measurement(what, "none", NATIVE, seconds * 1024 / mib, rate)

    return Step(f"{what}, {NATIVE}", 1 + mib / 100, run)


def _paced(topic: str, gateway: PulsarGateway) -> Step:
    def run() -> Measurement:
        marks: list[float] = []
        server = gateway.server
        clients.create(server.bootstrap, topic, 1)
        latencies = clients.produce_at_pace(
            server.bootstrap, topic, lambda: marks.append(server.cpu_seconds())
        )
        began, ended = marks
        mib = _paced_mib()
        return Measurement(
            PACED,
            "none",
            server.name,
            (ended - began) * 1024 / mib,
            mib / clients.PACE_SECONDS,
            latencies.p50,
            latencies.p99,
        )

    return Step(
        f"{PACED}, {gateway.name}",
        3 + clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS,
        run,
    )


def _pace_natively(native: NativeRunner, name: str) -> Step:
    def run() -> Measurement:
        numbers = (RECORD_BYTES, clients.PACE, clients.PACE_WARM_UP_SECONDS, clients.PACE_SECONDS)
        p50, p99, rate, seconds = native.run("pace", native.make(name), *numbers)
        return Measurement(PACED, "none", NATIVE, seconds * 1024 / _paced_mib(), rate, p50, p99)

    return Step(f"{PACED}, {NATIVE}", 1 + clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS, run)


def _paced_mib() -> float:
    return clients.PACE * clients.PACE_SECONDS * RECORD_BYTES / (1 << 20)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    figures: list[Measurement] = []
    with Pulsar.start(memory=options.memory, flags=jvm.SERIAL) as broker:
        tenant = broker.tenant()
        starts = [partial(PulsarGateway, tenant, checkout) for checkout in checkouts(options)]
        # One unmeasured round warms up the JVM and the page cache.
        with running(starts) as gateways:
            for step in plan(gateways, NativeRunner(tenant), 1, min(options.mib, 64)):
                print(f"# warm-up: {step.run()}", file=sys.stderr)
        with running(starts) as gateways:
            steps = list(plan(gateways, NativeRunner(tenant), options.rounds, options.mib))
            progress = StepProgress([step.seconds for step in steps], time.monotonic)
            for step in steps:
                print(progress.next(step.name), file=sys.stderr)
                figures.append(step.run())
                print(f"# {figures[-1]}", file=sys.stderr)
            ours, *others = [gateway.name for gateway in gateways]
    made = tables(figures, [ours, NATIVE, *others], NATIVE, beside=others[0] if others else None)
    print(made)
    if options.out is not None:
        options.out.write_text(
            replace_between_marks(
                options.out.read_text(), f"{_conditions(options)}\n\n{made}", BEGIN, END
            )
        )
    return 0


def _conditions(options: argparse.Namespace) -> str:
    beside = f" --beside {options.beside}" if options.beside is not None else ""
    return (
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-pulsar ARGS="--rounds '
        f'{options.rounds} --mib {options.mib}{beside}"`, '
        f"Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}, "
        "broker and BookKeeper in one JVM on the same cores."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-pulsar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=at_least_one, default=3, help="number of rounds (3)")
    parser.add_argument(
        "--mib", type=at_least_one, default=256, help="MiB written or read in each step (256)"
    )
    parser.add_argument("--memory", default="1g", help="heap and direct memory of the broker (1g)")
    add_beside_option(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="document for the table, between its marks; by default it is only printed",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
