"""`kopgate cluster` with a fake server; tests/peers runs the same command against Kafka."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from kafka.errors import IncompatibleBrokerVersion, KafkaConnectionError
from kafka.protocol.admin.cluster import DescribeQuorumRequest, DescribeQuorumResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse

from gateway.cli.cluster.cluster_description import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from gateway.cli.main import main

KAFKAS_TOPIC_ID = "5b1f9a8e-8a55-4c4e-9d0e-3b5f6a2c1d00"
CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, LEADER_NOT_AVAILABLE = 31, 35, 5

_Topic = MetadataResponse.MetadataResponseTopic
_Replica = DescribeQuorumResponse.TopicData.PartitionData.ReplicaState


def topic(name, leaders, topic_id=None, epochs=None):
    """A topic by the leader of each partition."""
    rows = [
        _Topic.MetadataResponsePartition(
            error_code=LEADER_NOT_AVAILABLE if leader == -1 else 0,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epochs[index] if epochs else 0,
        )
        for index, leader in enumerate(leaders)
    ]
    # Kafka returns partitions unordered.
    return _Topic(name=name, topic_id=topic_id, partitions=rows[::-1])


def replica(node_id, end, caught_up):
    return _Replica(replica_id=node_id, log_end_offset=end, last_caught_up_timestamp=caught_up)


class FakeCluster:
    """The used part of AdminClient: three gateways; node 2 leads the metadata log."""

    def __init__(self):
        self.config = {"request_timeout_ms": 0}
        self.topics = [
            topic("orders", [1, 2, 1]),
            topic(OFFSETS_TOPIC, [1, 2], OFFSETS_TOPIC_ID, epochs=[5, 7]),
        ]
        self.quorum_error = 0
        self.quorum_failure = None
        self.voters = [replica(2, 900, 50_000)]
        self.observers = [replica(3, -1, -1), replica(1, 880, 49_700)]

    def send(self, request):
        if isinstance(request, MetadataRequest):
            assert request.topics is None
            assert not request.allow_auto_topic_creation
            return self._metadata()
        assert isinstance(request, DescribeQuorumRequest)
        if self.quorum_failure:
            raise self.quorum_failure
        return self._quorum(request)

    def _metadata(self):
        nodes = [(3, "c", None), (1, "a", "east"), (2, "b", None)]
        return SimpleNamespace(
            brokers=[
                SimpleNamespace(node_id=node_id, host=host, port=9092, rack=rack)
                for node_id, host, rack in nodes
            ],
            cluster_id="a29wZ2F0ZS1yZWZlcmVuYw",
            controller_id=1,
            topics=self.topics,
        )

    def _quorum(self, request):
        (asked,) = request.topics
        (partition,) = asked.partitions
        assert (asked.topic_name, partition.partition_index) == ("__cluster_metadata", 0)
        if self.quorum_error:
            return DescribeQuorumResponse(
                error_code=self.quorum_error,
                error_message="Not authorized.",
                topics=[],
                nodes=[],
            )
        data = DescribeQuorumResponse.TopicData
        row = data.PartitionData(
            partition_index=0,
            leader_id=2,
            leader_epoch=4,
            high_watermark=880,
            current_voters=self.voters,
            observers=self.observers,
        )
        return DescribeQuorumResponse(
            topics=[data(topic_name="__cluster_metadata", partitions=[row])]
        )


@pytest.fixture
def server(connect_to):
    return connect_to(FakeCluster())


def kopgate(*arguments):
    return CliRunner().invoke(main, ["cluster", *arguments])


def described():
    result = kopgate("describe", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_description_has_nodes_metadata_log_and_shards(server):
    result = kopgate("describe")
    assert (result.stdout, result.stderr, result.exit_code) == (
        """\
cluster a29wZ2F0ZS1yZWZlcmVuYw: 3 nodes, controller 2
  NODE  HOST  PORT  RACK  PARTITIONS  SHARDS
  1     a     9092  east  2           1
  2     b     9092  -     1           1
  3     c     9092  -     0           0

metadata log: leader 2, epoch 4, end offset 900
  NODE  ROLE      END  LAG  CAUGHT UP
  1     observer  880  20   300 ms ago
  2     voter     900  0    0 ms ago
  3     observer  -    -    -

2 shards
  SHARD  LEADER  EPOCH
  0      1       5
  1      2       7
""",
        "",
        0,
    )


def test_json_has_the_same_values(server):
    assert described() == {
        "cluster": "a29wZ2F0ZS1yZWZlcmVuYw",
        "controller": 2,
        "nodes": [
            {
                "node": 1,
                "host": "a",
                "port": 9092,
                "rack": "east",
                "partitions": 2,
                "shards": 1,
            },
            {"node": 2, "host": "b", "port": 9092, "rack": None, "partitions": 1, "shards": 1},
            {"node": 3, "host": "c", "port": 9092, "rack": None, "partitions": 0, "shards": 0},
        ],
        "partitions_without_leader": 0,
        "shards": [
            {"shard": 0, "leader": 1, "epoch": 5},
            {"shard": 1, "leader": 2, "epoch": 7},
        ],
        "metadata_log": {
            "leader": 2,
            "epoch": 4,
            "end": 900,
            "replicas": [
                {"node": 1, "role": "observer", "end": 880, "lag": 20, "caught_up_ms_ago": 300},
                {"node": 2, "role": "voter", "end": 900, "lag": 0, "caught_up_ms_ago": 0},
                {"node": 3, "role": "observer", "end": None, "lag": None, "caught_up_ms_ago": None},
            ],
        },
    }


def test_partitions_and_shards_without_leader_are_shown(server):
    server.topics = [
        topic("orders", [-1, 2]),
        topic(OFFSETS_TOPIC, [-1, 2], OFFSETS_TOPIC_ID, epochs=[-1, 7]),
    ]
    lines = kopgate("describe").stdout.splitlines()
    assert lines[0].endswith(": 3 nodes, controller 2, 1 partition without leader")
    assert lines[-2:] == ["  0      -       -", "  1      2       7"]
    assert described()["partitions_without_leader"] == 1


def test_offsets_topic_of_kafka_is_a_topic_and_has_no_shards(server):
    server.topics = [topic(OFFSETS_TOPIC, [1, 1], KAFKAS_TOPIC_ID)]
    found = described()
    assert found["shards"] is None
    assert [(node["partitions"], node["shards"]) for node in found["nodes"]] == [
        (2, None),
        (0, None),
        (0, None),
    ]
    assert "SHARD" not in kopgate("describe").stdout


@pytest.mark.parametrize("how", ["error code", "no such request"])
def test_cluster_without_metadata_log_is_described_by_its_nodes(server, how):
    """A gateway with an embedded store, Kafka with ZooKeeper, and Kafka before 3.0."""
    if how == "error code":
        server.quorum_error = UNSUPPORTED_VERSION
    else:
        server.quorum_failure = IncompatibleBrokerVersion("no version of DescribeQuorum")
    found = described()
    assert (found["controller"], found["metadata_log"], found["shards"]) == (1, None, None)
    assert len(kopgate("describe").stdout.splitlines()) == 5


def test_refused_metadata_log_is_an_error_beside_the_nodes(server):
    server.quorum_error = CLUSTER_AUTHORIZATION_FAILED
    result = kopgate("describe")
    assert result.stdout.startswith("cluster a29wZ2F0ZS1yZWZlcmVuYw: 3 nodes, controller 1\n")
    assert (result.stderr, result.exit_code) == (
        "Error: metadata log: Not authorized; log in (--user) as a super user or with this "
        "permission on the cluster\n",
        1,
    )


def test_controller_is_that_of_metadata_while_the_log_has_no_leader(server, monkeypatch):
    quorum = server._quorum

    def without_leader(request):
        answer = quorum(request)
        answer.topics[0].partitions[0].leader_id = -1
        return answer

    monkeypatch.setattr(server, "_quorum", without_leader)
    found = described()
    assert found["controller"] == 1
    assert (found["metadata_log"]["leader"], found["metadata_log"]["end"]) == (None, 880)
    assert "metadata log: no leader, epoch 4" in kopgate("describe").stdout


def test_lost_connection_is_not_reported_as_a_cluster_without_metadata_log(server):
    server.quorum_failure = KafkaConnectionError("gone")
    assert isinstance(kopgate("describe").exception, KafkaConnectionError)
