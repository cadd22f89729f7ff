"""Example applications: real clients of many ages that share topics and groups.

They run one after the other against a gateway with a traffic log, so that consumers find what
producers wrote. A report on the log must find what is defined here: which application runs, as
which user, and what it does. Client versions and Kafka 4 verdicts are defined elsewhere.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from tests.legacy_clients.brokers import NO_REBALANCE_DELAY, RunningBroker, gateway
from tests.legacy_clients.clients import (
    OPEN,
    Client,
    DriverFailed,
    Record,
    Security,
    Span,
    consume,
    consume_in_group,
    produce,
    table,
)
from tests.legacy_clients.install import install
from tests.testkit.cache import CannotInstall

OPEN_LISTENER, LOGIN_LISTENER = "PLAINTEXT://127.0.0.1:0", "SASL_PLAINTEXT://127.0.0.1:0"
PASSWORD = "of-the-demo"
VALUE_BYTES = 1000
#: The compressible part of each value; the rest is random.
COMPRESSIBLE_BYTES = 600


@dataclass(frozen=True, slots=True)
class ProduceStep:
    topic: str
    records: int = 200
    codec: str = "none"


@dataclass(frozen=True, slots=True)
class ConsumeStep:
    """Consumes up to `records` records of a topic that another application wrote.

    Without a group, partitions are assigned manually and read from the beginning.
    """

    topic: str
    group: str = ""
    records: int = 100


Step = ProduceStep | ConsumeStep


@dataclass(frozen=True, slots=True)
class Application:
    """A client of the table with the client id of an application.

    `user` is set if it authenticates with SASL/PLAIN.
    """

    client_id: str
    client: str
    steps: tuple[Step, ...]
    user: str = ""

    @property
    def row(self) -> Client:
        return structs.replace(table()[self.client], name=self.client_id)

    @property
    def principal(self) -> str:
        return f"User:{self.user or 'ANONYMOUS'}"

    @property
    def topics(self) -> set[str]:
        return {step.topic for step in self.steps}

    @property
    def groups(self) -> set[str]:
        return {step.group for step in self.steps if isinstance(step, ConsumeStep) and step.group}

    @property
    def is_producer(self) -> bool:
        return any(isinstance(step, ProduceStep) for step in self.steps)

    @property
    def is_consumer(self) -> bool:
        return any(isinstance(step, ConsumeStep) for step in self.steps)


COMPANY = (
    Application("shop", "java-4.4.0", (ProduceStep("orders", 8000, "gzip"),), user="shop"),
    Application("mobile-app", "kafkajs-2.2.4", (ProduceStep("events", 400, "gzip"),)),
    Application("warehouse", "confluent-0.11.6", (ProduceStep("shipments"),)),
    Application("ledger-import", "java-0.8.2.2", (ProduceStep("ledger", 300, "gzip"),)),
    Application("server-metrics", "sarama-1.19.0", (ProduceStep("metrics", 400, "snappy"),)),
    Application("air-sensors", "kafka-node-2.0.0", (ProduceStep("metrics"),)),
    Application("billing", "java-0.9.0.1", (ConsumeStep("orders", "billing", 4000),)),
    Application(
        "billing-next", "java-2.8.2", (ConsumeStep("orders", "billing", 4000),), user="finance"
    ),
    Application(
        "orders-export",
        "kafka-python-1.0.2",
        (ConsumeStep("orders", records=3000), ConsumeStep("shipments")),
    ),
    Application(
        "accounts",
        "java-0.10.2.2",
        (ConsumeStep("ledger", "accounts"), ProduceStep("invoices", 300)),
        user="finance",
    ),
    Application(
        "invoice-mail", "kafka-python-2.0.2", (ConsumeStep("invoices", "mail"),), user="finance"
    ),
    Application("fraud-check", "java-1.1.1", (ConsumeStep("orders", "fraud", 2000),)),
    Application("dashboards", "franz-go-1.22.2", (ConsumeStep("metrics", "dashboards"),)),
    Application("search", "aiokafka-0.14.0", (ConsumeStep("events", "search"),), user="shop"),
    Application("stock", "confluent-1.0.0", (ConsumeStep("shipments", "stock"),)),
    Application("archive", "kcat-1.7.1", (ConsumeStep("events"), ConsumeStep("shipments"))),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The applications that completed, and the reason for each that did not."""

    applications: list[Application] = field(default_factory=list)
    left_out: list[tuple[Application, str]] = field(default_factory=list)


ProgressCallback = Callable[[int, Application], None]
"""Called before each application with its number, from 0."""


def run(
    company: Sequence[Application],
    folder: Path,
    log: Path,
    told: ProgressCallback = lambda number, who: None,
) -> RunResult:
    """Run all applications against a new gateway, which has stopped when this returns.

    `folder` holds the store, `log` the traffic log.
    """
    ran = RunResult()
    listeners: tuple[str, ...] = (OPEN_LISTENER,)
    arguments = [*NO_REBALANCE_DELAY, "--traffic-log", str(log)]
    if users := sorted({who.user for who in company if who.user}):
        listeners += (LOGIN_LISTENER,)
        arguments += ["--set", f"users_file={_users_file(users, folder / 'users')}"]
    # Of `make demo`, which Ctrl-C ends with all of its processes at once.
    with gateway(folder, listeners, arguments, by_fork=False) as broker:
        stored: Counter[str] = Counter()
        for number, who in enumerate(company):
            told(number, who)
            if problem := _problem_of(who, broker, stored):
                ran.left_out.append((who, problem))
            else:
                ran.applications.append(who)
    return ran


def _users_file(users: Sequence[str], file: Path) -> Path:
    for user in users:
        add = [
            sys.executable,
            "-m",
            "gateway",
            "users",
            "add",
            user,
            "--file",
            str(file),
            "--password-file",
            "-",
        ]
        subprocess.run(
            add,
            input=PASSWORD + "\n",
            text=True,
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )
    return file


def _problem_of(who: Application, broker: RunningBroker, stored: Counter[str]) -> str:
    """Run an application; return the first line of its error, or an empty string.

    `stored` has the number of records per topic. An application whose topics are empty because a
    producer was left out does not run; it may read what it writes itself.
    """
    written = {step.topic for step in who.steps if isinstance(step, ProduceStep)}
    if empty := [
        step.topic
        for step in who.steps
        if isinstance(step, ConsumeStep) and step.topic not in written and not stored[step.topic]
    ]:
        return f"no application wrote to {empty[0]}"
    try:
        install(who.row)
        for step in who.steps:
            _do(who, step, broker, stored)
    except CannotInstall as error:
        return str(error).strip().splitlines()[0]
    except DriverFailed as error:
        return ": ".join(
            [str(error).strip().splitlines()[0], *error.errors.strip().splitlines()[-1:]]
        )
    except OSError as error:
        return f"`{error.filename}` is not on this machine, or cannot be run: {error.strerror}"
    return ""


def _do(who: Application, step: Step, broker: RunningBroker, stored: Counter[str]) -> None:
    security = Security((who.user, PASSWORD)) if who.user else OPEN
    address = broker.listeners["SASL_PLAINTEXT" if who.user else "PLAINTEXT"]
    match step:
        case ProduceStep(topic, count, codec):
            produce(who.row, address, _records(topic, count), codec=codec, security=security)
            stored[topic] += count
        case ConsumeStep(topic, group, count):
            count = min(count, stored[topic])
            if group:
                consume_in_group(who.row, address, group, topic, count, security=security)
            else:
                consume(who.row, address, [Span(topic, 0, 0, count)], security=security)


def _records(topic: str, count: int) -> Iterator[Record]:
    chance = random.Random(topic)
    text = b"an order, an event, a measure; " * VALUE_BYTES
    for number in range(count):
        yield Record(
            topic,
            0,
            b"%d" % number,
            text[:COMPRESSIBLE_BYTES] + chance.randbytes(VALUE_BYTES - COMPRESSIBLE_BYTES),
        )
