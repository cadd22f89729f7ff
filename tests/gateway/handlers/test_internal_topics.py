"""Kafka's internal topics are listed after first use and cannot be read or altered. In a cluster
their partitions are the shards.
"""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.configs import IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
)
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from gateway.cluster.view import UNKNOWN
from gateway.protocol.errors import ErrorCode
from gateway.topics.topic_names import CONSUMER_OFFSETS
from storage.log import Topic
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers import fetch_requests
from tests.gateway.handlers.admin.test_describe_configs import BROKER, TOPIC, describe, values
from tests.gateway.handlers.groups.test_offset_commit import commit
from tests.gateway.handlers.handler_calls import call
from tests.gateway.handlers.test_list_offsets import EARLIEST, LATEST, list_offsets

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders")
    return env


def metadata(
    env: BrokerEnvironment, *names: str, version: int = 12, may_create: bool = False
) -> dict[str, Any]:
    """Return metadata of the topics, of all by default."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=None) for name in names] or (
        None if version else []
    )
    request = MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=may_create,
        include_topic_authorized_operations=False,
    )
    return {topic.name: topic for topic in call(env, request, version).topics}


def use(env: BrokerEnvironment) -> None:
    """Look up the coordinator like the first consumer of a group."""
    assert call(env, FindCoordinatorRequest(key="g", key_type=0), 2).error_code == 0


@pytest.mark.parametrize("version", range(14))
def test_offsets_topic_is_listed_after_first_coordinator_lookup(
    env: BrokerEnvironment, version: int
) -> None:
    assert set(metadata(env, version=version)) == {"orders"}
    use(env)
    listed = metadata(env, version=version)
    assert set(listed) == {"orders", CONSUMER_OFFSETS}
    assert [len(topic.partitions) for topic in listed.values()] == [1, 50]
    if version >= 1:
        assert [topic.is_internal for topic in listed.values()] == [False, True]
    if version >= 10:
        assert (
            listed[CONSUMER_OFFSETS].topic_id
            == metadata(env, CONSUMER_OFFSETS)[CONSUMER_OFFSETS].topic_id
        )


def test_transaction_coordinator_lookup_lists_nothing(env: BrokerEnvironment) -> None:
    call(env, FindCoordinatorRequest(key="t", key_type=1), 2)
    assert set(metadata(env)) == {"orders"}


@pytest.mark.parametrize(
    ("may_create", "code"), [(False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (True, 0)]
)
def test_metadata_by_name_lists_offsets_topic_if_auto_create(
    env: BrokerEnvironment, may_create: bool, code: int
) -> None:
    assert (
        metadata(env, CONSUMER_OFFSETS, may_create=may_create)[CONSUMER_OFFSETS].error_code == code
    )
    assert [live.name for live in env.broker.topics] == ["orders"]


def test_internal_topic_partitions_are_paged(env: BrokerEnvironment) -> None:
    use(env)
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2000, cursor=None)
    topics = call(env, request, 0).topics
    assert [(topic.name, topic.is_internal, len(topic.partitions)) for topic in topics] == [
        (CONSUMER_OFFSETS, True, 50),
        ("orders", False, 1),
    ]


@pytest.fixture
def clustered() -> BrokerEnvironment:
    """Node 1 of two, which lead the shards 0 to 2; nothing leads shard 3."""
    env = open_environment(node_id=1, shard_count=4)
    env.store.is_shared = True
    cluster = env.broker.cluster
    cluster.set_nodes({1: {"PLAINTEXT": ("a", 1)}, 2: {"PLAINTEXT": ("b", 2)}})
    for shard, (leader, epoch) in enumerate([(2, 7), (1, 8), (2, 9), (UNKNOWN, UNKNOWN)]):
        cluster.set_leader(shard, leader, epoch)
    env.broker.topics.add_internal(CONSUMER_OFFSETS)
    return env


def test_partitions_of_offsets_topic_are_led_as_the_shards(clustered: BrokerEnvironment) -> None:
    expected = [(0, 2, 7), (1, 1, 8), (2, 2, 9), (3, UNKNOWN, UNKNOWN)]
    request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2000, cursor=None)
    for topic in (
        metadata(clustered, CONSUMER_OFFSETS)[CONSUMER_OFFSETS],
        *call(clustered, request, 0).topics,
    ):
        assert topic.name == CONSUMER_OFFSETS
        rows = [(one.partition_index, one.leader_id, one.leader_epoch) for one in topic.partitions]
        assert sorted(rows) == expected
    (result,) = describe(clustered, (BROKER, "1", ["offsets.topic.num.partitions"]))
    assert values(result) == {"offsets.topic.num.partitions": "4"}


# By crc32 modulo 4: printf %s a | gzip -c | tail -c 8 | od -An -tu4 -N4
@pytest.mark.parametrize(("group", "shard"), [("a", 3), ("b", 1), ("d", 0), ("e", 2)])
def test_coordinator_of_a_group_leads_the_partition_of_its_shard(
    clustered: BrokerEnvironment, group: str, shard: int
) -> None:
    found = call(clustered, FindCoordinatorRequest(key=group, key_type=0), 2)
    topic = metadata(clustered, CONSUMER_OFFSETS)[CONSUMER_OFFSETS]
    (leader,) = [one.leader_id for one in topic.partitions if one.partition_index == shard]
    assert found.node_id == leader == [2, 1, 2, UNKNOWN][shard]


def test_internal_topic_configs_are_kafkas(env: BrokerEnvironment) -> None:
    use(env)
    (result,) = describe(
        env, (TOPIC, CONSUMER_OFFSETS, ["cleanup.policy", "segment.bytes", "compression.type"])
    )
    assert values(result) == {
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
        "compression.type": "producer",
    }


@pytest.mark.parametrize("version", [1, 12, 17])
def test_internal_topic_cannot_be_fetched(env: BrokerEnvironment, version: int) -> None:
    use(env)
    topic_id = env.broker.topics.find_internal(CONSUMER_OFFSETS).topic.topic_id
    topic = CONSUMER_OFFSETS if version < 13 else topic_id
    fetched = fetch_requests.rows(
        fetch_requests.start_fetch(
            env, fetch_requests.request(version, [fetch_requests.from_offset(0)], topic=topic)
        ).result
    )
    assert fetched[topic, 0].error_code == REFUSED
    assert commit(env, (CONSUMER_OFFSETS, 0, 1), version=8) == [REFUSED]


@pytest.mark.parametrize("version", [1, 11])
def test_internal_topic_offsets_are_those_of_empty_log(
    env: BrokerEnvironment, version: int
) -> None:
    """Like a client that may describe but not read a topic: aiokafka repeats ListOffsets forever
    after the error, but not Fetch.
    """
    use(env)
    wanted = [
        (CONSUMER_OFFSETS, 0, LATEST),
        (CONSUMER_OFFSETS, 49, EARLIEST),
        (CONSUMER_OFFSETS, 1, 1000),
        (CONSUMER_OFFSETS, 50, LATEST),
    ]
    found = [(row.error_code, row.offset) for row in list_offsets(env, *wanted, version=version)]
    assert found[:3] == [(0, 0), (0, 0), (0, -1)]
    assert found[3][0] != 0


def test_internal_topic_offsets_are_those_of_empty_log_in_v0(env: BrokerEnvironment) -> None:
    use(env)
    (row,) = list_offsets(env, (CONSUMER_OFFSETS, 0, LATEST), version=0)
    assert (row.error_code, row.old_style_offsets) == (0, [0])


def test_internal_topic_cannot_be_created_altered_or_deleted(env: BrokerEnvironment) -> None:
    new = CreateTopicsRequest.CreatableTopic(
        name=CONSUMER_OFFSETS, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[new], timeout_ms=0, validate_only=False)
    (created,) = call(env, request, 7).topics
    assert created.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    use(env)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="segment.bytes", config_operation=0, value="1000")
    wanted = resource(resource_type=TOPIC, resource_name=CONSUMER_OFFSETS, configs=[config])
    (altered,) = call(
        env, IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False), 1
    ).responses
    more = CreatePartitionsRequest.CreatePartitionsTopic(
        name=CONSUMER_OFFSETS, count=60, assignments=None
    )
    (extended,) = call(
        env, CreatePartitionsRequest(topics=[more], timeout_ms=0, validate_only=False), 3
    ).results
    gone = DeleteTopicsRequest.DeleteTopicState(name=CONSUMER_OFFSETS, topic_id=None)
    (deleted,) = call(env, DeleteTopicsRequest(topics=[gone], timeout_ms=0), 6).responses
    assert [row.error_code for row in (altered, extended, deleted)] == [REFUSED] * 3
    assert "internal topic" in altered.error_message


def test_stored_topic_of_that_name_is_regular() -> None:
    """Created by an earlier version, or by another client of the Pulsar namespace."""
    medium = Medium()
    env = open_environment(medium)
    ended(env.store.create_topic(Topic(CONSUMER_OFFSETS, b"i" * 16, 2)))
    ended(env.store.close())
    env = open_environment(medium)
    use(env)
    listed = metadata(env)
    assert [(name, len(topic.partitions), topic.is_internal) for name, topic in listed.items()] == [
        (CONSUMER_OFFSETS, 2, True)
    ]
    assert [row.error_code for row in list_offsets(env, (CONSUMER_OFFSETS, 0, LATEST))] == [0]
