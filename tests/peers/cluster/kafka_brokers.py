"""Three brokers of Apache Kafka, with three replicas of everything: the reference for restarts."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.peers.cluster.gateways import metadata
from tests.testkit import jvm
from tests.testkit.cache import command
from tests.testkit.gateway import Peer
from tests.testkit.kafka import (
    CLUSTER_ID,
    START_SECONDS,
    VERSION,
    BrokerFailed,
    broker_settings,
    free_ports,
    java,
    write_properties,
)

COUNT = 3
STOP_SECONDS = 120.0
#: Kafka waits 9 s without a heartbeat before it moves the partitions of a killed broker.
SETTLED_SECONDS = 300.0
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "num.partitions": "12",
}


class KafkaBroker:
    """A broker and controller that keeps its data and ports."""

    def __init__(self, folder: Path, number: int, ports: list[int], controllers: list[int]) -> None:
        self.port = ports[number - 1]
        self._log = folder / f"broker-{number}.log"
        self._log.touch()
        data = folder / f"broker-{number}"
        data.mkdir()
        listeners = {"PLAINTEXT": f"127.0.0.1:{self.port}"}
        voters = [f"{index}@127.0.0.1:{port}" for index, port in enumerate(controllers, 1)]
        settings = {
            **broker_settings(data, listeners, controllers[number - 1]),
            **REPLICATED,
            "node.id": str(number),
            "controller.quorum.voters": ",".join(voters),
        }
        self._file = write_properties(data, settings)
        storage = java("kafka.tools.StorageTool", flags=jvm.CLIENT)
        command([*storage, "format", "--cluster-id", CLUSTER_ID, "--config", self._file])
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                java("kafka.Kafka", str(self._file), version=VERSION, heap="-Xmx384m"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def launch(self) -> None:
        """Start the broker and wait until it is ready."""
        before = self._log.stat().st_size
        self.begin()
        self.wait_until_ready(before)

    def wait_until_ready(self, after: int = 0) -> None:
        """Wait for the line of a start that follows byte `after` of the log."""
        assert self._process
        deadline = time.monotonic() + START_SECONDS
        while b"Kafka Server started" not in self._log.read_bytes()[after:]:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BrokerFailed(f"Kafka did not start:\n{self.log()}")
            time.sleep(0.1)

    def end(self) -> None:
        """Stop the broker with SIGTERM: it moves its partitions first."""
        assert self._process
        self._process.terminate()
        self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


class KafkaBrokers:
    """The nodes have the ids 1 to 3."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kopgate-kafka-cluster-"))
        ports = free_ports(2 * COUNT)
        self.nodes = {
            number: KafkaBroker(self._folder, number, ports[:COUNT], ports[COUNT:])
            for number in range(1, COUNT + 1)
        }

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def __enter__(self) -> Self:
        try:
            # A broker is ready when two of the three controllers have elected a leader.
            for node in self.nodes.values():
                node.begin()
            for node in self.nodes.values():
                node.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes.values():
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait_until_settled(self, topic: str) -> None:
        """Wait until all replicas of the topic are in sync, and all brokers agree."""
        deadline = time.monotonic() + SETTLED_SECONDS
        found: Any = None
        while time.monotonic() < deadline:
            try:
                found = [self._replicas(node, topic) for node in self.nodes.values()]
            except (OSError, AssertionError) as failure:
                found = failure
            else:
                if found[0] and all(view == found[0] for view in found):
                    return
            time.sleep(0.05)
        raise BrokerFailed(f"not settled within {SETTLED_SECONDS:.0f} s: {found!r}")

    def _replicas(self, node: KafkaBroker, topic: str) -> dict[int, int]:
        """The leaders of the partitions; empty unless all their replicas are in sync."""
        with Peer(("127.0.0.1", node.port)) as peer:
            (found,) = metadata(peer, topic).topics
        rows = found.partitions
        if found.error_code or any(row.error_code or len(row.isr_nodes) < COUNT for row in rows):
            return {}
        return {row.partition_index: row.leader_id for row in rows}

    def unexpected_errors(self) -> list[str]:
        return []
