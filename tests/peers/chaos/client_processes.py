"""Clients of three generations: three versions of Kafka's VerifiableProducer, group members of two
old libraries, and Kafka's VerifiableConsumer with both group protocols.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.legacy_clients.clients import table
from tests.legacy_clients.install import install
from tests.peers.chaos.evidence import Commits, Observations, ProducerRecords
from tests.testkit import jvm
from tests.testkit.cache import maven_jars
from tests.testkit.verifiable import END_SECONDS, TOPIC, ToolProcess

MEMBER = Path(__file__).parent.parent / "groups" / "members" / "Member.java"
#: Request timeout, as applications set it; the longest pauses exceed it.
REQUEST_MS = 10_000
SESSION_MS = 10_000
#: Small and serial: half a dozen JVMs share two cores with the servers.
JVM = ("-Xmx96m", *jvm.CLIENT)


@dataclass(frozen=True, slots=True)
class ProducerVersion:
    """A version of VerifiableProducer. `prefix` begins its values; version 0.9 does not support
    one.
    """

    version: str
    config: Mapping[str, str]
    is_idempotent: bool = False
    prefix: str = ""
    options: tuple[str, str] = ("--broker-list", "--producer.config")
    """The options for the bootstrap address and for the properties file."""

    @property
    def name(self) -> str:
        return f"java-{self.version}"

    def argv(self, bootstrap: str, pace: int, properties: Path) -> list[str]:
        where, settings = self.options
        words = [
            "--topic",
            TOPIC,
            where,
            bootstrap,
            settings,
            str(properties),
            "--throughput",
            str(pace),
        ]
        words += ["--value-prefix", self.prefix] if self.prefix else []
        return jvm.argv(
            [f"{_tools(self.version)}/*"],
            "org.apache.kafka.tools.VerifiableProducer",
            *words,
            flags=JVM,
        )


def _tools(version: str) -> Path:
    return maven_jars(
        (
            f"org.apache.kafka:kafka-tools:{version}",
            f"org.apache.kafka:kafka-clients:{version}",
        )
    )


RETRY_FOREVER = {
    "retries": str((1 << 31) - 1),
    "request.timeout.ms": str(REQUEST_MS),
    "reconnect.backoff.max.ms": "500",
}

#: Longer than an outage. When a batch expires, a producer before 2.3 takes a new producer id. A
#: batch with the old one that is refused then shifts the sequence numbers of the new one
#: (KAFKA-8484): the next batch has the number of the one before, and is acknowledged as its copy.
OLD_IDEMPOTENT_REQUEST_MS = "300000"

PRODUCERS = (
    ProducerVersion(
        "0.9.0.1", {"retries": RETRY_FOREVER["retries"], "request.timeout.ms": "30000"}
    ),
    ProducerVersion(
        "1.1.1",
        {
            **RETRY_FOREVER,
            "request.timeout.ms": OLD_IDEMPOTENT_REQUEST_MS,
            "enable.idempotence": "true",
        },
        True,
        "1",
    ),
    ProducerVersion(
        "4.3.1",
        {**RETRY_FOREVER, "delivery.timeout.ms": "600000", "enable.idempotence": "true"},
        True,
        "4",
        ("--bootstrap-server", "--command-config"),
    ),
)
"""Record formats 0 and 2; one producer may store duplicates, two must not."""


class ChaosProducer(ToolProcess):
    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        kind: ProducerVersion,
        pace: int,
        sightings: Observations,
    ) -> None:
        properties = folder / f"{kind.name}.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in kind.config.items()))
        super().__init__(folder, f"producer-{kind.name}", kind.argv(bootstrap, pace, properties))
        self.sent = ProducerRecords(kind.name, kind.prefix, kind.is_idempotent)
        self.failed: list[str] = []
        #: When, on the client's clock.
        self.failed_ms: list[int] = []
        self._sightings = sightings

    def handle(self, event: Any) -> None:
        match event["name"]:
            case "producer_send_success":
                place = event["partition"], event["offset"]
                self.sent.stored.append((place, event["value"]))
                self._sightings.note(self.name, place, event["value"])
            case "producer_send_error":
                self.failed.append(f"{event.get('exception')} {event.get('message')}")
                # Tools before 0.11 have another name for it.
                self.failed_ms.append(event["timestamp" if "timestamp" in event else "time_ms"])


@dataclass(frozen=True, slots=True)
class GroupLibrary:
    """A library whose members form one group.

    Members are programs of `tests/peers/groups/members`, or VerifiableConsumers if `is_tool`.
    """

    name: str
    argv: Callable[[], Sequence[str]]
    config: Mapping[str, str] = field(default_factory=dict)
    is_tool: bool = False

    def join(
        self,
        folder: Path,
        bootstrap: str,
        number: int,
        sightings: Observations,
        commits: Commits,
    ) -> ChaosMember | ToolMember:
        """Start a member."""
        kind = ToolMember if self.is_tool else ChaosMember
        return kind(folder, bootstrap, self, number, sightings, commits)


def _java(name: str) -> Callable[[], Sequence[str]]:
    def argv() -> Sequence[str]:
        jars = maven_jars(
            (
                f"org.apache.kafka:kafka-clients:{table()[name].version}",
                "org.slf4j:slf4j-api:1.7.36",
                "org.slf4j:slf4j-simple:1.7.36",
            )
        )

        flags = [*JVM, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return jvm.argv([f"{jars}/*"], MEMBER, flags=flags)

    return argv


def _confluent(name: str) -> Callable[[], Sequence[str]]:
    def argv() -> Sequence[str]:
        # Run another program in the driver's environment.
        *interpreter, _ = install(table()[name])
        return [*interpreter, str(Path(__file__).parent / "member.py")]

    return argv


def _tool() -> Sequence[str]:
    return jvm.argv(
        [f"{_tools('4.3.1')}/*"], "org.apache.kafka.tools.VerifiableConsumer", flags=JVM
    )


CLASSIC = {"session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": "1000"}

GROUPS = (
    GroupLibrary("java-0.9.0.1", _java("java-0.9.0.1"), CLASSIC),
    GroupLibrary("confluent-1.0.0", _confluent("confluent-1.0.0"), CLASSIC),
    GroupLibrary("tool-classic", _tool, {"--session-timeout": str(SESSION_MS)}, is_tool=True),
    GroupLibrary("tool-consumer", _tool, {"--group-protocol": "consumer"}, is_tool=True),
)


@dataclass(frozen=True, slots=True)
class ChaosClients:
    """The clients of a run; `members` is the number of each group."""

    producers: Sequence[ProducerVersion] = PRODUCERS
    groups: Sequence[GroupLibrary] = GROUPS
    members: int = 2


#: For a short run: the oldest and the newest clients, and both group protocols.
FEW_CLIENTS = ChaosClients((PRODUCERS[0], PRODUCERS[-1]), (GROUPS[0], GROUPS[-1]))

#: A commit for each record would keep two cores busy.
TOOL_CONFIG = {
    "fetch.min.bytes": "100000",
    "fetch.max.wait.ms": "300",
    "reconnect.backoff.max.ms": "500",
    "metadata.max.age.ms": "1000",
}


class ChaosMember(ToolProcess):
    """A member that reports a record as read once its offset is committed."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        kind: GroupLibrary,
        number: int,
        sightings: Observations,
        commits: Commits,
    ) -> None:
        config = [f"{name}={value}" for name, value in kind.config.items()]
        super().__init__(
            folder,
            f"member-{kind.name}-{number}",
            [*kind.argv(), bootstrap, TOPIC, kind.name, *config],
        )
        self.commits = commits
        self.assigned: list[int] = []
        self.read = 0
        self._sightings = sightings

    def handle(self, event: Any) -> None:
        if "read" in event:
            partition, offset, value = event["read"]
            self.read += 1
            self._sightings.note(self.name, (partition, offset), value)
            self.commits.acknowledged(partition, offset + 1)
        elif "assigned" in event:
            self.assigned = event["assigned"]

    def finish(self) -> None:
        """Make the member leave its group."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.close()
        assert self.process.wait(END_SECONDS) == 0, self.errors()
        self.receive()


class ToolMember(ToolProcess):
    """A VerifiableConsumer. It reports records as read before it commits their offsets."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        kind: GroupLibrary,
        number: int,
        sightings: Observations,
        commits: Commits,
    ) -> None:
        name = f"member-{kind.name}-{number}"
        properties = folder / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in TOOL_CONFIG.items()))
        options = {
            "--topic": TOPIC,
            "--group-id": kind.name,
            "--bootstrap-server": bootstrap,
            "--reset-policy": "earliest",
            "--command-config": str(properties),
            **kind.config,
        }
        words = [word for option in options.items() for word in option]
        super().__init__(folder, name, [*kind.argv(), "--verbose", *words])
        self.commits = commits
        self.assigned: list[int] = []
        self.read = 0
        self._sightings = sightings

    def handle(self, event: Any) -> None:
        match event["name"]:
            case "record_data":
                place = event["partition"], event["offset"]
                self.read += 1
                self._sightings.note(self.name, place, event["value"])
                self.commits.note_read(place)
            case "offsets_committed" if event["success"]:
                for row in event["offsets"]:
                    self.commits.acknowledged(row["partition"], row["offset"])
            case "partitions_assigned":
                self.assigned += [row["partition"] for row in event["partitions"]]
            case "partitions_revoked":
                gone = {row["partition"] for row in event["partitions"]}
                self.assigned = [one for one in self.assigned if one not in gone]


def install_clients() -> None:
    """Fetch and build all clients; raises CannotInstall if that is impossible."""
    for kind in PRODUCERS:
        kind.argv("", 0, Path(sys.executable))
    for group in GROUPS:
        group.argv()
