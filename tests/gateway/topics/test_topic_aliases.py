"""Topics with several names: requests may use any, responses use the requested one."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.configs import AlterConfigsRequest, DescribeConfigsRequest
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeTopicPartitionsRequest,
)
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from gateway.groups.consumer.topology import TopicView, canonical_name, named_topics
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import joined, subscription
from tests.gateway.handlers.handler_calls import call
from tests.gateway.handlers.test_produce import produce
from tests.records.record_sets import batch

LONG = "public/default/orders"
FAR = "sales/eu/orders"


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment(num_partitions=2)
    env.store.has_namespaces = True
    return env


def metadata(env: BrokerEnvironment, *names: str, version: int = 12) -> list[tuple[str, int, int]]:
    """Return name, error code and partitions."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=None) for name in names]
    request = MetadataRequest(
        topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    )
    return [
        (topic.name, topic.error_code, len(topic.partitions))
        for topic in call(env, request, version).topics
    ]


def test_metadata_creates_topic_once_and_returns_requested_names(env):
    assert metadata(env, LONG) == [(LONG, 0, 2)]
    assert metadata(env, "orders", LONG, FAR) == [("orders", 0, 2), (LONG, 0, 2), (FAR, 0, 2)]
    assert sorted(live.name for live in env.broker.topics) == ["orders", f"persistent://{FAR}"]


def test_metadata_rejects_names_unknown_to_store(env):
    assert metadata(env, "eu/orders") == [("eu/orders", ErrorCode.INVALID_TOPIC_EXCEPTION, 0)]


def test_metadata_creates_no_internal_topic_by_alias(env):
    name = "public/default/__consumer_offsets"
    assert metadata(env, name)[0][1] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    env.broker.topics.add_internal("__consumer_offsets")
    assert metadata(env, name) == [(name, 0, 50)]
    assert not list(env.broker.topics)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__kopgate_traffic"])
def test_metadata_creates_no_reserved_topic_in_another_namespace(env, name):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(env, f"sales/eu/{name}") == [(f"sales/eu/{name}", code, 0)]
    assert not list(env.broker.topics)


def create(env: BrokerEnvironment, name: str) -> tuple[str, int]:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    (row,) = call(
        env, CreateTopicsRequest(topics=[topic], timeout_ms=0, validate_only=False), 7
    ).topics
    return row.name, row.error_code


def test_topic_created_by_one_alias_exists_under_all(env):
    assert create(env, LONG) == (LONG, 0)
    assert [create(env, name) for name in (LONG, "orders")] == [(LONG, 36), ("orders", 36)]
    assert create(env, "a/b/c/d") == ("a/b/c/d", ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_topic_is_deleted_by_any_alias(env):
    env.topic("orders")
    (row,) = call(env, DeleteTopicsRequest(topic_names=[LONG], timeout_ms=0), 5).responses
    assert (row.name, row.error_code, len(env.broker.topics)) == (LONG, 0, 0)


def test_topic_given_by_two_aliases_is_not_deleted(env):
    env.topic("orders")
    rows = call(env, DeleteTopicsRequest(topic_names=[LONG, "orders"], timeout_ms=0), 5).responses
    assert ErrorCode.INVALID_REQUEST in {row.error_code for row in rows}
    assert len(env.broker.topics) == 1


def test_records_of_all_aliases_share_a_partition(env):
    env.topic("orders")
    offsets = [
        produce(env, 11, (0, batch()), topic=name)[0].base_offset
        for name in ("orders", LONG, "orders", LONG)
    ]
    assert offsets == [0, 1, 2, 3]


def test_offsets_are_listed_under_requested_alias(env):
    env.topic("orders")
    partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=LONG, partitions=[partition])],
    )
    (topic,) = call(env, request, 5).topics
    assert (topic.name, topic.partitions[0].error_code, topic.partitions[0].offset) == (LONG, 0, 0)


def commit(env: BrokerEnvironment, *rows: tuple[str, int, int]) -> dict[tuple[str, int], int]:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    topics = [
        kind(
            name=name,
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
            ],
        )
        for name, index, offset in rows
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=topics,
    )
    told = call(env, request, 8).topics
    return {
        (topic.name, row.partition_index): row.error_code
        for topic in told
        for row in topic.partitions
    }


def fetch(env: BrokerEnvironment, *names: str) -> dict[str, int]:
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [kind(name=name, partition_indexes=[0]) for name in names] or None
    told = call(
        env, OffsetFetchRequest(group_id="g", topics=topics, require_stable=False), 7
    ).topics
    return {topic.name: topic.partitions[0].committed_offset for topic in told}


def test_commit_by_one_alias_applies_to_all(env):
    env.topic("orders", 2)
    assert commit(env, (LONG, 0, 5)) == {(LONG, 0): 0}
    assert fetch(env, "orders", LONG) == {"orders": 5, LONG: 5}
    assert fetch(env) == {"orders": 5}


def test_commit_outcome_is_returned_for_each_alias(env):
    env.topic("orders", 2)
    env.store.refuse_writes = True
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert commit(env, (LONG, 0, 5), ("orders", 1, 6)) == {(LONG, 0): code, ("orders", 1): code}


def test_offsets_of_subscribed_alias_are_not_deleted(env):
    env.topic("orders")
    commit(env, ("orders", 0, 5))
    joined(env, metadata=subscription(LONG))
    kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
    topic = kind(name="orders", partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
    (told,) = call(env, OffsetDeleteRequest(group_id="g", topics=[topic]), 0).topics
    assert told.partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert env.broker.groups.subscribed_topics("g") == {"orders"}


def test_configs_are_described_and_altered_by_any_alias(env):
    env.topic("orders")
    resource = AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", value="5")
    altering = AlterConfigsRequest(
        resources=[resource(resource_type=2, resource_name=LONG, configs=[config])],
        validate_only=False,
    )
    (row,) = call(env, altering, 1).responses
    assert (row.error_code, row.resource_name) == (0, LONG)
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=LONG, configuration_keys=["retention.ms"]
    )
    (result,) = call(
        env,
        DescribeConfigsRequest(
            resources=[asked], include_synonyms=False, include_documentation=False
        ),
        3,
    ).results
    assert (result.resource_name, result.configs[0].value) == (LONG, "5")


def test_partitions_and_records_are_managed_by_any_alias(env):
    env.topic("orders")
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=LONG, count=3, assignments=None)
    (row,) = call(
        env, CreatePartitionsRequest(topics=[topic], timeout_ms=0, validate_only=False), 3
    ).results
    assert (row.name, row.error_code, env.broker.topics.get("orders").topic.partitions) == (
        LONG,
        0,
        3,
    )
    produce(env, 11, (0, batch()))
    kind = DeleteRecordsRequest.DeleteRecordsTopic
    topic = kind(name=LONG, partitions=[kind.DeleteRecordsPartition(partition_index=0, offset=-1)])
    (told,) = call(env, DeleteRecordsRequest(topics=[topic], timeout_ms=0), 2).topics
    assert (told.name, told.partitions[0].low_watermark) == (LONG, 1)


def test_partitions_are_described_under_requested_alias(env):
    env.topic("orders")
    asked = DescribeTopicPartitionsRequest.TopicRequest(name=LONG)
    told = call(
        env,
        DescribeTopicPartitionsRequest(topics=[asked], response_partition_limit=10, cursor=None),
        0,
    ).topics
    assert [(topic.name, topic.error_code) for topic in told] == [(LONG, 0)]


def test_members_see_the_alias_they_subscribed(env):
    live = env.topic("orders")
    topology = TopicView(env.broker.topics, 100)
    topic_id = live.topic.topic_id
    assert (
        topology.id_of(LONG),
        canonical_name(LONG, topology),
        canonical_name("a/b/nothing", topology),
    ) == (topic_id, "orders", "a/b/nothing")
    assert list(named_topics([topic_id], [LONG], topology)) == [(topic_id, LONG)]
    assert list(named_topics([topic_id], [], topology)) == [(topic_id, "orders")]


def test_alias_of_deleted_topic_is_unknown(env):
    live = env.topic("orders")
    assert env.broker.topics.get(LONG) is live
    ended(env.broker.topics.delete(live))
    assert env.broker.topics.get(LONG) is None
    again: Any = env.topic("orders")
    assert env.broker.topics.get(LONG) is again


def test_idempotent_producer_using_two_aliases_gets_an_error(
    env,
):
    """Clients count sequences by name: the first batch under a second name looks like a retry."""
    env.topic("orders")
    first, again = (batch(producer=(7, 0, 0)) for _ in range(2))
    assert produce(env, 11, (0, first), topic=LONG)[0].error_code == 0
    (row,) = produce(env, 11, (0, again), topic="orders")
    assert row.error_code == ErrorCode.INVALID_REQUEST
    assert "one name" in row.error_message
    # A retry under the same name is recognized, and another producer may use another name.
    assert produce(env, 11, (0, batch(producer=(7, 0, 0))), topic=LONG)[0].base_offset == 0
    assert produce(env, 11, (0, batch(producer=(8, 0, 0))), topic="orders")[0].base_offset == 1
    topic_id = env.broker.topics.get("orders").topic.topic_id
    assert produce(env, 13, (0, batch(producer=(7, 0, 1))), topic=topic_id)[0].base_offset == 2
