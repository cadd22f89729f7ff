"""Kafka's own tools, of 3.9.2, print about the gateway what they print about Kafka 3.9.2."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from tests.peers.sides import Sides, side_by_side

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("kafka tools")]  # one pair of brokers for all of them

#: Settings of brokers that are not the same thing on both sides: where they are, what the tests' Kafka is told, what the gateway chose.
OF_ITS_OWN = frozenset({"listeners", "log.dirs", "sasl.enabled.mechanisms", "max.connections", "max.connections.per.ip"})


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with side_by_side(tmp_path_factory.mktemp("gateway")) as both:
        yield both


def prepare(sides: Sides, name: str, partitions: int, records: int = 0) -> None:
    """A topic on both sides, and in its partition 0 so many records, one a batch, at times 1000, 2000, ..."""
    for at in (sides.gateway, sides.kafka):
        admin = KafkaAdminClient(bootstrap_servers=at)
        admin.create_topics([NewTopic(name, partitions, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=at, linger_ms=0)
        for number in range(records):
            producer.send(name, b"value", partition=0, timestamp_ms=1000 * (number + 1)).get(30)
        producer.close()


def same(sides: Sides, tool: str, *arguments: str, code: int = 0) -> str:
    """What both sides print, which must be the same, with this exit code."""
    ours, theirs = sides.tool(tool, *arguments)
    assert theirs.code == code, theirs.output
    assert ours == theirs
    return ours.output


def test_kafka_topics_creates_describes_extends_and_deletes(sides: Sides) -> None:
    configs = ("--config", "retention.ms=5000", "--config", "cleanup.policy=compact")
    same(sides, "kafka-topics", "--create", "--topic", "orders", "--partitions", "3", "--replication-factor", "1", *configs)
    same(sides, "kafka-topics", "--alter", "--topic", "orders", "--partitions", "5")
    described = same(sides, "kafka-topics", "--describe", "--topic", "orders")
    assert "PartitionCount: 5\tReplicationFactor: 1\tConfigs: cleanup.policy=compact,retention.ms=5000" in described
    same(sides, "kafka-topics", "--delete", "--topic", "orders")
    assert "orders" not in same(sides, "kafka-topics", "--list")


def test_kafka_topics_fails_in_the_same_words(sides: Sides) -> None:
    prepare(sides, "failing", 2)
    same(sides, "kafka-topics", "--create", "--topic", "failing", code=1)
    same(sides, "kafka-topics", "--alter", "--topic", "failing", "--partitions", "1", code=1)
    same(sides, "kafka-topics", "--describe", "--topic", "never", code=1)


def test_kafka_topics_creates_with_a_manual_assignment_and_without_any_number(sides: Sides) -> None:
    same(sides, "kafka-topics", "--create", "--topic", "assigned", "--replica-assignment", "1,1,1")
    same(sides, "kafka-topics", "--create", "--topic", "default")
    assert "PartitionCount: 3" in same(sides, "kafka-topics", "--describe", "--topic", "assigned")


def test_kafka_topics_asks_for_any_replication_factor_and_gets_one(sides: Sides) -> None:
    ours, theirs = sides.tool("kafka-topics", "--create", "--topic", "three", "--partitions", "1", "--replication-factor", "3")
    assert (ours.code, theirs.code) == (0, 1)
    described, _ = sides.tool("kafka-topics", "--describe", "--topic", "three")
    assert "ReplicationFactor: 1" in described.output


def test_kafka_configs_shows_all_configs_of_a_topic(sides: Sides) -> None:
    prepare(sides, "configured", 1)
    ours, theirs = sides.tool("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", "configured", "--all")
    # Kafka reads its default retention from another config, of hours.
    their_own = theirs.output.replace("DEFAULT_CONFIG:log.retention.hours=168", "DEFAULT_CONFIG:log.retention.ms=604800000")
    assert (ours.code, sorted(ours.output.splitlines())) == (0, sorted(their_own.splitlines()))


def test_kafka_configs_alters_the_configs_of_a_topic(sides: Sides) -> None:
    prepare(sides, "altered", 1)
    topic = ("--entity-type", "topics", "--entity-name", "altered")
    same(sides, "kafka-configs", "--alter", *topic, "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]")
    same(sides, "kafka-configs", "--alter", *topic, "--delete-config", "max.message.bytes")
    assert "cleanup.policy=compact,delete" in same(sides, "kafka-configs", "--describe", *topic)
    wrong = [one for one in sides.tool("kafka-configs", "--alter", *topic, "--add-config", "retention.ms=x") if one.code == 1]
    assert [re.findall("Invalid value.*", one.output)[0] for one in wrong] == [
        "Invalid value x for configuration retention.ms: Not a number of type LONG"
    ] * 2


def test_kafka_configs_shows_a_broker_with_kafka_s_names_and_defaults(sides: Sides) -> None:
    outputs = sides.tool("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    ours, theirs = [dict(re.findall(r"^  (\S+?)=(.*?) sensitive=", one.output, re.MULTILINE)) for one in outputs]
    assert set(ours) < set(theirs)
    assert {name: ours[name] for name in ours if name not in OF_ITS_OWN} == {name: theirs[name] for name in ours if name not in OF_ITS_OWN}


def test_kafka_configs_is_told_that_a_broker_is_not_altered_while_it_runs(sides: Sides) -> None:
    ours, _ = sides.tool(
        "kafka-configs", "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.cleaner.threads=1"
    )
    assert ours.code == 1
    assert "cannot be altered while it runs" in ours.output


@pytest.mark.parametrize("time", ["latest", "max-timestamp", "2500"])
def test_kafka_get_offsets_finds_the_same_offsets(sides: Sides, time: str) -> None:
    if time == "latest":
        prepare(sides, "dated", 2, records=4)
    same(sides, "kafka-get-offsets", "--topic", "dated", "--time", time)


def test_kafka_delete_records_moves_the_start(sides: Sides, tmp_path_factory: pytest.TempPathFactory) -> None:
    prepare(sides, "trimmed", 2, records=4)
    file = tmp_path_factory.mktemp("records") / "offsets.json"
    offsets = [{"topic": "trimmed", "partition": 0, "offset": 3}, {"topic": "trimmed", "partition": 1, "offset": -1}]
    file.write_text(json.dumps({"version": 1, "partitions": offsets}))
    assert "trimmed-0\tlow_watermark: 3" in same(sides, "kafka-delete-records", "--offset-json-file", str(file))
    assert "trimmed:0:3" in same(sides, "kafka-get-offsets", "--topic", "trimmed", "--time", "earliest")


def test_kafka_log_dirs_tells_the_same_sizes(sides: Sides) -> None:
    prepare(sides, "sized", 2, records=3)
    outputs = sides.tool("kafka-log-dirs", "--describe", "--topic-list", "sized")
    ours, theirs = [json.loads(one.output.splitlines()[-1])["brokers"][0]["logDirs"][0] for one in outputs]
    assert ours["error"] is None
    assert sorted((row["partition"], row["size"]) for row in ours["partitions"]) == sorted(
        (row["partition"], row["size"]) for row in theirs["partitions"]
    )
