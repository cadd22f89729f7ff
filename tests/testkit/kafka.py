"""Apache Kafka 3.9.2 from Maven: the reference broker, and Kafka's own command-line tools.

Runs one process in KRaft combined mode on loopback ports, with its data in a temporary folder. Its
settings make tests deterministic: no retention, one replica of everything, no delay before the
first rebalance.

    with Kafka.start() as broker:
        tool("kafka-topics", broker.bootstrap, "--list")
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testkit import jvm
from tests.testkit.cache import TAIL_CHARACTERS, cached, command, fingerprint, maven_jars
from tests.used_peers import uses

VERSION = "3.9.2"
#: The reference for features added after 3.9.
MODERN = "4.3.1"
CLUSTER_ID = "a29wZ2F0ZS1yZWZlcmVuYw"
START_SECONDS = 300.0
STOP_SECONDS = 20.0
TOOL_SECONDS = 180.0
START_ATTEMPTS = 3
#: Below the ports that systems use for outgoing connections (net.ipv4.ip_local_port_range).
SERVERS_PORTS = range(20_000, 32_768)
#: More test workers than this share ports.
MAX_WORKERS = 16

#: The JVM options of Kafka's own start scripts: KAFKA_JVM_PERFORMANCE_OPTS of kafka-run-class.sh
#: (3.9).
G1 = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
)

TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
    # Class names of Kafka 4; 3.9 has some of these tools in other packages.
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


class BrokerFailed(Exception):
    """The broker did not start, or exited; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Secured:
    """Security of the SASL_PLAINTEXT, SSL and SASL_SSL listeners.

    `users` are PLAIN users; the PEM file holds a PKCS#8 key and its certificate. SCRAM is enabled,
    its users are added by the admin API. With `client_authority` the SSL listener requires client
    certificates of it. `of_mechanisms` are further settings of both SASL listeners, for example
    `gssapi.sasl.jaas.config`.
    """

    users: tuple[tuple[str, str], ...]
    key_and_certificate: Path
    client_authority: Path | None = None
    of_mechanisms: Mapping[str, str] = field(default_factory=dict)


def jars(version: str = VERSION) -> Path:
    """The folder with the jars of the broker and its tools; fetched once."""
    # From 4.0 on the broker's dependencies include no logging backend.
    writer = ("org.slf4j:slf4j-simple:1.7.36",) if _is_modern(version) else ()
    return maven_jars(
        (
            f"org.apache.kafka:kafka_2.13:{version}",
            f"org.apache.kafka:kafka-tools:{version}",
            *writer,
        )
    )


def java(
    main: str | Path,
    *arguments: str,
    version: str = VERSION,
    heap: str = "-Xmx256m",
    flags: Sequence[str] | None = None,
    log_level: str = "WARN",
) -> list[str]:
    """The argv of a main class from the broker's jars, or of a source file, logging to stderr.

    The default of `flags` is best for a short life.
    """
    uses("Apache Kafka", version)
    chosen = _flags_for_short_lives(version) if flags is None else flags
    options = [heap, *chosen, "-Djava.awt.headless=true", *_logging(version, log_level)]
    return jvm.argv([f"{jars(version)}/*"], main, *arguments, flags=options)


@cache
def _flags_for_short_lives(version: str) -> Sequence[str]:
    def record(flags: Sequence[str]) -> None:
        broker = Kafka.start(version=version, flags=[*jvm.CLIENT, *flags])
        if broker.stop() == -signal.SIGKILL:
            raise BrokerFailed("killed before it had written an archive of its classes")

    return [*jvm.CLIENT, *jvm.class_archive([jars(version)], record)]


def tool(name: str, bootstrap: str, *arguments: str, check: bool = True) -> str:
    """Run one of Kafka's own tools against any bootstrap server and return its stdout.

    With `check`, a non-zero exit code raises CalledProcessError with stderr attached. Some tools
    report failures only in their output.
    """
    flag = "--bootstrap-server"
    done = subprocess.run(
        java(TOOLS[name], flag, bootstrap, *arguments, log_level="ERROR"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
        check=False,
    )
    if check and done.returncode:
        failure = subprocess.CalledProcessError(
            done.returncode, [name, *arguments], done.stdout, done.stderr
        )
        failure.add_note((done.stdout + done.stderr)[-TAIL_CHARACTERS:])
        raise failure
    return done.stdout


class Kafka:
    """A running broker. `stop`, or leaving the context, ends it and removes its data."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, listeners: dict[str, str]
    ) -> None:
        self._process = process
        self._folder = folder
        self.listeners = listeners
        """Listener name -> host:port."""

    @classmethod
    def start(
        cls,
        *,
        version: str = VERSION,
        secured: Secured | None = None,
        heap: str = "-Xmx512m",
        flags: Sequence[str] | None = None,
        **settings: str,
    ) -> Self:
        """Start a broker and wait until its listener accepts connections.

        `settings` are broker settings with `_` for `.`. Free ports are chosen before Kafka binds
        them, so another process can take one in between; the start is then retried.
        """
        for attempt in range(START_ATTEMPTS):
            broker = cls._launch(
                java("kafka.Kafka", version=version, heap=heap, flags=flags),
                _formatted(version),
                secured,
                {name.replace("_", "."): value for name, value in settings.items()},
            )
            try:
                broker._wait_until_ready()
            except BrokerFailed as failure:
                broker.stop()
                if attempt + 1 == START_ATTEMPTS or "Address already in use" not in str(failure):
                    raise
            except BaseException:
                broker.stop()
                raise
            else:
                return broker
        raise AssertionError("the last attempt returns or raises")

    @classmethod
    def _launch(
        cls,
        server: list[str],
        formatted: Path,
        secured: Secured | None,
        settings: dict[str, str],
    ) -> Self:
        names = ["PLAINTEXT", *(["SASL_PLAINTEXT", "SSL", "SASL_SSL"] if secured else [])]
        *ports, controller = free_ports(len(names) + 1)
        listeners = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        folder = Path(tempfile.mkdtemp(prefix="kopgate-kafka-"))
        try:
            lines = {
                **broker_settings(folder, listeners, controller),
                **(_security(secured) if secured else {}),
                **settings,
            }
            file = write_properties(folder, lines)
            shutil.copytree(formatted, folder / "logs")
            with (folder / "broker.log").open("wb") as output:
                process = subprocess.Popen(
                    [*server, str(file)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, folder, listeners)

    @property
    def bootstrap(self) -> str:
        """host:port of the plaintext listener."""
        return self.listeners["PLAINTEXT"]

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._process.pid

    def log(self) -> str:
        """The tail of what the broker logged."""
        return (self._folder / "broker.log").read_text(errors="replace")[-TAIL_CHARACTERS:]

    def stop(self) -> int:
        """Send SIGTERM, then SIGKILL after STOP_SECONDS; reap the process and remove its folder.

        Returns its exit code.
        """
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A clean shutdown takes longer, and the data is removed.
        self._process.kill()
        self.stop()

    def _wait_until_ready(self) -> None:
        """Wait for the log line `Kafka Server started`; Kafka binds its listeners long before
        that.
        """
        log = self._folder / "broker.log"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if b"Kafka Server started" in log.read_bytes():
                return
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"Kafka exited with {self._process.returncode} while starting:\n{self.log()}"
                )
            time.sleep(0.1)
        raise BrokerFailed(f"Kafka was not ready after {START_SECONDS:.0f} s:\n{self.log()}")


@cache
def _formatted(version: str) -> Path:
    """The formatted log directory of a broker that never ran. A copy is made in less time."""
    addresses = {"PLAINTEXT": "127.0.0.1:9092"}, 9093

    def build(folder: Path) -> None:
        file = write_properties(folder, broker_settings(folder, *addresses))
        tool = java("kafka.tools.StorageTool", version=version, flags=jvm.CLIENT)
        command([*tool, "format", "--cluster-id", CLUSTER_ID, "--config", file])
        file.unlink()

    parts = [CLUSTER_ID, *broker_settings(Path(), *addresses).values()]
    return cached(f"kafka-formatted/{version}-{fingerprint(parts)}", build) / "logs"


def write_properties(folder: Path, settings: Mapping[str, str]) -> Path:
    file = folder / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return file


def broker_settings(folder: Path, listeners: dict[str, str], controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": ",".join(
            f"{name}://{at}"
            for name, at in [*listeners.items(), ("CONTROLLER", f"127.0.0.1:{controller}")]
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in listeners)
        + ",CONTROLLER:PLAINTEXT",
        "log.dirs": str(folder / "logs"),
        "log.retention.ms": "-1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
    }


def _security(secured: Secured) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in secured.users)
    package = "org.apache.kafka.common.security"
    scram = f"{package}.scram.ScramLoginModule required;"
    logins = {
        "plain": f"{package}.plain.PlainLoginModule required {users};",
        "scram-sha-256": scram,
        "scram-sha-512": scram,
    }
    settings = {
        f"listener.name.{listener}.{name}": value
        for listener in ("sasl_plaintext", "sasl_ssl")
        for name, value in {
            **{f"{mechanism}.sasl.jaas.config": login for mechanism, login in logins.items()},
            **secured.of_mechanisms,
        }.items()
    }
    settings |= {
        "sasl.enabled.mechanisms": ",".join(logins).upper(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(secured.key_and_certificate),
    }
    if secured.client_authority:
        settings |= {
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.truststore.type": "PEM",
            "listener.name.ssl.ssl.truststore.location": str(secured.client_authority),
        }
    return settings


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now and that no outgoing connection will use.

    A client that keeps reconnecting to a stopped server could otherwise be given the server's own
    port as its local port, and keep it. Each test worker has separate ports: another one could take
    those of a server that is started again.
    """
    chance = random.SystemRandom()
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports_of_worker = SERVERS_PORTS[worker % MAX_WORKERS :: MAX_WORKERS]
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            with suppress(OSError):
                ports.append(
                    held.enter_context(
                        socket.create_server(("127.0.0.1", chance.choice(ports_of_worker)))
                    ).getsockname()[1]
                )
        return ports


def _is_modern(version: str) -> bool:
    return int(version.partition(".")[0]) >= 4


def _logging(version: str, level: str) -> list[str]:
    if not _is_modern(version):
        return [f"-Dlog4j.configuration=file:{_log4j(level)}"]
    simple = "-Dorg.slf4j.simpleLogger"
    return [
        f"{simple}.defaultLogLevel={level.lower()}",
        f"{simple}.log.kafka.server.KafkaRaftServer=info",
    ]


def _log4j(level: str) -> Path:
    """A log4j file that writes to stderr. Start and stop messages are kept at every level."""
    file = jars().parent / f"log4j-{level.lower()}.properties"
    if not file.exists():
        text = (
            f"log4j.rootLogger={level}, stderr\n"
            "log4j.logger.kafka.server.KafkaRaftServer=INFO\n"
            "log4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stderr.Target=System.err\n"
            "log4j.appender.stderr.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.replace(file)
    return file
