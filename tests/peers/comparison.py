"""Runs the same tools against the gateway and Apache Kafka 3.9.2, configured alike, to compare
their output.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from tests.legacy_clients.brokers import are_required, gateway, reference
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import TOOLS, VERSION, java

#: Limit for about thirty tools in sequence, which take half a minute on an idle machine.
COMMAND_SECONDS = 600.0
#: The --timeout of kafka-consumer-groups; its default is 5 s.
TOOL_TIMEOUT_MS = 120_000

#: Gateway options that match the reference broker: node id, no retention, and no initial rebalance
#: delay.
MATCHING_OPTIONS = (
    "--node-id",
    "1",
    "--set",
    "log_retention_ms=-1",
    "--set",
    "group_initial_rebalance_delay_ms=0",
)


PROGRAMS = Path(__file__).parent / "admin"

#: A tool's name and its arguments.
Command = tuple[str, ...]

_EXIT = re.compile(r"\nexit code (\d+)\n")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Exit code and output of a command."""

    code: int
    output: str
    errors: str = field(default="", compare=False)
    """Shown if a command failed, but never compared: a JVM or librdkafka may write to stderr."""


@dataclass(frozen=True, slots=True)
class ComparedBrokers:
    """Bootstrap addresses (host:port) of the gateway and of Kafka."""

    gateway: str
    kafka: str

    def run(self, argv: Sequence[str]) -> tuple[CommandOutput, CommandOutput]:
        """Run a command against both at the same time; `{}` in its arguments stands for the
        address.
        """
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(
                lambda at: _run([word.replace("{}", at) for word in argv]),
                (self.gateway, self.kafka),
            )
        return ours, theirs

    def tools(
        self, *commands: Command, version: str = VERSION
    ) -> tuple[list[CommandOutput], list[CommandOutput]]:
        """Run Kafka's own tools of this version in sequence, against both: their outputs, the
        gateway's first.
        """
        ours, theirs = self.run(_tools(commands, version))
        return _parts(ours, len(commands)), _parts(theirs, len(commands))


def run_tools(address: str, *commands: Command, version: str = VERSION) -> list[CommandOutput]:
    """Run Kafka's own tools of this version in sequence, against one address: their outputs."""
    printed = _run([word.replace("{}", address) for word in _tools(commands, version)])
    return _parts(printed, len(commands))


def _tools(commands: Sequence[Command], version: str) -> list[str]:
    lines = ["\t".join(_line(name, *arguments)) for name, *arguments in commands]
    return java(PROGRAMS / "Tools.java", *lines, version=version, log_level="OFF")


def _line(name: str, *arguments: str) -> Sequence[str]:
    # A subcommand precedes the options.
    first = arguments[:1] if name == "kafka-cluster" else ()
    return TOOLS[name], *first, "--bootstrap-server", "{}", *arguments[len(first) :]


def _parts(printed: CommandOutput, count: int) -> list[CommandOutput]:
    found = _EXIT.split(printed.output)
    assert (printed.code, len(found)) == (0, 2 * count + 1), printed.output + printed.errors
    return [
        CommandOutput(int(code), output)
        for output, code in zip(found[::2], found[1::2], strict=False)
    ]


def _run(argv: Sequence[str]) -> CommandOutput:
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    return CommandOutput(done.returncode, _normalized(done.stdout), done.stderr)


def wait_for_offsets_topic(address: str) -> None:
    """Request a group's coordinator, which makes Kafka create `__consumer_offsets`, until it is
    listed.
    """
    deadline = time.monotonic() + COMMAND_SECONDS
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        while "__consumer_offsets" not in {topic["name"] for topic in admin.describe_topics()}:
            assert time.monotonic() < deadline, f"{address} lists no topic of committed offsets"
            with suppress(KafkaError):
                admin.describe_groups(["unknown"])
            time.sleep(0.1)
    finally:
        admin.close()


def _normalized(text: str) -> str:
    """Replace what differs between any two clusters: addresses and topic ids."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    return re.sub(r"TopicId: \S{22}", "TopicId: ID", text)


@contextmanager
def side_by_side(folder: Path) -> Iterator[ComparedBrokers]:
    """Start both brokers on free ports."""
    try:
        with reference() as kafka, gateway(folder, arguments=MATCHING_OPTIONS) as ours:
            yield ComparedBrokers(ours.bootstrap, kafka.bootstrap)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
