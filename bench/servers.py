"""The two servers under test: each is started on loopback with data of its own, and its CPU time can be read at any moment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Protocol, Self

from tests.peers.kafka import Kafka

READY = "ready listeners=PLAINTEXT://"


class Server(Protocol):
    """`cpu_seconds` is user and system time of all threads since the start."""

    name: str
    bootstrap: str

    def cpu_seconds(self) -> float: ...
    def memory_bytes(self) -> int: ...
    def stop(self) -> None: ...


def _memory_bytes(pid: int) -> int:
    """The greatest resident size so far (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Gateway:
    """`kopgate serve` as a process, with its default settings."""

    name = "kopgate"

    def __init__(self, process: subprocess.Popen[str], folder: Path, bootstrap: str) -> None:
        self._process = process
        self._folder = folder
        self.bootstrap = bootstrap

    @classmethod
    def start(cls, *arguments: str) -> Self:
        folder = Path(tempfile.mkdtemp(prefix="kopgate-bench-"))
        argv = [sys.executable, "-m", "gateway", "serve", "--listener", "PLAINTEXT://127.0.0.1:0", "--store", f"lmdb:{folder}", *arguments]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            process.kill()
            process.wait()
            raise RuntimeError(f"the gateway did not start: {line!r}")
        return cls(process, folder, line.removeprefix(READY).split(" ")[0])

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        return _memory_bytes(self.pid)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Reference:
    """Apache Kafka 3.9.2 with the collector that its own scripts choose."""

    name = "Kafka 3.9.2"

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap

    @classmethod
    def start(cls) -> Self:
        return cls(Kafka.start(heap="-Xmx1g", message_max_bytes="1048588"))

    def cpu_seconds(self) -> float:
        return self._kafka.cpu_seconds()

    def memory_bytes(self) -> int:
        return _memory_bytes(self._kafka.pid)

    def stop(self) -> None:
        self._kafka.stop()
