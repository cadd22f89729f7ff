"""Kafka's command-line tools print the same for the gateway as for Kafka."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Generator, Sequence

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from tests.peers.comparison import (
    Command,
    CommandOutput,
    ComparedBrokers,
    run_tools,
    wait_for_offsets_topic,
)
from tests.peers.tools.tool_steps import Ends, Outputs, Steps, in_steps, play_selected
from tests.testkit.kafka import MODERN, VERSION

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("kafka tools"),
]

#: Broker settings that differ between both sides: addresses, settings of the test's Kafka, and the
#: gateway's own defaults.
DIFFERENT = frozenset({
    "advertised.listeners", "group.consumer.assignors", "group.coordinator.rebalance.protocols",
    "group.max.size", "listener.security.protocol.map", "listeners", "log.dirs", "max.connections",
    "max.connections.per.ip", "offsets.topic.num.partitions", "sasl.enabled.mechanisms",
    "sasl.server.max.receive.size",
})  # fmt: skip
#: Settings that the tools request by name.
REQUESTED = frozenset({
    "advertised.listeners", "group.initial.rebalance.delay.ms", "group.max.session.timeout.ms",
    "group.min.session.timeout.ms", "log.cleaner.backoff.ms", "log.cleaner.enable",
    "log.retention.hours", "offset.metadata.max.bytes", "offsets.retention.minutes",
    "offsets.topic.num.partitions", "offsets.topic.replication.factor",
})  # fmt: skip


@pytest.fixture(scope="module")
def sides(compared_brokers: ComparedBrokers) -> ComparedBrokers:
    return compared_brokers


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest, sides: ComparedBrokers) -> Ends:
    return play_selected(request, sides, VERSION)


def prepare(sides: ComparedBrokers, name: str, partitions: int, records: int = 0) -> None:
    """Create a topic on both sides and write records to partition 0.

    Each record is a separate batch; their times are 1000, 2000, ...
    """
    for at in (sides.gateway, sides.kafka):
        admin = KafkaAdminClient(bootstrap_servers=at)
        admin.create_topics([NewTopic(name, partitions, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=at, linger_ms=0)
        for number in range(records):
            producer.send(name, b"value", partition=0, timestamp_ms=1000 * (number + 1)).get(120)
        producer.close()


def same(
    *commands: Command, codes: Sequence[int] = ()
) -> Generator[Sequence[Command], Outputs, str]:
    """A step whose output must be equal on both sides; returns it.

    `codes` are the expected exit codes, by default 0.
    """
    ours, theirs = yield commands
    assert [one.code for one in theirs] == list(codes or [0] * len(commands)), theirs
    assert ours == theirs
    return "".join(one.output for one in ours)


def topics(*arguments: str) -> Command:
    return ("kafka-topics", *arguments)


def configs(*arguments: str) -> Command:
    return ("kafka-configs", *arguments)


@in_steps
def test_kafka_topics_matches_kafka(sides: ComparedBrokers) -> Steps:
    settings = ("--config", "retention.ms=5000", "--config", "cleanup.policy=compact")
    yield from same(
        topics(
            "--create",
            "--topic",
            "invoices",
            "--partitions",
            "3",
            "--replication-factor",
            "1",
            *settings,
        ),
        topics("--create", "--topic", "assigned", "--replica-assignment", "1,1,1"),
        topics("--create", "--topic", "default"),
    )
    output = yield from same(
        topics("--describe", "--topic", "assigned"),
        topics("--describe", "--topic", "default"),
        topics("--alter", "--topic", "invoices", "--partitions", "5"),
    )
    assert "PartitionCount: 3" in output
    output = yield from same(
        topics("--describe", "--topic", "invoices"), topics("--delete", "--topic", "invoices")
    )
    assert (
        "PartitionCount: 5\tReplicationFactor: 1\tConfigs: cleanup.policy=compact,retention.ms=5000"
        in output
    )
    output = yield from same(topics("--list"))
    assert "default" in output
    assert "invoices" not in output


@in_steps
def test_errors_of_kafka_topics_match_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "failing", 2)
    yield from same(
        topics("--create", "--topic", "failing"),
        topics("--alter", "--topic", "failing", "--partitions", "1"),
        topics("--describe", "--topic", "never"),
        topics("--delete", "--topic", "never"),
        topics("--create", "--topic", "elsewhere", "--replica-assignment", "1,7"),
        topics(
            "--alter", "--topic", "failing", "--partitions", "3", "--replica-assignment", "1,1,9"
        ),
        codes=[1, 1, 1, 1, 1, 1],
    )


@in_steps
def test_kafka_topics_accepts_any_replication_factor_and_shows_one(sides: ComparedBrokers) -> Steps:
    ours, theirs = yield [
        topics("--create", "--topic", "three", "--partitions", "1", "--replication-factor", "3"),
        topics("--describe", "--topic", "three"),
        # The lists of other tests must be equal.
        topics("--delete", "--topic", "three"),
    ]
    assert ([one.code for one in ours], theirs[0].code) == ([0, 0, 0], 1)
    assert "ReplicationFactor: 1" in ours[1].output


@in_steps
def test_kafka_topics_shows_consumer_offsets_as_internal(sides: ComparedBrokers) -> Steps:
    for at in (sides.gateway, sides.kafka):
        wait_for_offsets_topic(at)
    # The topics that other tests create are in both lists in the next step.
    yield []
    ours, theirs = yield [
        topics("--list"),
        topics("--list", "--exclude-internal"),
        topics("--describe", "--topic", "__consumer_offsets"),
    ]
    names_of = [[one.output.split() for one in found[:2]] for found in (ours, theirs)]
    assert names_of[0] == names_of[1]
    assert ["__consumer_offsets" in names for names in names_of[0]] == [True, False]
    headings = [
        sorted(re.split("[\t,]", found[2].output.splitlines()[0])) for found in (ours, theirs)
    ]
    # The test's Kafka is configured with fewer partitions.
    assert headings[0] == sorted(
        word.replace("PartitionCount: 4", "PartitionCount: 50") for word in headings[1]
    )


@in_steps
def test_kafka_configs_of_a_topic_match_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "altered", 1)
    topic = ("--entity-type", "topics", "--entity-name", "altered")
    ours, theirs = yield [
        configs("--describe", *topic, "--all"),
        configs(
            "--alter",
            *topic,
            "--add-config",
            "max.message.bytes=2000,cleanup.policy=[compact,delete]",
        ),
    ]
    our_changes, their_changes = yield [
        configs("--alter", *topic, "--delete-config", "max.message.bytes"),
        configs("--alter", *topic, "--add-config", "retention.ms=x"),
    ]
    # Kafka has no entry.format.
    our_own = [
        line
        for line in ours[0].output.splitlines()
        if not line.startswith("  entry.format=mixed_kafka ")
    ]
    assert sorted(our_own) == sorted(theirs[0].output.splitlines())
    assert [ours[1], our_changes[0]] == [theirs[1], their_changes[0]]
    wrong = "Invalid value x for configuration retention.ms: Not a number of type LONG"
    assert [(one.code, wrong in one.output) for one in (our_changes[1], their_changes[1])] == [
        (1, True)
    ] * 2
    output = yield from same(configs("--describe", *topic))
    assert "cleanup.policy=compact,delete" in output


@in_steps
def test_kafka_configs_of_a_broker_have_names_and_defaults_of_kafka(
    sides: ComparedBrokers,
) -> Steps:
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    both = yield [configs("--describe", *broker, "--all")]
    ours, theirs = [
        dict(re.findall(r"^  (\S+?)=(.*?) sensitive=", printed.output, re.MULTILINE))
        for (printed,) in both
    ]
    assert ours.pop("entry.format") == "mixed_kafka"
    assert REQUESTED <= set(ours) < set(theirs)
    assert {name: ours[name] for name in ours if name not in DIFFERENT} == {
        name: theirs[name] for name in ours if name not in DIFFERENT
    }


@in_steps
def test_kafka_configs_alters_a_running_broker(sides: ComparedBrokers) -> Steps:
    prepare(sides, "inheriting", 1)
    # After the steps of other tests, whose topics inherit what is altered.
    for _ in range(4):
        yield []
    broker, every = (
        ("--entity-type", "brokers", "--entity-name", "1"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    output = yield from same(
        configs(
            "--alter",
            *every,
            "--add-config",
            "message.max.bytes=3000,log.cleanup.policy=[compact,delete],log.segment.bytes=1048576,"
            "log.cleaner.min.cleanable.ratio=0.25",
        ),
        configs(
            "--alter", *broker, "--add-config", "message.max.bytes=2000,log.retention.ms=60000"
        ),
    )
    assert "Completed updating config for broker 1" in output
    ours, theirs = yield [
        configs("--describe", *broker),
        configs("--describe", *every),
        configs("--describe", "--entity-type", "topics", "--entity-name", "inheriting", "--all"),
        configs("--alter", *broker, "--delete-config", "message.max.bytes,log.retention.ms"),
        configs(
            "--alter",
            *every,
            "--delete-config",
            "message.max.bytes,log.cleanup.policy,log.segment.bytes,log.cleaner.min.cleanable.ratio",
        ),
    ]
    assert [one.code for one in (*ours, *theirs)] == [0] * (len(ours) + len(theirs))
    shown = [[sorted(comparable_lines(one.output)) for one in found] for found in (ours, theirs)]
    assert shown[0] == shown[1]
    assert any(
        "max.message.bytes=2000" in line
        and "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=3000" in line
        for line in shown[0][2]
    )
    output = yield from same(configs("--describe", *broker), configs("--describe", *every))
    assert "DYNAMIC" not in output


def comparable_lines(output: str) -> list[str]:
    """The lines of configs that exist on both sides."""
    return [line for line in output.splitlines() if not line.startswith("  entry.format=")]


@in_steps
def test_errors_of_kafka_configs_for_a_broker_match_kafka(sides: ComparedBrokers) -> Steps:
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    refused = [
        "num.partitions=3",
        "message.max.bytes=-1",
        "log.retention.ms=x",
        "log.message.timestamp.type=Nonsense",
    ]
    found = yield [configs("--alter", *broker, "--add-config", change) for change in refused]
    ours, theirs = [
        [
            (one.code, re.findall("InvalidRequestException: (.*)", one.output)[-1:])
            for one in printed
        ]
        for printed in found
    ]
    assert ours == theirs
    assert [code for code, _ in ours] == [1] * len(refused)


@in_steps
def test_get_offsets_delete_records_and_log_dirs_match_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "dated", 2, records=4)
    offsets = [
        {"topic": "dated", "partition": 0, "offset": 3},
        {"topic": "dated", "partition": 1, "offset": -1},
    ]

    def offsets_at(time: str) -> Command:
        return "kafka-get-offsets", "--topic", "dated", "--time", time

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps({"version": 1, "partitions": offsets}))
        file.flush()
        (our_sizes, *ours), (their_sizes, *theirs) = yield [
            ("kafka-log-dirs", "--describe", "--topic-list", "dated"),
            *(
                offsets_at(time)
                for time in ("latest", "earliest", "max-timestamp", "2500", "99999")
            ),
            ("kafka-delete-records", "--offset-json-file", file.name),
            offsets_at("earliest"),
            offsets_at("1000"),
        ]
    assert rows_of(our_sizes.output) == rows_of(their_sizes.output)
    assert ours == theirs
    assert [one.code for one in theirs] == [0] * len(theirs)
    output = "".join(one.output for one in ours)
    assert "dated-0\tlow_watermark: 3" in output
    assert output.endswith("dated:0:3\n")


def rows_of(output: str) -> list[tuple[str, int]]:
    """Return the partitions and their bytes that kafka-log-dirs printed."""
    (directory,) = json.loads(output.splitlines()[-1])["brokers"][0]["logDirs"]
    assert directory["error"] is None
    return sorted((row["partition"], row["size"]) for row in directory["partitions"])


@in_steps
def test_kafka_broker_api_versions_knows_all_versions(sides: ComparedBrokers) -> Steps:
    (printed,), _ = yield [("kafka-broker-api-versions",)]
    assert printed.code == 0
    assert "Produce(0): 0 to " in printed.output
    assert "UNKNOWN" not in printed.output


def test_admin_tools_of_kafka_4_match_kafka(
    sides: ComparedBrokers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Tools for replicas, transactions, ACLs and tokens."""
    prepare(sides, "tooled", 1)
    folder = tmp_path_factory.mktemp("tools")
    (empty := folder / "empty.properties").touch()
    row = {"topic": "tooled", "partition": 0, "replicas": [1], "log_dirs": ["any"]}
    (moves := folder / "moves.json").write_text(json.dumps({"version": 1, "partitions": [row]}))
    partition = ("--topic", "tooled", "--partition", "0")
    config, plan = ("--command-config", str(empty)), ("--reassignment-json-file", str(moves))
    ours, theirs = sides.tools(
        ("kafka-acls", "--list"),
        (
            "kafka-acls",
            "--add",
            "--allow-principal",
            "User:a",
            "--operation",
            "Read",
            "--topic",
            "tooled",
        ),
        ("kafka-client-metrics", "--list"),
        ("kafka-cluster", "list-endpoints"),
        ("kafka-delegation-tokens", "--describe", *config),
        ("kafka-delegation-tokens", "--create", "--max-life-time-period", "-1", *config),
        ("kafka-leader-election", "--election-type", "preferred", *partition),
        ("kafka-leader-election", "--election-type", "unclean", "--all-topic-partitions"),
        ("kafka-reassign-partitions", "--list"),
        ("kafka-reassign-partitions", "--execute", *plan),
        ("kafka-reassign-partitions", "--verify", *plan),
        ("kafka-reassign-partitions", "--cancel", *plan),
        ("kafka-share-groups", "--describe", "--group", "shared"),
        ("kafka-streams-groups", "--describe", "--group", "streaming"),
        ("kafka-transactions", "list"),
        ("kafka-transactions", "describe", "--transactional-id", "never"),
        ("kafka-transactions", "describe-producers", *partition),
        ("kafka-transactions", "find-hanging", "--broker-id", "1"),
        ("kafka-transactions", "abort", *partition, "--start-offset", "0"),
        version=MODERN,
    )
    assert [without_folders(one) for one in ours] == [without_folders(one) for one in theirs]


def without_folders(printed: CommandOutput) -> CommandOutput:
    """Remove the stores' folders and the width of port numbers."""
    text = re.sub(r'"log_dirs":\["[^"]*"\]', "", printed.output)
    return CommandOutput(printed.code, re.sub(r"127\.0\.0\.1 \d+ *", "ADDRESS ", text))


def test_tools_of_kafka_4_succeed_or_print_why_a_feature_is_not_supported(
    sides: ComparedBrokers,
) -> None:
    refused = {
        ("kafka-metadata-quorum", "describe", "--status"): "has no metadata quorum",
        (
            "kafka-features",
            "upgrade",
            "--feature",
            "metadata.version=999",
        ): "does not support this feature",
        ("kafka-cluster", "unregister", "--id", "77"): "Broker ID 77 is not currently registered",
        (
            "kafka-client-metrics",
            "--alter",
            "--name",
            "all",
            "--metrics",
            "org.apache",
        ): "client metrics",
    }
    cluster, groups, *others = run_tools(
        sides.gateway,
        ("kafka-cluster", "cluster-id"),
        ("kafka-groups", "--list"),
        *refused,
        version=MODERN,
    )
    assert [cluster.code, groups.code] == [0, 0]
    assert cluster.output.startswith("Cluster ID: ")
    assert [
        (one.code, words in one.output) for one, words in zip(others, refused.values(), strict=True)
    ] == [(1, True)] * len(refused)
