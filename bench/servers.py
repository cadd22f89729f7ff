"""The servers under test, started on loopback with separate data, and their CPU time and memory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways, leaders, metadata
from tests.testkit.jvm import SERIAL
from tests.testkit.kafka import G1, VERSION, Kafka
from tests.testkit.tenant import Tenant

T = TypeVar("T")
Running = TypeVar("Running", bound="Stoppable")

READY = "ready listeners="
SHARDS = "__consumer_offsets"
"""Its partitions are the shards of a cluster of gateways."""

IDLE_SECONDS = 0.5
IDLE_CPU_SHARE = 0.04
"""A gateway is idle if it uses less than this share of a CPU for that time."""
START_SECONDS = 120.0

#: Garbage collectors for Kafka's JVM.
COLLECTORS = {"g1": G1, "serial": SERIAL}


class BenchServer(Protocol):
    """A running server.

    - `cpu_seconds`: user and system time of all threads since the start.
    - `memory_bytes`: peak resident size, including mapped files.
    - `own_memory_bytes`: current anonymous resident memory.
    """

    @property
    def name(self) -> str: ...
    @property
    def bootstrap(self) -> str: ...
    def cpu_seconds(self) -> float: ...
    def memory_bytes(self) -> int: ...
    def own_memory_bytes(self) -> int: ...
    def stop(self) -> None: ...


class Stoppable(Protocol):
    def stop(self) -> None: ...


@contextmanager
def running(starts: Iterable[Callable[[], Running]]) -> Iterator[list[Running]]:
    """Start servers in this order; all are stopped at the end, also if a start fails."""
    with ExitStack() as stops:
        servers = []
        for start in starts:
            servers.append(start())
            stops.callback(servers[-1].stop)
        yield servers


def in_turn(sides: Sequence[T], number: int) -> Sequence[T]:
    """The order of `sides` in round `number`: the first one changes every round.

    After as many rounds as there are sides, each has had each place once.
    """
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def name_in(checkout: Path | None, name: str) -> str:
    """Name of a gateway that runs the sources in the folder `checkout`; None for these sources."""
    return name if checkout is None else f"{name} in {checkout.resolve().name}"


def cpu_seconds(pid: int) -> float:
    """CPU time of a process in nanosecond resolution; /proc has hundredths of a second.

    Linux only: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    """
    return time.clock_gettime((~pid << 3) | 2)


def _memory_bytes(pid: int, field: str) -> int:
    """A field of /proc/PID/status, in bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


class BenchGateway:
    """`kopgate serve` in a process with default settings, on an embedded store by default."""

    name = "kopgate"

    def __init__(
        self, process: subprocess.Popen[str], folder: Path, addresses: Sequence[str]
    ) -> None:
        self._process = process
        self._folder = folder
        self.bootstrap, *self.others = addresses

    @classmethod
    def start(
        cls,
        log: int | None = None,
        store: str | None = None,
        arguments: Sequence[str] = (),
        module: str = "gateway",
        checkout: Path | None = None,
    ) -> Self:
        """Start a gateway.

        `log` is a file descriptor or subprocess.DEVNULL for its stderr, by default this process's.
        `module` is the Python module to run. `checkout` is the folder of another version of the
        sources with its extension modules, by default this one.
        """
        folder = Path(tempfile.mkdtemp(prefix="kopgate-bench-"))
        kept = ("--store", store or f"lmdb:{folder}")
        argv = [
            sys.executable,
            "-m",
            module,
            "serve",
            "--listener",
            "PLAINTEXT://127.0.0.1:0",
            *kept,
            *arguments,
        ]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=checkout,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            raise RuntimeError(f"the gateway did not start: {line!r}")
        addresses = line.removeprefix(READY).split(" ")[0].split(",")
        server = cls(process, folder, [address.partition("://")[2] for address in addresses])
        server.name = name_in(checkout, cls.name)
        return server

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def wait_until_idle(self) -> None:
        """Return when the work of the start is over: a gateway on Pulsar opens shards after it is
        ready.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + START_SECONDS
        used = self.cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(IDLE_SECONDS)
            before, used = used, self.cpu_seconds()
            if used - before < IDLE_CPU_SHARE * IDLE_SECONDS:
                return
        raise TimeoutError(f"the gateway was busy for {START_SECONDS:g} s")

    def memory_bytes(self) -> int:
        return _memory_bytes(self._process.pid, "VmHWM")

    def own_memory_bytes(self) -> int:
        return _memory_bytes(self._process.pid, "RssAnon")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class BenchCluster:
    """Gateways on one Pulsar as one server; its figures are sums."""

    def __init__(self, gateways: Gateways, folder: Path, name: str) -> None:
        self._gateways = gateways
        self._folder = folder
        self.name = name

    @classmethod
    def start(cls, tenant: Tenant, count: int, checkout: Path | None = None) -> Self:
        """Start gateways on new namespaces, and wait until each leads its share of the shards.

        `checkout` is as for `BenchGateway.start`.
        """
        folder = Path(tempfile.mkdtemp(prefix="kopgate-bench-"))
        gateways = Gateways(folder, in_pulsar(tenant, None), count, {})
        server = cls(gateways, folder, cls.name_of(count, checkout))
        try:
            for node in gateways.nodes.values():
                # A fork shares memory with other processes and has the sources of this checkout.
                node.by_fork = False
                node.checkout = checkout
                node.launch()
            gateways.until(lambda: shards_led(gateways), lambda led: is_balanced(led, count))
        except BaseException:
            server.stop()
            raise
        return server

    @staticmethod
    def name_of(count: int, checkout: Path | None = None) -> str:
        return f"{name_in(checkout, f'{count} gateway' + 's' * (count > 1))} on Pulsar"

    @property
    def bootstrap(self) -> str:
        return self._gateways.bootstrap

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self._pids))

    def memory_bytes(self) -> int:
        return sum(_memory_bytes(pid, "VmHWM") for pid in self._pids)

    def own_memory_bytes(self) -> int:
        return sum(_memory_bytes(pid, "RssAnon") for pid in self._pids)

    @property
    def _pids(self) -> list[int]:
        return [node.process.pid for node in self._gateways.nodes.values()]

    def stop(self) -> None:
        for node in self._gateways.nodes.values():
            if node.is_running():
                node.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def shards_led(gateways: Gateways) -> Counter[int]:
    """Number of shards by the node that leads them; empty if one has no leader."""
    with gateways.peer() as peer:
        # An internal topic is listed once a client has asked for it.
        metadata(peer, SHARDS, may_create=True)
        return Counter(leaders(peer, SHARDS).values())


def is_balanced(led: Counter[int], nodes: int) -> bool:
    """Whether each of `nodes` nodes leads the same number of shards, or one more."""
    return len(led) == nodes and max(led.values()) - min(led.values()) <= 1


class KafkaServer:
    """Apache Kafka with the heap of kafka-server-start.sh; with `g1`, the flags of
    kafka-run-class.sh.
    """

    name = f"Kafka {VERSION}"

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.bootstrap = kafka.bootstrap

    @classmethod
    def start(cls, collector: str = "g1", **settings: str) -> Self:
        """Start a broker; `settings` are as for `Kafka.start`."""
        flags = ("-Xms1g", *COLLECTORS[collector])
        return cls(Kafka.start(heap="-Xmx1g", flags=flags, **settings))

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._kafka.pid)

    def memory_bytes(self) -> int:
        return _memory_bytes(self._kafka.pid, "VmHWM")

    def own_memory_bytes(self) -> int:
        return _memory_bytes(self._kafka.pid, "RssAnon")

    def stop(self) -> None:
        self._kafka.stop()
