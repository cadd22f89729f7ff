from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.metadata.metadata import MetadataRequest

from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES, EncodedReply
from gateway.protocol.wire.api_keys import ApiKey
from gateway.topics.topic_names import TRAFFIC_TOPIC
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import call, decode_response, start_call

Named = MetadataRequest.MetadataRequestTopic


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def request(*wanted: str | uuid.UUID | Any, **flags: bool) -> Any:
    """Request topics by name, by id, or as given."""
    topics = [
        Named(name=one, topic_id=None)
        if isinstance(one, str)
        else Named(name=None, topic_id=one)
        if isinstance(one, uuid.UUID)
        else one
        for one in wanted
    ]
    return MetadataRequest(topics=topics, **flags)


def everything() -> Any:
    return MetadataRequest(topics=None)


def codes(reply: Any) -> list[tuple[str | None, int]]:
    return [(topic.name, topic.error_code) for topic in reply.topics]


def names(env: BrokerEnvironment) -> set[str]:
    return {live.name for live in env.broker.topics}


def id_of(env: BrokerEnvironment, name: str) -> uuid.UUID:
    return uuid.UUID(bytes=env.broker.topics.require(name).topic.topic_id)


@pytest.mark.parametrize("version", range(14))
def test_every_version_returns_brokers_topics_and_leaders(version: int) -> None:
    env = open_environment(node_id=3)
    env.topic("orders", 2)
    reply = call(env, request("orders"), version)
    assert [(one.node_id, one.host, one.port) for one in reply.brokers] == [(3, "127.0.0.1", 9092)]
    assert codes(reply) == [("orders", 0)]
    rows = [
        (row.partition_index, row.leader_id, list(row.replica_nodes), list(row.isr_nodes))
        for row in reply.topics[0].partitions
    ]
    assert rows == [(0, 3, [3], [3]), (1, 3, [3], [3])]


@pytest.mark.parametrize("version", [0, 1])
def test_gateway_that_is_cut_off_names_the_others_to_clients_that_need_brokers(
    version: int,
) -> None:
    """No partition has a leader there. kafka-python 1.3.5 takes over an empty list of brokers."""
    env = open_environment(node_id=3)
    env.topic("orders", 2)
    cluster = env.broker.cluster
    other = {"PLAINTEXT": ("b", 1)}
    cluster.set_nodes({3: cluster.advertised, 5: other, 4: other})
    cluster.set_cut_off(True)
    reply = call(env, request("orders", "new"), version)
    assert [(one.node_id, one.host, one.port) for one in reply.brokers] == [
        (4, "b", 1),
        (5, "b", 1),
    ]
    assert codes(reply) == [("orders", 0), ("new", ErrorCode.LEADER_NOT_AVAILABLE)]
    rows = [(row.error_code, row.leader_id) for row in reply.topics[0].partitions]
    assert rows == [(ErrorCode.LEADER_NOT_AVAILABLE, -1)] * 2
    assert names(env) == {"orders"}
    cluster.set_cut_off(False)
    assert call(env, request("orders"), version).topics[0].partitions[0].leader_id == 3


@pytest.mark.parametrize("version", range(2, 14))
def test_gateway_that_is_cut_off_returns_neither_brokers_nor_topics(version: int) -> None:
    env = open_environment()
    env.topic("orders", 2)
    assert len(call(env, request("orders"), version).topics) == 1
    cluster = env.broker.cluster
    cluster.set_nodes({0: cluster.advertised, 7: {"PLAINTEXT": ("b", 1)}})
    cluster.set_cut_off(True)
    reply = call(env, request("orders", "new"), version)
    assert (list(reply.brokers), list(reply.topics)) == ([], [])
    assert names(env) == {"orders"}
    cluster.set_cut_off(False)
    assert len(call(env, request("orders"), version).brokers) == 2


@pytest.mark.parametrize("version", range(1, 14))
def test_null_means_all_topics_and_empty_list_none(env: BrokerEnvironment, version: int) -> None:
    env.topic("orders")
    env.topic("bills")
    assert sorted(codes(call(env, everything(), version))) == [("bills", 0), ("orders", 0)]
    assert codes(call(env, request(), version)) == []


def test_v0_empty_list_means_all_topics(env: BrokerEnvironment) -> None:
    env.topic("orders")
    assert codes(call(env, request(), 0)) == [("orders", 0)]


def test_duplicate_topic_is_returned_once(env: BrokerEnvironment) -> None:
    env.topic("orders")
    assert codes(call(env, request("orders", "orders"), 9)) == [("orders", 0)]


@pytest.mark.parametrize("version", [0, 1, 4, 13])
def test_missing_topic_is_created_before_response(version: int) -> None:
    env = open_environment(num_partitions=3)
    reply = call(env, request("orders"), version)
    assert codes(reply) == [("orders", 0)]
    assert len(reply.topics[0].partitions) == 3


def test_auto_creation_needs_setting_and_client_consent(env: BrokerEnvironment) -> None:
    assert codes(call(open_environment(auto_create_topics_enable=False), request("orders"), 9)) == [
        ("orders", 3)
    ]
    assert codes(call(env, request("orders", allow_auto_topic_creation=False), 9)) == [
        ("orders", 3)
    ]
    assert names(env) == set()


# Errors of Kafka 3.9.2, with and without auto-creation.
@pytest.mark.parametrize("may_create", [True, False])
@pytest.mark.parametrize("name", ["", "x y", ".", "..", "q" * 250])
def test_invalid_topic_name_is_rejected(
    env: BrokerEnvironment, name: str, may_create: bool
) -> None:
    assert codes(call(env, request(name, allow_auto_topic_creation=may_create), 9)) == [(name, 17)]


def test_colliding_topic_name_is_rejected(env: BrokerEnvironment) -> None:
    env.topic("a.b")
    assert codes(call(env, request("a_b"), 9)) == [("a_b", 17)]


def test_traffic_topic_is_not_auto_created_and_not_internal(
    env: BrokerEnvironment,
) -> None:
    (topic,) = call(env, request(TRAFFIC_TOPIC), 9).topics
    assert (topic.error_code, topic.is_internal) == (3, False)
    env.topic(TRAFFIC_TOPIC)
    (topic,) = call(env, request(TRAFFIC_TOPIC), 9).topics
    assert (topic.error_code, topic.is_internal) == (0, False)


def test_failed_creation_is_an_error_of_its_topic(env: BrokerEnvironment) -> None:
    env.topic("orders")
    env.store.refuse_writes = True
    assert codes(call(env, request("orders", "bills"), 9)) == [
        ("orders", 0),
        ("bills", ErrorCode.LEADER_NOT_AVAILABLE),
    ]


def test_auto_creation_is_limited_per_request() -> None:
    env = open_environment(max_partitions_per_topic=4, num_partitions=2)
    wanted = request("a", "b", "c")
    assert codes(call(env, wanted, 9)) == [
        ("a", 0),
        ("b", 0),
        ("c", ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    assert codes(call(env, wanted, 9)) == [("a", 0), ("b", 0), ("c", 0)]


def test_auto_creation_beyond_limit_on_topics_is_refused() -> None:
    env = open_environment(max_topics=1)
    assert codes(call(env, request("a", "b"), 9)) == [("a", 0), ("b", ErrorCode.POLICY_VIOLATION)]


def test_concurrent_requests_for_missing_topic_both_succeed(env: BrokerEnvironment) -> None:
    env.store.hold()
    wanted = request("orders")
    first, second = start_call(env, wanted, 9), start_call(env, wanted, 9)
    env.store.release()
    assert [codes(decode_response(wanted, one.result, 9)) for one in (first, second)] == [
        [("orders", 0)]
    ] * 2


@pytest.mark.parametrize("version", [12, 13])
def test_topic_is_found_by_id(env: BrokerEnvironment, version: int) -> None:
    env.topic("orders")
    (topic,) = call(env, request(id_of(env, "orders")), version).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("orders", id_of(env, "orders"), 0)


def test_unknown_id_is_returned_without_name(env: BrokerEnvironment) -> None:
    unknown = uuid.uuid4()
    (topic,) = call(env, request(unknown), 12).topics
    assert (topic.name, topic.topic_id, topic.error_code) == (
        None,
        unknown,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )


def test_id_takes_precedence_over_name(env: BrokerEnvironment) -> None:
    env.topic("orders")
    unknown = uuid.uuid4()
    assert codes(call(env, request(Named(name="orders", topic_id=unknown)), 12)) == [
        (None, ErrorCode.UNKNOWN_TOPIC_ID)
    ]


def test_topic_without_name_and_id_is_rejected(env: BrokerEnvironment) -> None:
    assert codes(call(env, request(Named(name=None, topic_id=None)), 12)) == [(None, 42)]


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_rejected_before_v12(env: BrokerEnvironment, version: int) -> None:
    env.topic("orders")
    wanted = request(id_of(env, "orders"), Named(name="orders", topic_id=id_of(env, "orders")))
    assert codes(call(env, wanted, version)) == [("", 42), ("orders", 42)]


def test_metadata_returns_authorized_operations_on_request(env: BrokerEnvironment) -> None:
    env.topic("orders")
    reply = call(
        env,
        request(
            "orders",
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        ),
        9,
    )
    # Values of Kafka 3.9.2 without an authorizer.
    assert set(reply.topics[0].authorized_operations) == {3, 4, 5, 6, 7, 8, 10, 11}
    assert set(reply.authorized_operations) == {5, 7, 8, 9, 10, 11, 12}
    reply = call(env, request("orders"), 9)
    assert (reply.topics[0].authorized_operations, reply.authorized_operations) == (None, None)


def served(env: BrokerEnvironment, wanted: Any, version: int = 9) -> Any:
    """Return what the handler passes to its encoder."""
    route = ROUTES[ApiKey.METADATA, version]
    body = route.decode(bytearray(wanted.encode(version=version)), 0, version)
    return ended(route.handler(body, env.caller(version)))


def test_equal_requests_share_encoded_response(env: BrokerEnvironment) -> None:
    env.topic("orders")
    first, second = served(env, request("orders")), served(env, request("orders"))
    assert isinstance(first, EncodedReply)
    assert first.buffers[0] is second.buffers[0]


def test_different_requests_do_not_share_response(env: BrokerEnvironment) -> None:
    env.topic("orders")
    env.topic("bills")
    different = [
        served(env, request("orders")),
        served(env, request("bills")),
        served(env, everything()),
        served(env, request("orders", include_topic_authorized_operations=True)),
        served(env, request("orders", include_cluster_authorized_operations=True)),
        served(env, request("orders"), 7),
    ]
    assert len({reply.buffers[0] for reply in different}) == len(different)


@pytest.mark.parametrize("change", ["create", "delete", "extend"])
def test_cached_response_is_dropped_when_topics_change(env: BrokerEnvironment, change: str) -> None:
    live = env.topic("orders")
    before = call(env, everything(), 9)
    if change == "create":
        env.topic("bills")
    elif change == "delete":
        ended(env.broker.topics.delete(live))
    else:
        ended(env.broker.topics.alter(live, lambda topic: replace(topic, partitions=2)))
    after = call(env, everything(), 9)
    rows = [
        {topic.name: len(topic.partitions) for topic in reply.topics} for reply in (before, after)
    ]
    assert rows == [
        {"orders": 1},
        {"create": {"orders": 1, "bills": 1}, "delete": {}, "extend": {"orders": 2}}[change],
    ]


def test_response_with_error_is_not_cached(env: BrokerEnvironment) -> None:
    call(env, request("x y"), 9)
    assert len(env.broker.metadata_replies) == 0


def test_each_partition_has_the_leader_and_epoch_of_its_shard() -> None:
    env = open_environment(shard_count=3)
    cluster = env.broker.cluster
    cluster.set_nodes({one: {"PLAINTEXT": (f"host-{one}", 9092)} for one in (1, 2)})
    for shard, (leader, epoch) in enumerate([(1, 5), (2, 6), (3, 7)]):
        cluster.set_leader(shard, leader, epoch)
    env.topic("orders", 4)
    env.topic("payments", 4)
    # Node 3 is not alive.
    expected = {0: (1, 5, 0), 1: (2, 6, 0), 2: (-1, 7, ErrorCode.LEADER_NOT_AVAILABLE)}
    reply = call(env, everything(), 12)
    for topic in reply.topics:
        live = env.broker.topics.require(topic.name)
        found = {
            row.partition_index: (row.leader_id, row.leader_epoch, row.error_code)
            for row in topic.partitions
        }
        assert found == {index: expected[live.shard_of(index, 3)] for index in range(4)}
    assert {topic.name for topic in reply.topics} == {"orders", "payments"}
