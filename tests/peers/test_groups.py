"""Real clients in a group: they share a topic, one leaves, one is killed, the gateway is killed under them; what is committed is not read again
and nothing is left out."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import kafka
import pytest

from tests.legacy_clients.brokers import are_required
from tests.peers.cache import CannotInstall, maven_jars
from tests.peers.gateway import Gateway, gateway

pytestmark = [pytest.mark.peer, pytest.mark.timeout(240)]

PROGRAMS = Path(__file__).parent / "members"
TOPIC, GROUP = "orders", "billing"
PARTITIONS = [0, 1, 2, 3]
#: Sessions are 3 s; a Java client on a busy machine starts in a few.
EVENT_SECONDS = 60.0
#: Below the shutdown's own limit, which it must not need.
DRAIN_SECONDS = 6.0


def python(program: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(PROGRAMS / program)]


def java(version: str) -> Callable[[], list[str]]:
    def argv() -> list[str]:
        jars = maven_jars((f"org.apache.kafka:kafka-clients:{version}", "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-simple:1.7.36"))
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        return ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", quiet, "-cp", f"{jars}/*", str(PROGRAMS / "Member.java")]

    return argv


CLIENTS = {
    "kafka-python": python("kafka_python.py"),
    "confluent-kafka": python("confluent.py"),
    "java-3.9.2": java("3.9.2"),
}


class Member:
    """A client in a process of its own, and what it has said."""

    def __init__(self, argv: Sequence[str], bootstrap: str) -> None:
        self.process = subprocess.Popen(
            [*argv, bootstrap, TOPIC, GROUP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.read: list[tuple[int, int, str]] = []
        self.assigned: list[int] | None = None
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def hears(self) -> None:
        """Take what it has said up to now."""
        while not self._said.empty():
            event = self._said.get()
            if "read" in event:
                partition, offset, value = event["read"]
                self.read.append((partition, offset, value))
            elif "assigned" in event:
                self.assigned = event["assigned"]

    def leaves(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()
        assert self.process.wait(EVENT_SECONDS) == 0

    def is_killed(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(EVENT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(EVENT_SECONDS)


class Scene:
    """A gateway that comes again at the same address, a producer, and the members of one group."""

    def __init__(self, folder: Path, argv: Sequence[str], stack: ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.bootstrap = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder = folder
        self._argv = argv
        self._stack = stack
        self.members: list[Member] = []
        self.sent: list[str] = []
        self._gateway: Any = None
        self.gateway: Gateway | None = None

    def starts(self) -> None:
        self._gateway = gateway(
            self._folder,
            "--listener",
            f"PLAINTEXT://{self.bootstrap}",
            listeners=(),
            num_partitions=len(PARTITIONS),
            group_min_session_timeout_ms=1_000,
            group_initial_rebalance_delay_ms=0,
        )
        self.gateway = self._gateway.__enter__()

    def is_killed(self) -> None:
        self._gateway.__exit__(None, None, None)

    def stops(self) -> None:
        """As at an upgrade: whoever waits in a group is answered, so that nobody holds it up."""
        assert self.gateway is not None
        began = time.monotonic()
        assert self.gateway.stop() == 0
        assert time.monotonic() - began < DRAIN_SECONDS
        self.is_killed()

    def joins(self) -> Member:
        member = self._stack.enter_context(Member(self._argv, self.bootstrap))
        self.members.append(member)
        return member

    def sends(self, count: int) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=self.bootstrap, acks="all")
        for number in range(len(self.sent), len(self.sent) + count):
            producer.send(TOPIC, f"{number}".encode(), partition=number % len(PARTITIONS)).get(EVENT_SECONDS)
            self.sent.append(f"{number}")
        producer.close()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + EVENT_SECONDS
        while True:
            for member in self.members:
                member.hears()
            if is_so():
                return
            assert time.monotonic() < end, f"{what}: {[(one.assigned, len(one.read)) for one in self.members]}\n{self._log()}"
            time.sleep(0.02)

    def _log(self) -> str:
        return "" if self.gateway is None else "\n".join(self.gateway.lines()[-40:])

    def until_shared_by(self, *members: Member) -> None:
        def is_shared() -> bool:
            return sorted(part for one in members for part in one.assigned or []) == PARTITIONS and all(one.assigned for one in members)

        self.until(is_shared, "every partition has one of these members, and each of them has some")

    def until_all_is_read(self) -> None:
        self.until(lambda: {value for one in self.members for _, _, value in one.read} >= set(self.sent), "everything is read")


@contextmanager
def scene(folder: Path, argv: Callable[[], Sequence[str]]) -> Iterator[Scene]:
    try:
        words = argv()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with ExitStack() as stack:
        made = Scene(folder, words, stack)
        made.starts()
        stack.callback(made.is_killed)
        yield made


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_a_topic_whoever_leaves_or_is_killed_and_whatever_becomes_of_the_gateway(client: str, tmp_path: Path) -> None:
    with scene(tmp_path, CLIENTS[client]) as here:
        here.sends(40)
        first = here.joins()
        here.until_shared_by(first)
        here.until_all_is_read()

        second = here.joins()
        here.until_shared_by(first, second)
        here.sends(40)
        here.until_all_is_read()
        assert second.read, "the newcomer reads what is its own"

        second.leaves()
        here.until_shared_by(first)

        third = here.joins()
        here.until_shared_by(first, third)
        third.is_killed()
        here.until_shared_by(first)
        here.sends(40)
        here.until_all_is_read()

        here.is_killed()
        here.starts()
        here.sends(40)
        here.until_all_is_read()

        fourth = here.joins()
        here.until_shared_by(first, fourth)
        here.stops()
        here.starts()
        here.sends(40)
        here.until_all_is_read()

        # Every record was committed when it was told, and nobody was told one twice.
        told = [value for one in here.members for _, _, value in one.read]
        assert sorted(told, key=int) == here.sent
