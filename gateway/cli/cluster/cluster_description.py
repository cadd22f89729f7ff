"""Description of any Kafka cluster: nodes, metadata log and, if its nodes are gateways, shards.

A gateway lists its shards as partitions of `__consumer_offsets`. The topic has the same id in every
gateway and a random one in Kafka.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka import errors
from kafka.protocol.admin.cluster import DescribeQuorumRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from gateway.cli.kafka_client import AdminClient

METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
#: The id of the offsets topic in gateways.
OFFSETS_TOPIC_ID = uuid.UUID("f138d2a6-70da-5d54-b31d-827ed153d8ab")

VOTER, OBSERVER = "voter", "observer"


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node, with the number of partitions and shards that it leads."""

    node_id: int
    host: str
    port: int
    rack: str | None
    partitions: int
    shards: int


@dataclass(frozen=True, slots=True)
class ShardDescription:
    """A shard; `leader` is None while no live node leads it."""

    shard: int
    leader: int | None
    epoch: int | None


@dataclass(frozen=True, slots=True)
class ReplicaDescription:
    """The replay of the metadata log by one node.

    `lag` is the number of offsets behind the leader. `caught_up_ms_ago` is the time since the node
    had replayed everything, by the leader's clock. None: the leader does not know it.
    """

    node_id: int
    role: str
    end: int | None
    lag: int | None
    caught_up_ms_ago: int | None


@dataclass(frozen=True, slots=True)
class MetadataLogDescription:
    leader: int | None
    epoch: int
    end: int
    replicas: tuple[ReplicaDescription, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`shards` is None if the nodes are no gateways, or if they do not list their shards yet."""

    cluster_id: str | None
    controller: int | None
    nodes: tuple[NodeDescription, ...]
    partitions_without_leader: int
    shards: tuple[ShardDescription, ...] | None


def describe_nodes(client: AdminClient) -> ClusterDescription:
    """Describe the cluster by its Metadata. Raises KafkaError."""
    answer = client.send(MetadataRequest(topics=None, allow_auto_topic_creation=False))
    shards = _shards(answer.topics)
    partitions = [
        partition
        for topic in answer.topics
        if shards is None or topic.name != OFFSETS_TOPIC
        for partition in topic.partitions
    ]
    led = Counter(_known(partition.leader_id) for partition in partitions)
    led_shards = Counter(shard.leader for shard in shards or ())
    return ClusterDescription(
        answer.cluster_id,
        _known(answer.controller_id),
        tuple(
            NodeDescription(
                broker.node_id,
                broker.host,
                broker.port,
                broker.rack,
                led[broker.node_id],
                led_shards[broker.node_id],
            )
            for broker in sorted(answer.brokers, key=lambda broker: int(broker.node_id))
        ),
        led[None],
        shards,
    )


def describe_metadata_log(client: AdminClient) -> MetadataLogDescription:
    """Describe the replay of the metadata log. Raises KafkaError.

    IncompatibleBrokerVersion and UnsupportedVersionError mean that there is none: Kafka with
    ZooKeeper, or a gateway with an embedded store.
    """
    topic = DescribeQuorumRequest.TopicData
    answer = client.send(
        DescribeQuorumRequest(
            topics=[
                topic(
                    topic_name=METADATA_TOPIC, partitions=[topic.PartitionData(partition_index=0)]
                )
            ]
        )
    )
    _raise_error(answer)
    (row,) = (partition for topic in answer.topics for partition in topic.partitions)
    _raise_error(row)
    replicas = [*row.current_voters, *row.observers]
    leader = next((one for one in replicas if one.replica_id == row.leader_id), None)
    end = row.high_watermark if leader is None else leader.log_end_offset
    now = None if leader is None else _known(leader.last_caught_up_timestamp)
    return MetadataLogDescription(
        _known(row.leader_id),
        row.leader_epoch,
        end,
        tuple(
            sorted(
                [
                    *_replicas(VOTER, row.current_voters, end, now),
                    *_replicas(OBSERVER, row.observers, end, now),
                ],
                key=lambda one: one.node_id,
            )
        ),
    )


def _shards(topics: list[Any]) -> tuple[ShardDescription, ...] | None:
    rows = [
        ShardDescription(
            partition.partition_index, _known(partition.leader_id), _known(partition.leader_epoch)
        )
        for topic in topics
        if topic.name == OFFSETS_TOPIC and topic.topic_id == OFFSETS_TOPIC_ID
        for partition in topic.partitions
    ]
    return tuple(sorted(rows, key=lambda row: row.shard)) or None


def _replicas(
    role: str, rows: list[Any], end: int, now: int | None
) -> Iterator[ReplicaDescription]:
    for row in rows:
        reached = _known(row.log_end_offset)
        caught_up = _known(row.last_caught_up_timestamp)
        yield ReplicaDescription(
            row.replica_id,
            role,
            reached,
            None if reached is None else max(end - reached, 0),
            None if now is None or caught_up is None else max(now - caught_up, 0),
        )


def _raise_error(row: Any) -> None:
    if row.error_code:
        error = errors.for_code(row.error_code)
        raise error(row.error_message or "")


def _known(value: int | None) -> int | None:
    """None for Kafka's -1, and for a field that the version does not have."""
    return None if value is None or value < 0 else value
