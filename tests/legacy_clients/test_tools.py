"""Kafka's own command-line tools of 3.9.2, and kcat -L, do their work on the broker as operators' scripts expect."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.legacy_clients.clients import Client, Record, produce
from tests.legacy_clients.install import install
from tests.peers.kafka import tool

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

PARTITIONS = 3
RECORDS = 5


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A topic of three partitions that kafka-topics made."""
    name = f"tools-{uuid.uuid4().hex[:8]}"
    tool("kafka-topics", bootstrap, "--create", "--topic", name, "--partitions", str(PARTITIONS), "--config", "retention.ms=7200000")
    return name


@pytest.fixture
def filled(bootstrap: str, topic: str, client: Callable[[str], Client]) -> str:
    """The same with five records in partition 0."""
    produce(client("kafka-python-3.0.12"), bootstrap, [Record(topic, 0, None, b"%d" % number) for number in range(RECORDS)])
    return topic


def offsets(bootstrap: str, topic: str, time: str) -> dict[int, int]:
    """What kafka-get-offsets prints as topic:partition:offset."""
    lines = tool("kafka-get-offsets", bootstrap, "--topic", topic, "--time", time).split()
    return {int(partition): int(offset) for _, partition, offset in (line.rsplit(":", 2) for line in lines)}


def test_kafka_topics_lists_describes_alters_and_deletes(bootstrap: str, topic: str) -> None:
    assert topic in tool("kafka-topics", bootstrap, "--list").split()
    described = tool("kafka-topics", bootstrap, "--describe", "--topic", topic)
    assert f"PartitionCount: {PARTITIONS}" in described
    assert "retention.ms=7200000" in described
    tool("kafka-topics", bootstrap, "--alter", "--topic", topic, "--partitions", str(PARTITIONS + 1))
    assert f"PartitionCount: {PARTITIONS + 1}" in tool("kafka-topics", bootstrap, "--describe", "--topic", topic)
    tool("kafka-topics", bootstrap, "--delete", "--topic", topic)
    assert topic not in tool("kafka-topics", bootstrap, "--list").split()


def test_kafka_topics_says_that_a_topic_exists(bootstrap: str, topic: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        tool("kafka-topics", bootstrap, "--create", "--topic", topic, "--partitions", "1")
    assert f"Topic '{topic}' already exists" in refused.value.stdout + refused.value.stderr


def test_kafka_configs_sets_shows_and_removes_a_topic_config(bootstrap: str, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool("kafka-configs", bootstrap, "--alter", *entity, "--add-config", "max.message.bytes=70000")
    described = tool("kafka-configs", bootstrap, "--describe", *entity)
    assert "max.message.bytes=70000" in described
    assert "retention.ms=7200000" in described
    tool("kafka-configs", bootstrap, "--alter", *entity, "--delete-config", "max.message.bytes")
    assert "max.message.bytes=70000" not in tool("kafka-configs", bootstrap, "--describe", *entity)


def test_kafka_get_offsets_tells_earliest_and_latest(bootstrap: str, filled: str) -> None:
    assert offsets(bootstrap, filled, "earliest") == dict.fromkeys(range(PARTITIONS), 0)
    assert offsets(bootstrap, filled, "latest") == {**dict.fromkeys(range(PARTITIONS), 0), 0: RECORDS}


def test_kafka_delete_records_moves_the_earliest_offset(bootstrap: str, filled: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": filled, "partition": 0, "offset": 3}]}))
    printed = tool("kafka-delete-records", bootstrap, "--offset-json-file", str(plan))
    assert "low_watermark: 3" in printed
    assert offsets(bootstrap, filled, "earliest")[0] == 3
    assert offsets(bootstrap, filled, "latest")[0] == RECORDS


def test_kcat_lists_brokers_topics_and_partitions(bootstrap: str, topic: str, client: Callable[[str], Client]) -> None:
    kcat = install(client("kcat-1.7.1"))[-1]
    done = subprocess.run([kcat, "-b", bootstrap, "-L", "-J", "-t", topic], capture_output=True, text=True, timeout=30, check=True)
    seen = json.loads(done.stdout)
    assert [broker["name"] for broker in seen["brokers"]] == [bootstrap]
    partitions = {row["partition"]: len(row["replicas"]) for row in seen["topics"][0]["partitions"]}
    assert partitions == dict.fromkeys(range(PARTITIONS), 1)
