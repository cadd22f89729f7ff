"""The gateway and Apache Kafka 3.9.2 side by side, set alike, so that what a tool prints about the one can be held against the other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.legacy_clients.brokers import are_required, gateway, reference
from tests.peers.cache import CannotInstall
from tests.peers.kafka import TOOLS, java

COMMAND_SECONDS = 90.0

#: What the reference broker is set to, too: its id, and that it keeps records for ever.
ALIKE = ("--node-id", "1", "--set", "log_retention_ms=-1")


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command left behind."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Sides:
    """host:port of both."""

    gateway: str
    kafka: str

    def run(self, argv: Sequence[str]) -> tuple[Printed, Printed]:
        """The same command against both at the same time; `{}` in it stands for the address."""
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(lambda at: _run([word.replace("{}", at) for word in argv]), (self.gateway, self.kafka))
        return ours, theirs

    def tool(self, name: str, *arguments: str) -> tuple[Printed, Printed]:
        """One of Kafka's own tools against both."""
        # They live for a second: the second compiler would only cost.
        command, *rest = java(TOOLS[name], "--bootstrap-server", "{}", *arguments, log_level="OFF")
        return self.run([command, "-XX:TieredStopAtLevel=1", *rest])


def _run(argv: Sequence[str]) -> Printed:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=False
    )
    return Printed(done.returncode, _unmarked(done.stdout))


def _unmarked(text: str) -> str:
    """Without what differs between any two clusters: addresses and topic ids."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    return re.sub(r"TopicId: \S{22}", "TopicId: ID", text)


@contextmanager
def side_by_side(folder: Path) -> Iterator[Sides]:
    """Both of them, on free ports."""
    try:
        with reference() as kafka, gateway(folder, arguments=ALIKE) as ours:
            yield Sides(ours.bootstrap, kafka.bootstrap)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
