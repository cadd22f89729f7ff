"""`make bench-pulsar`: the gateway in front of Apache Pulsar, and beside it a native Pulsar application with the same load on the same broker.

Kafka's producer sends batches of 16 KiB through the gateway, into one partition and into six; the native application sends messages of 16 KiB itself,
a thousand under way as it would, and five as Kafka's producer has. Both are then read: by a Java
consumer through the gateway, from a gateway started anew, which must ask Pulsar for all of it; and by a native reader. At last both send 2,000
records a second, the native one in batches, too. What is compared is the gateway's CPU seconds per GiB with those of the native application, that is
what its way through the gateway costs beside what the client library costs anyway; the broker's own work is the same for both. GatewayAndNative alternate;
figures are medians of several rounds, and the ratio says more than either.

It takes some eight minutes on two cores and, under $TMPDIR, twice what is stored.
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
from bench.servers import GatewayServer
from bench.steps import Step
from tests.peers.kafka import VERSION
from tests.peers.pulsar import Pulsar
from tests.peers.tenant import Tenant

BEGIN, END = "<!-- pulsar: begin -->", "<!-- pulsar: end -->"

NATIVE = "pulsar-client"
MESSAGE_BYTES = clients.BATCH_BYTES
PENDING = 1000
"""Messages that the native application has under way: of 16 KiB, half of what a Kafka producer's buffer holds."""
FEW_PENDING = 5
"""Requests that Kafka's producer has under way, a batch each where there is one partition (max.in.flight.requests.per.connection)."""
PARTITIONS = 6
_PRODUCE = f"produce, {MESSAGE_BYTES >> 10} KiB batches"
PRODUCE = f"{_PRODUCE}, 1 partition"
PRODUCE_FEW_PENDING = f"{PRODUCE}, natively {FEW_PENDING} under way, too"
PRODUCE_PARTITIONS = f"{_PRODUCE}, {PARTITIONS} partitions"
FETCH = "read, none of it in memory"
PACED = f"produce at {clients.PACE} records/s"
NATIVE_SECONDS = 300


class GatewayAndNative:
    """One broker, a gateway on it, and a native application at a time."""

    def __init__(self, broker: Pulsar) -> None:
        self._tenant = Tenant.make(broker.service_url, broker.admin_url)
        self._own = self._tenant.settings()
        self.gateway = self._start()

    def _start(self) -> GatewayServer:
        own = self._own
        names = {"kafkaTenant": own.tenant, "kafkaNamespace": own.namespace}
        names |= {
            "kafkaMetadataTenant": own.metadata_tenant,
            "kafkaMetadataNamespace": own.metadata_namespace,
        }
        settings = [word for name, value in names.items() for word in ("--set", f"{name}={value}")]
        return GatewayServer.start(
            store=own.service_url, arguments=["--pulsar-admin", own.admin_url, *settings]
        )

    def restart(self) -> None:
        """The gateway anew: it remembers nothing of what was sent."""
        self.gateway.stop()
        self.gateway = self._start()

    def make_native(self, name: str, partitions: int = 1) -> str:
        """The topic of the native application, made as the gateway makes its own: partitioned."""
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
        """The numbers that the native application ends with."""
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
        """What the work came to, and the gateway's CPU seconds meanwhile."""
        before = self.gateway.cpu_seconds()
        result = work()
        return result, self.gateway.cpu_seconds() - before


def plan(sides: GatewayAndNative, rounds: int, mib: int) -> Iterator[Step]:
    """All steps; who goes first changes from round to round."""
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
            (_fetch(sides, ours, mib), _read_natively(sides, theirs, mib, messages)),
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
        return Measurement(what, "none", GatewayServer.name, seconds * 1024 / mib, rate)

    return Step(f"{what}, {GatewayServer.name}", 3 + mib / 20, run)


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


def _fetch(sides: GatewayAndNative, topic: str, mib: int) -> Step:
    def run() -> Measurement:
        sides.restart()
        rate, seconds = sides.cpu_of(
            lambda: clients.fetch(sides.gateway.bootstrap, topic, record_count(mib), VERSION)
        )
        return Measurement(FETCH, "none", GatewayServer.name, seconds * 1024 / mib, rate)

    return Step(f"{FETCH}, {GatewayServer.name}", 5 + mib / 40, run)


def _read_natively(sides: GatewayAndNative, name: str, mib: int, messages: int) -> Step:
    def run() -> Measurement:
        rate, seconds = sides.native("read", sides.native_topic(name), messages)
        return Measurement(FETCH, "none", NATIVE, seconds * 1024 / mib, rate)

    return Step(f"{FETCH}, {NATIVE}", 1 + mib / 100, run)


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
            GatewayServer.name,
            (ended - began) * 1024 / mib,
            mib / clients.PACE_SECONDS,
            latencies.p50,
            latencies.p99,
        )

    return Step(
        f"{PACED}, {GatewayServer.name}",
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
    with Pulsar.start(memory=options.memory) as broker:
        sides = GatewayAndNative(broker)
        try:
            # The JVM and the files of both are warm before anything counts.
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
    made = table(compare(figures, GatewayServer.name, NATIVE), NATIVE)
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
        f'Measured on {datetime.now(UTC):%Y-%m-%d} with `make bench-pulsar ARGS="--rounds {options.rounds} --mib {options.mib}"`, '
        f"Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}, broker and BookKeeper in one JVM on the same cores."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-pulsar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over so many (3)")
    parser.add_argument("--mib", type=int, default=256, help="moved in each step, in MiB (256)")
    parser.add_argument("--memory", default="1g", help="heap and direct memory of the broker (1g)")
    parser.add_argument(
        "--out",
        type=Path,
        help="the table goes into this file, between its marks; without it, it is only printed",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
