"""Processes of `log_member` and what they report."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet import reactor
from twisted.internet.task import deferLater

from storage.pulsar.settings import PulsarSettings

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
        """The node of the first such event of this node, or of any; waits for it."""
        while True:
            for event in tuple(self.events):
                if node in (None, event.node) and event.word == word and is_so(event):
                    return event.node
            await deferLater(reactor, 0.01)

    def close(self) -> None:
        for node in tuple(self.running):
            self.kill(node)
