"""The present leader in replies of a gateway that does not lead a partition (KIP-951)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.producer.produce import ProduceRequest

from gateway.cluster.view import UNKNOWN
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call
from tests.records.record_sets import batch

#: Addresses that differ by listener; the client of these tests uses PLAINTEXT.
OTHERS = {"PLAINTEXT": ("two", 9302), "INTERNAL": ("10.0.0.2", 9303)}


@pytest.fixture
def env() -> BrokerEnvironment:
    """Node 1 leads nothing; node 2 leads the only shard in epoch 7."""
    env = open_environment(node_id=1)
    env.topic("orders", 2)
    env.broker.cluster.set_nodes({1: {"PLAINTEXT": ("one", 9301)}, 2: OTHERS})
    env.broker.cluster.set_leader(0, 2, 7)
    env.broker.leadership.resign(0)
    return env


def produce(env: BrokerEnvironment, version: int) -> Any:
    name = {"name": "orders"} if version < 13 else {"topic_id": topic_id(env)}
    partitions = [
        ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=bytes(batch(1)))
        for index in range(2)
    ]
    topic = ProduceRequest.TopicProduceData(version=version, partition_data=partitions, **name)
    asked = ProduceRequest(
        version=version, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[topic]
    )
    return call(env, asked, version)


def fetch(env: BrokerEnvironment, version: int, epoch: int = -1) -> Any:
    name = {"topic": "orders"} if version < 13 else {"topic_id": topic_id(env)}
    partitions = [
        FetchRequest.FetchTopic.FetchPartition(
            partition=index,
            current_leader_epoch=epoch,
            fetch_offset=0,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=1000,
        )
        for index in range(2)
    ]
    asked = FetchRequest(
        version=version,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(partitions=partitions, **name)],
        forgotten_topics_data=[],
        rack_id="",
    )
    return call(env, asked, version)


def topic_id(env: BrokerEnvironment) -> UUID:
    return UUID(bytes=env.broker.topics.require("orders").topic.topic_id)


def leaders(reply: Any) -> list[tuple[int, int | None, int | None]]:
    """Error code, leader id and leader epoch of each partition, as the client reads them."""
    (topic,) = reply.responses
    rows = getattr(topic, "partition_responses", None) or topic.partitions
    found = [(row.error_code, row.current_leader) for row in rows]
    return [
        (code, leader and leader.leader_id, leader and leader.leader_epoch)
        for code, leader in found
    ]


def endpoints(reply: Any) -> list[tuple[int, str, int, str | None]]:
    return [(one.node_id, one.host, one.port, one.rack) for one in reply.node_endpoints or ()]


ASKED = [(produce, 10), (produce, 12), (fetch, 16), (fetch, 18)]


@pytest.mark.parametrize(("ask", "version"), ASKED)
def test_client_of_wrong_node_learns_leader_and_its_address(env, ask, version):
    reply = ask(env, version)
    assert leaders(reply) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 7)] * 2
    assert endpoints(reply) == [(2, "two", 9302, None)]


@pytest.mark.parametrize(("ask", "version"), [(produce, 9), (fetch, 15)])
def test_versions_before_the_fields_have_the_error_only(env, ask, version):
    reply = ask(env, version)
    assert leaders(reply) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None)] * 2
    assert endpoints(reply) == []


@pytest.mark.parametrize(("ask", "version"), ASKED)
@pytest.mark.parametrize("leader", [UNKNOWN, 1, 3])
def test_no_leader_is_named_that_the_client_cannot_use(env, ask, version, leader):
    """There is none, it is this node (whose shard is not open yet), or it has left."""
    env.broker.cluster.set_leader(0, leader, 7)
    reply = ask(env, version)
    assert leaders(reply) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None)] * 2
    assert endpoints(reply) == []


@pytest.mark.parametrize(("ask", "version"), ASKED)
def test_no_leader_is_named_without_the_clients_listener(env, ask, version):
    env.broker.cluster.set_nodes({2: {"INTERNAL": ("10.0.0.2", 9303)}})
    reply = ask(env, version)
    assert leaders(reply) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None)] * 2
    assert endpoints(reply) == []


def test_consumer_with_an_old_epoch_learns_the_new_one() -> None:
    env = open_environment(node_id=1)
    env.topic("orders", 2)
    env.broker.leadership.lead(0, 5)
    env.broker.cluster.set_leader(0, 1, 5)
    reply = fetch(env, 16, epoch=4)
    assert leaders(reply) == [(ErrorCode.FENCED_LEADER_EPOCH, 1, 5)] * 2
    assert endpoints(reply) == [(1, "127.0.0.1", 9092, None)]


@pytest.mark.parametrize(("ask", "version"), ASKED)
def test_reply_without_error_names_no_leader(ask, version):
    env = open_environment(node_id=1)
    env.topic("orders", 2)
    reply = ask(env, version)
    assert leaders(reply) == [(ErrorCode.NONE, None, None)] * 2
    assert endpoints(reply) == []
