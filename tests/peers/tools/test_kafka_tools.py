"""Kafka's command-line tools print the same for the gateway as for Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from tests.peers.comparison import (
    Command,
    CommandOutput,
    ComparedBrokers,
    side_by_side,
    wait_for_offsets_topic,
)
from tests.testkit.kafka import MODERN

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("kafka tools"),
]  # One pair of brokers for all tests.

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
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedBrokers]:
    with side_by_side(tmp_path_factory.mktemp("gateway")) as both:
        yield both


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


def same(sides: ComparedBrokers, *commands: Command, codes: Sequence[int] = ()) -> str:
    """Return the output, which must be equal on both sides.

    `codes` are the expected exit codes, by default 0.
    """
    ours, theirs = sides.tools(*commands)
    assert [one.code for one in theirs] == list(codes or [0] * len(commands)), theirs
    assert ours == theirs
    return "".join(one.output for one in ours)


def topics(*arguments: str) -> Command:
    return ("kafka-topics", *arguments)


def configs(*arguments: str) -> Command:
    return ("kafka-configs", *arguments)


def test_kafka_topics_matches_kafka(sides: ComparedBrokers) -> None:
    settings = ("--config", "retention.ms=5000", "--config", "cleanup.policy=compact")
    same(
        sides,
        topics(
            "--create",
            "--topic",
            "orders",
            "--partitions",
            "3",
            "--replication-factor",
            "1",
            *settings,
        ),
        topics("--create", "--topic", "assigned", "--replica-assignment", "1,1,1"),
        topics("--create", "--topic", "default"),
    )
    # Kafka applies a change asynchronously; starting another process takes longer.
    output = same(
        sides,
        topics("--describe", "--topic", "assigned"),
        topics("--describe", "--topic", "default"),
        topics("--alter", "--topic", "orders", "--partitions", "5"),
    )
    assert "PartitionCount: 3" in output
    output = same(
        sides, topics("--describe", "--topic", "orders"), topics("--delete", "--topic", "orders")
    )
    assert (
        "PartitionCount: 5\tReplicationFactor: 1\tConfigs: cleanup.policy=compact,retention.ms=5000"
        in output
    )
    assert "orders" not in same(sides, topics("--list"))


def test_errors_of_kafka_topics_match_kafka(sides: ComparedBrokers) -> None:
    prepare(sides, "failing", 2)
    same(
        sides,
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


def test_kafka_topics_accepts_any_replication_factor_and_shows_one(sides: ComparedBrokers) -> None:
    ours, theirs = sides.tools(
        topics("--create", "--topic", "three", "--partitions", "1", "--replication-factor", "3"),
        topics("--describe", "--topic", "three"),
    )
    assert (ours[0].code, theirs[0].code) == (0, 1)
    assert "ReplicationFactor: 1" in ours[1].output


def test_kafka_topics_shows_consumer_offsets_as_internal(
    sides: ComparedBrokers,
) -> None:
    for at in (sides.gateway, sides.kafka):
        wait_for_offsets_topic(at)
    ours, theirs = sides.tools(
        topics("--list"),
        topics("--list", "--exclude-internal"),
        topics("--describe", "--topic", "__consumer_offsets"),
    )
    # Another test creates a topic that Kafka refuses.
    names_of = [
        [sorted({*one.output.split()} - {"three"}) for one in found[:2]] for found in (ours, theirs)
    ]
    assert names_of[0] == names_of[1]
    assert ["__consumer_offsets" in names for names in names_of[0]] == [True, False]
    headings = [
        sorted(re.split("[\t,]", found[2].output.splitlines()[0])) for found in (ours, theirs)
    ]
    # The test's Kafka is configured with fewer partitions.
    assert headings[0] == sorted(
        word.replace("PartitionCount: 4", "PartitionCount: 50") for word in headings[1]
    )


def test_kafka_configs_of_a_topic_match_kafka(sides: ComparedBrokers) -> None:
    prepare(sides, "altered", 1)
    topic = ("--entity-type", "topics", "--entity-name", "altered")
    ours, theirs = sides.tools(
        configs("--describe", *topic, "--all"),
        configs(
            "--alter",
            *topic,
            "--add-config",
            "max.message.bytes=2000,cleanup.policy=[compact,delete]",
        ),
    )
    our_changes, their_changes = sides.tools(
        configs("--alter", *topic, "--delete-config", "max.message.bytes"),
        configs("--alter", *topic, "--add-config", "retention.ms=x"),
    )
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
    assert "cleanup.policy=compact,delete" in same(sides, configs("--describe", *topic))


def test_kafka_configs_of_a_broker_have_names_and_defaults_of_kafka(
    sides: ComparedBrokers,
) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    outputs = [found[0].output for found in sides.tools(configs("--describe", *broker, "--all"))]
    ours, theirs = [
        dict(re.findall(r"^  (\S+?)=(.*?) sensitive=", output, re.MULTILINE)) for output in outputs
    ]
    assert ours.pop("entry.format") == "mixed_kafka"
    assert REQUESTED <= set(ours) < set(theirs)
    assert {name: ours[name] for name in ours if name not in DIFFERENT} == {
        name: theirs[name] for name in ours if name not in DIFFERENT
    }


def test_kafka_configs_alters_a_running_broker(sides: ComparedBrokers) -> None:
    prepare(sides, "inheriting", 1)
    broker, every = (
        ("--entity-type", "brokers", "--entity-name", "1"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    output = same(
        sides,
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
    # Kafka applies a change asynchronously; starting another process takes longer.
    ours, theirs = sides.tools(
        configs("--describe", *broker),
        configs("--describe", *every),
        configs("--describe", "--entity-type", "topics", "--entity-name", "inheriting", "--all"),
    )
    shown = [[sorted(comparable_lines(one.output)) for one in found] for found in (ours, theirs)]
    assert shown[0] == shown[1]
    assert any(
        "max.message.bytes=2000" in line
        and "DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=3000" in line
        for line in shown[0][2]
    )
    same(
        sides,
        configs("--alter", *broker, "--delete-config", "message.max.bytes,log.retention.ms"),
        configs(
            "--alter",
            *every,
            "--delete-config",
            "message.max.bytes,log.cleanup.policy,log.segment.bytes,log.cleaner.min.cleanable.ratio",
        ),
    )
    assert "DYNAMIC" not in same(
        sides, configs("--describe", *broker), configs("--describe", *every)
    )


def comparable_lines(output: str) -> list[str]:
    """The lines of configs that exist on both sides."""
    return [line for line in output.splitlines() if not line.startswith("  entry.format=")]


def test_errors_of_kafka_configs_for_a_broker_match_kafka(sides: ComparedBrokers) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    refused = [
        "num.partitions=3",
        "message.max.bytes=-1",
        "log.retention.ms=x",
        "log.message.timestamp.type=Nonsense",
    ]
    found = sides.tools(
        *(configs("--alter", *broker, "--add-config", change) for change in refused)
    )
    ours, theirs = [
        [
            (one.code, re.findall("InvalidRequestException: (.*)", one.output)[-1:])
            for one in printed
        ]
        for printed in found
    ]
    assert ours == theirs
    assert [code for code, _ in ours] == [1] * len(refused)


def test_get_offsets_delete_records_and_log_dirs_match_kafka(
    sides: ComparedBrokers, tmp_path_factory: pytest.TempPathFactory
) -> None:
    prepare(sides, "dated", 2, records=4)
    file = tmp_path_factory.mktemp("records") / "offsets.json"
    offsets = [
        {"topic": "dated", "partition": 0, "offset": 3},
        {"topic": "dated", "partition": 1, "offset": -1},
    ]
    file.write_text(json.dumps({"version": 1, "partitions": offsets}))

    def offsets_at(time: str) -> Command:
        return "kafka-get-offsets", "--topic", "dated", "--time", time

    sizes = "kafka-log-dirs", "--describe", "--topic-list", "dated"
    ours, theirs = [[rows_of(one.output) for one in found] for found in sides.tools(sizes)]
    assert ours == theirs
    output = same(
        sides,
        *(offsets_at(time) for time in ("latest", "earliest", "max-timestamp", "2500", "99999")),
        ("kafka-delete-records", "--offset-json-file", str(file)),
        offsets_at("earliest"),
        offsets_at("1000"),
    )
    assert "dated-0\tlow_watermark: 3" in output
    assert output.endswith("dated:0:3\n")


def rows_of(output: str) -> list[tuple[str, int]]:
    """Return the partitions and their bytes that kafka-log-dirs printed."""
    (directory,) = json.loads(output.splitlines()[-1])["brokers"][0]["logDirs"]
    assert directory["error"] is None
    return sorted((row["partition"], row["size"]) for row in directory["partitions"])


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


def test_tools_whose_output_depends_on_the_cluster_succeed(sides: ComparedBrokers) -> None:
    versions, _ = sides.tools(("kafka-broker-api-versions",))
    found, _ = sides.tools(
        ("kafka-cluster", "cluster-id"), ("kafka-groups", "--list"), version=MODERN
    )
    assert [one.code for one in (*versions, *found)] == [0, 0, 0]
    assert "Produce(0): 0 to " in versions[0].output
    assert "UNKNOWN" not in versions[0].output
    assert found[0].output.startswith("Cluster ID: ")


def test_tools_of_kafka_4_print_the_reasons_for_unsupported_features(
    sides: ComparedBrokers,
) -> None:
    ours, _ = sides.tools(
        ("kafka-metadata-quorum", "describe", "--status"),
        ("kafka-features", "upgrade", "--feature", "metadata.version=999"),
        ("kafka-cluster", "unregister", "--id", "77"),
        ("kafka-client-metrics", "--alter", "--name", "all", "--metrics", "org.apache"),
        version=MODERN,
    )
    told = [
        "has no metadata quorum",
        "does not support this feature",
        "Broker ID 77 is not currently registered",
        "client metrics",
    ]
    assert [(one.code, words in one.output) for one, words in zip(ours, told, strict=True)] == [
        (1, True)
    ] * len(told)
