"""Groups of real clients, one process each, and a gateway that is killed or stopped meanwhile."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import kafka
import pytest

from tests.legacy_clients.brokers import are_required
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall, maven_jars
from tests.testkit.gateway import GatewayProcess, Stopwatch, gateway
from tests.testkit.kafka import free_ports

PROGRAMS = Path(__file__).parent / "members"
TOPIC, GROUP = "orders", "billing"
PARTITIONS = [0, 1, 2, 3]
#: Session timeouts are 10 s unless a test sets another; a Java client starts in a few seconds on a
#: busy machine.
EVENT_SECONDS = 240.0
#: The shutdown timeout, and the stopwatch seconds within which a shutdown must finish.
SHUTDOWN_MS = 50_000
DRAIN_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class MemberCommand:
    """How to start a member: the program of a client library, and additional settings."""

    argv: Callable[[], list[str]]
    config: Mapping[str, str] = field(default_factory=dict)

    def command(self, bootstrap: str, group: str, topic: str) -> list[str]:
        try:
            words = self.argv()
        except CannotInstall as missing:
            (pytest.fail if are_required() else pytest.skip)(str(missing))
        return [
            *words,
            bootstrap,
            topic,
            group,
            *(f"{name}={value}" for name, value in self.config.items()),
        ]


def python_member(program: str, **config: str) -> MemberCommand:
    """`config` are the client's settings with `_` for `.`."""
    return MemberCommand(lambda: [sys.executable, str(PROGRAMS / program)], _named(config))


def java_member(version: str, **config: str) -> MemberCommand:
    def argv() -> list[str]:
        jars = maven_jars(
            (
                f"org.apache.kafka:kafka-clients:{version}",
                "org.slf4j:slf4j-api:1.7.36",
                "org.slf4j:slf4j-simple:1.7.36",
            )
        )
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        return jvm.argv(
            [f"{jars}/*"], PROGRAMS / "Member.java", flags=["-Xmx128m", *jvm.CLIENT, quiet]
        )

    return MemberCommand(argv, _named(config))


def _named(config: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


class GroupMember:
    """A client in its own process, and the events that it has reported."""

    def __init__(self, argv: Sequence[str], group: str, errors: Path) -> None:
        self.group = group
        self._errors = errors
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.read: list[tuple[int, int, str]] = []
        self.assigned: list[int] | None = None
        self.assignments: list[tuple[int, frozenset[int]]] = []
        """Assigned partitions and the time (monotonic clock, ns) from which the member has them. A
        revoked partition is given up when the event is reported.
        """
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def receive(self) -> None:
        """Process the events reported so far."""
        while not self._said.empty():
            event = self._said.get()
            if "read" in event:
                partition, offset, value = event["read"]
                self.read.append((partition, offset, value))
            elif "assigned" in event:
                self.assigned = event["assigned"]
                self.assignments.append((event["at"], frozenset(event["assigned"])))

    def __str__(self) -> str:
        code = self.process.poll()
        words = self._errors.read_text(errors="replace")[-2000:]
        return (
            f"member of {self.group}: exit code {code}, assigned {self.assigned}, "
            f"{len(self.read)} records read, stderr {words!r}"
        )

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()
        assert self.process.wait(EVENT_SECONDS) == 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(EVENT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(EVENT_SECONDS)


class GroupScenario:
    """A gateway that always restarts at the same address, a producer, and the members of groups."""

    def __init__(
        self, folder: Path, client: MemberCommand, stack: ExitStack, **settings: object
    ) -> None:
        self.bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
        self._folder = folder
        self._client = client
        self._stack = stack
        self._settings = settings
        self.members: list[GroupMember] = []
        self.sent: list[str] = []
        self._gateway: Any = None
        self.gateway: GatewayProcess | None = None

    def start(self) -> None:
        self._gateway = gateway(
            self._folder,
            "--listener",
            f"PLAINTEXT://{self.bootstrap}",
            listeners=(),
            num_partitions=len(PARTITIONS),
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=0,
            shutdown_timeout_ms=SHUTDOWN_MS,
            **self._settings,
        )
        self.gateway = self._gateway.__enter__()

    def kill(self) -> None:
        self._gateway.__exit__(None, None, None)

    def stop(self) -> None:
        """Stop the gateway as for an upgrade: pending group requests are answered, so they do not
        delay it.
        """
        assert self.gateway is not None
        code, seconds = self.gateway.stop_measured(Stopwatch(self.gateway))
        assert code == 0
        assert seconds < DRAIN_SECONDS
        self.kill()

    def join(
        self, client: MemberCommand | None = None, group: str = GROUP, topic: str = TOPIC
    ) -> GroupMember:
        argv = (client or self._client).command(self.bootstrap, group, topic)
        member = self._stack.enter_context(
            GroupMember(argv, group, self._folder / f"member-{len(self.members)}.log")
        )
        self.members.append(member)
        return member

    def send(self, count: int) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        for number in range(len(self.sent), len(self.sent) + count):
            producer.send(TOPIC, f"{number}".encode(), partition=number % len(PARTITIONS)).get(
                EVENT_SECONDS
            )
            self.sent.append(f"{number}")
        producer.close()

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + EVENT_SECONDS
        while True:
            for member in self.members:
                member.receive()
            if is_so():
                return
            assert time.monotonic() < end, "\n".join(
                [f"timed out: {what}", *map(str, self.members), self._log()]
            )
            time.sleep(0.02)

    def _log(self) -> str:
        return "" if self.gateway is None else "\n".join(self.gateway.lines()[-40:])

    def wait_until_assigned_to(self, *members: GroupMember) -> None:
        def is_shared() -> bool:
            return sorted(
                part for one in members for part in one.assigned or []
            ) == PARTITIONS and all(one.assigned for one in members)

        self.wait_until(is_shared, "these members have all partitions, and each of them has some")

    def values_read(self, group: str = GROUP) -> list[str]:
        """Values that members of the group have read and committed, including duplicates."""
        return [value for one in self.members if one.group == group for _, _, value in one.read]

    def wait_until_all_read(self, *groups: str) -> None:
        self.wait_until(
            lambda: all({*self.values_read(group)} >= {*self.sent} for group in groups or [GROUP]),
            "everything is read",
        )


@contextmanager
def group_scenario(
    folder: Path, client: MemberCommand, **settings: object
) -> Iterator[GroupScenario]:
    """A scenario with a running gateway; `client` is the default for `join`."""
    with ExitStack() as stack:
        scenario = GroupScenario(folder, client, stack, **settings)
        scenario.start()
        stack.callback(scenario.kill)
        yield scenario
