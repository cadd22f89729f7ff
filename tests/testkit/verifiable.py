"""Kafka's VerifiableProducer and VerifiableConsumer as processes, and the events they report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.testkit.kafka import java

TOPIC, GROUP = "load", "readers"
#: Records per second of each producer: enough that some are always in flight, few enough for JVMs
#: on two cores.
PACE = 300
#: Limit for a JVM to exit; a producer waits for outstanding acknowledgements.
END_SECONDS = 300.0

Stored = tuple[int, int, str]
"""Partition, offset, value."""


class ToolProcess(ABC):
    """A process that reports its events as lines of JSON."""

    def __init__(self, folder: Path, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self._said = folder / f"{name}.jsonl"
        self._errors = folder / f"{name}.err"
        self._heard = 0
        with self._said.open("w") as said, self._errors.open("w") as errors:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=errors)

    def receive(self) -> None:
        """Process the complete lines reported so far."""
        with self._said.open("rb") as said:
            said.seek(self._heard)
            for line in said:
                if not line.endswith(b"\n"):
                    break
                self._heard += len(line)
                self.handle(json.loads(line))

    @abstractmethod
    def handle(self, event: Any) -> None:
        """Process one of the events listed in the tool's documentation."""

    def set_paused(self, held: bool) -> None:
        """Suspend the process and wait until all its threads are stopped, or resume it."""
        self.process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)
        if held:
            # WNOWAIT keeps the exit code if the process has ended instead.
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def finish(self) -> None:
        """End the tool as ^C does: a producer waits for its acknowledgements, a member leaves its
        group.
        """
        self.process.terminate()
        # A JVM exits with 143 after SIGTERM.
        assert self.process.wait(END_SECONDS) == 128 + signal.SIGTERM, self.errors()
        self.receive()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def errors(self) -> str:
        return f"{self.name}: {self._errors.read_text(errors='replace')[-2000:]}"


def kafka_tool(main: str, *arguments: str) -> list[str]:
    """The argv of a tool of the reference broker's version."""
    return java(f"org.apache.kafka.tools.{main}", "--topic", TOPIC, *arguments, log_level="ERROR")


class VerifiableProducer(ToolProcess):
    def __init__(
        self, folder: Path, bootstrap: str, number: int, config: Mapping[str, str]
    ) -> None:
        file = folder / f"producer-{number}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        pace, keys = ("--throughput", str(PACE)), ("--repeating-keys", "100")
        arguments = (
            "--bootstrap-server",
            bootstrap,
            "--value-prefix",
            str(number),
            *pace,
            *keys,
            "--producer.config",
            str(file),
        )
        super().__init__(folder, f"producer-{number}", kafka_tool("VerifiableProducer", *arguments))
        self.stored: list[Stored] = []
        self.failed: list[str] = []
        self.sent = 0

    def handle(self, event: Any) -> None:
        match event["name"]:
            case "producer_send_success":
                self.stored.append((event["partition"], event["offset"], event["value"]))
            case "producer_send_error":
                self.failed.append(f"{event['value']}: {event['exception']} {event['message']}")
            case "tool_data":
                self.sent = event["sent"]


class VerifiableConsumer(ToolProcess):
    """`read` and `committed` (partition -> next offset) are shared by all members of the group."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        number: int,
        session_ms: int,
        read: dict[tuple[int, int], str],
        committed: dict[int, int],
    ) -> None:
        group = (
            "--group-id",
            GROUP,
            "--session-timeout",
            str(session_ms),
            "--reset-policy",
            "earliest",
        )
        argv = kafka_tool(
            "VerifiableConsumer", "--bootstrap-server", bootstrap, "--verbose", *group
        )
        super().__init__(folder, f"consumer-{number}", argv)
        self.read = read
        self.committed = committed
        self.commits = 0
        self.assigned: list[list[int]] = []

    def handle(self, event: Any) -> None:
        match event["name"]:
            case "record_data":
                place = event["partition"], event["offset"]
                assert self.read.setdefault(place, event["value"]) == event["value"], (
                    f"{place} was another record before"
                )
            case "offsets_committed" if event["success"] and event["offsets"]:
                self.commits += 1
                for row in event["offsets"]:
                    self.committed[row["partition"]] = max(
                        row["offset"], self.committed.get(row["partition"], 0)
                    )
            case "partitions_assigned":
                self.assigned.append([row["partition"] for row in event["partitions"]])
