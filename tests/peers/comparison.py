"""The gateway and Apache Kafka 3.9.2 side by side, set alike, so that what a tool prints about the one can be held against the other."""

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
from tests.peers.cache import CannotInstall
from tests.peers.kafka import TOOLS, VERSION, java

#: Limit of some twenty tools run one after the other, half a minute on an idle machine.
COMMAND_SECONDS = 360.0
#: --timeout of kafka-consumer-groups, five seconds by default.
TOOL_TIMEOUT_MS = 120_000

#: What the reference broker is set to, too: its id, that it keeps records for ever, and that groups that were empty wait for nobody.
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
    """What a command left behind."""

    code: int
    output: str
    errors: str = field(default="", compare=False)
    """Stderr is shown when a command failed and never compared: a JVM or librdkafka may write to it."""


@dataclass(frozen=True, slots=True)
class ComparedBrokers:
    """host:port of both."""

    gateway: str
    kafka: str

    def run(self, argv: Sequence[str]) -> tuple[CommandOutput, CommandOutput]:
        """The same command against both at the same time; `{}` in it stands for the address."""
        with ThreadPoolExecutor(2) as pool:
            ours, theirs = pool.map(
                lambda at: _run([word.replace("{}", at) for word in argv]),
                (self.gateway, self.kafka),
            )
        return ours, theirs

    def tools(
        self, *commands: Command, version: str = VERSION
    ) -> tuple[list[CommandOutput], list[CommandOutput]]:
        """Kafka's own tools, of this version, one after the other, against both: what each printed, ours and theirs."""
        lines = ["\t".join(_line(name, *arguments)) for name, *arguments in commands]
        # They live for seconds: the second compiler would only cost.
        command, *rest = java(
            str(PROGRAMS / "Tools.java"), *lines, version=version, log_level="OFF"
        )
        ours, theirs = self.run([command, "-XX:TieredStopAtLevel=1", *rest])
        return _parts(ours, len(lines)), _parts(theirs, len(lines))


def _line(name: str, *arguments: str) -> Sequence[str]:
    # Its subcommand comes first.
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
    """Ask for a group's coordinator until the topic of committed offsets is there, which Kafka makes for that."""
    deadline = time.monotonic() + COMMAND_SECONDS
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        while "__consumer_offsets" not in {topic["name"] for topic in admin.describe_topics()}:
            assert time.monotonic() < deadline, f"{address} lists no topic of committed offsets"
            with suppress(KafkaError):
                admin.describe_groups(["nobody"])
            time.sleep(0.1)
    finally:
        admin.close()


def _normalized(text: str) -> str:
    """Without what differs between any two clusters: addresses and topic ids."""
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    return re.sub(r"TopicId: \S{22}", "TopicId: ID", text)


@contextmanager
def side_by_side(folder: Path) -> Iterator[ComparedBrokers]:
    """Both of them, on free ports."""
    try:
        with reference() as kafka, gateway(folder, arguments=MATCHING_OPTIONS) as ours:
            yield ComparedBrokers(ours.bootstrap, kafka.bootstrap)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
