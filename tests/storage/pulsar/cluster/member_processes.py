"""Processes of `log_member` and what they report."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass

from storage.pulsar.settings import PulsarSettings
from tests.testkit.settle import until

LAST_LINES = 20
"""Most lines of each process that the error of a failed wait contains."""

MAX_ERROR_BYTES = 100_000

EventTest = Callable[["MemberEvent"], bool]


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """One line of a process: its node, the word, the Unix time, and the rest."""

    node: int
    word: str
    time: float
    rest: tuple[str, ...]

    @property
    def revision(self) -> int:
        return int(self.rest[0])


class MemberProcesses:
    """The processes of one cluster; `events` are in the order in which they were read."""

    def __init__(self, settings: PulsarSettings) -> None:
        names = ("service_url", "admin_url", "metadata_tenant", "metadata_namespace")
        self._arguments = [str(getattr(settings, name)) for name in names]
        self.events: list[MemberEvent] = []
        self.running: dict[int, subprocess.Popen[str]] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def start(self, node: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.storage.pulsar.cluster.log_member",
                str(node),
                *self._arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.running[node] = process
        threading.Thread(target=self._read, args=(node, process), daemon=True).start()
        return process

    def _read(self, node: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            word, time, *rest = line.split()
            self.events.append(MemberEvent(node, word, float(time), tuple(rest)))

    def force(self, node: int) -> None:
        """Make the next attempt of this process replace the writer."""
        stdin = self.running[node].stdin
        assert stdin
        stdin.write("force\n")
        stdin.flush()

    def kill(self, node: int) -> None:
        process = self.running.pop(node)
        process.kill()
        process.wait()

    async def event(self, node: int | None, word: str, is_so: EventTest = lambda _: True) -> int:
        """Wait for an event of a node, or of any node. Returns the node id.

        Raises AssertionError on a timeout, or if a process ends that was not killed.
        """
        found: list[MemberEvent] = []

        def has_happened() -> bool:
            found.extend(
                event
                for event in tuple(self.events)
                if node in (None, event.node) and event.word == word and is_so(event)
            )
            for member, process in self.running.items():
                code = process.poll()
                assert code is None, f"node {member} ended with status {code}. {self._report()}"
            return bool(found)

        def describe() -> str:
            return f"Expected {word!r} of node {node or 'any'}. {self._report()}"

        await until(has_happened, describe)
        return found[0].node

    def _report(self) -> str:
        """The last lines of each process."""
        lines = []
        for node in sorted({event.node for event in self.events} | self.running.keys()):
            state = "running" if node in self.running else "killed"
            lines.append(f"node {node} ({state}):")
            said = [event for event in self.events if event.node == node]
            lines += [
                f"    {one.time:.3f} {one.word} {' '.join(one.rest)}" for one in said[-LAST_LINES:]
            ]
        errors = os.pread(self._errors.fileno(), MAX_ERROR_BYTES, 0).decode(errors="replace")
        return "\n".join(["The last lines:", *lines, "Standard error:", errors])

    def close(self) -> None:
        for node in tuple(self.running):
            self.kill(node)
        self._errors.close()
