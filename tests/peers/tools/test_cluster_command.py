"""`kopgate cluster` against Kafka 3.9.2, Kafka 4 and the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kafka.admin import KafkaAdminClient

from gateway.cli.main import main
from tests.legacy_clients.brokers import are_required, gateway
from tests.peers.comparison import MATCHING_OPTIONS
from tests.peers.groups.group_setups import commit_offsets
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import CLUSTER_ID, MODERN, VERSION, Kafka, tool
from tests.used_peers import uses

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("cluster command"),
]

TOPIC = "cluster-described"


@pytest.fixture(scope="module", params=[pytest.param(VERSION, marks=pytest.mark.slow), MODERN])
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == MODERN:
        uses("Apache Kafka", MODERN)
        yield request.getfixturevalue("modern_kafka")
        return
    with ExitStack() as running:
        try:
            broker = running.enter_context(Kafka.start(version=request.param))
        except CannotInstall as missing:
            (pytest.fail if are_required() else pytest.skip)(str(missing))
        yield broker.bootstrap


def create_topic_and_group(server: str) -> None:
    """Create a topic with three partitions; the group makes Kafka create its offsets topic."""
    arguments = ["--partitions", "3", "--bootstrap-server", server, "--timeout", "60"]
    assert CliRunner().invoke(main, ["topics", "create", TOPIC, *arguments]).exit_code == 0
    commit_offsets(server, TOPIC, {(TOPIC, 0): 0})


def cluster(server: str, *arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["cluster", "describe", "--bootstrap-server", server, "--timeout", "60", *arguments]
    )


def described(server: str) -> dict[str, Any]:
    result = cluster(server, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_kafka_is_described_without_shards(kafka: str) -> None:
    create_topic_and_group(kafka)
    found = described(kafka)
    assert (found["cluster"], found["controller"], found["shards"]) == (CLUSTER_ID, 1, None)
    assert found["partitions_without_leader"] == 0
    # Other tests use this Kafka, too.
    with closing(KafkaAdminClient(bootstrap_servers=kafka)) as admin:
        partitions = {one["name"]: len(one["partitions"]) for one in admin.describe_topics()}
    assert (partitions[TOPIC], partitions["__consumer_offsets"]) == (3, 4)
    (node,) = found["nodes"]
    assert f"{node['host']}:{node['port']}" == kafka
    assert (node["node"], node["rack"], node["partitions"], node["shards"]) == (
        1,
        None,
        sum(partitions.values()),
        None,
    )


def test_metadata_log_is_that_of_kafkas_own_tool(kafka: str) -> None:
    log = described(kafka)["metadata_log"]
    (row,) = log["replicas"]
    assert (log["leader"], row["node"], row["role"], row["lag"]) == (1, 1, "voter", 0)
    assert row["caught_up_ms_ago"] == 0
    shown = tool("kafka-metadata-quorum", kafka, "describe", "--status")
    status = dict(line.split(":", 1) for line in shown.splitlines())
    assert int(status["LeaderId"]) == log["leader"]
    assert int(status["LeaderEpoch"]) == log["epoch"]
    # The leader appends a record every half second.
    assert 0 < log["end"] <= int(status["HighWatermark"])
    assert "metadata log: leader 1, epoch" in cluster(kafka).stdout


def test_gateway_with_an_embedded_store_is_described_by_its_node(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with gateway(tmp_path_factory.mktemp("gateway"), arguments=MATCHING_OPTIONS) as broker:
        create_topic_and_group(broker.bootstrap)
        found = described(broker.bootstrap)
        assert (found["controller"], found["shards"], found["metadata_log"]) == (1, None, None)
        assert [(node["node"], node["partitions"]) for node in found["nodes"]] == [(1, 3)]
