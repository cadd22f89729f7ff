from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.topics import DescribeTopicPartitionsRequest

from gateway.handlers.describe_topic_partitions import MAX_PARTITIONS
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("a", 2)
    env.topic("b", 3)
    env.topic("c", 1)
    return env


def describe(
    env: BrokerEnvironment, *names: str, limit: int = 100, cursor: tuple[str, int] | None = None
) -> Any:
    kind = DescribeTopicPartitionsRequest
    at = None if cursor is None else kind.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [kind.TopicRequest(name=name) for name in names]
    return call(env, kind(topics=topics, response_partition_limit=limit, cursor=at), 0)


def told(reply: Any) -> tuple[list[tuple[str, list[int]]], tuple[str, int] | None]:
    cursor = reply.next_cursor
    return (
        [(topic.name, [row.partition_index for row in topic.partitions]) for topic in reply.topics],
        None if cursor is None else (cursor.topic_name, cursor.partition_index),
    )


def test_empty_request_returns_all_topics_in_order(env: BrokerEnvironment) -> None:
    assert told(describe(env)) == ([("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])], None)


def test_page_can_end_inside_topic(
    env: BrokerEnvironment,
) -> None:
    assert told(describe(env, limit=3)) == ([("a", [0, 1]), ("b", [0])], ("b", 1))
    assert told(describe(env, limit=3, cursor=("b", 1))) == ([("b", [1, 2]), ("c", [0])], None)


def test_page_ending_with_topic_points_to_next_topic(env: BrokerEnvironment) -> None:
    assert told(describe(env, limit=2)) == ([("a", [0, 1])], ("b", 0))


def test_pages_return_every_partition_once(env: BrokerEnvironment) -> None:
    for limit in range(8):
        seen: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        while True:
            rows, cursor = told(describe(env, limit=limit, cursor=cursor))
            seen += [(name, index) for name, indexes in rows for index in indexes]
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_page_is_limited_to_max_partitions(env: BrokerEnvironment) -> None:
    env.topic("many", MAX_PARTITIONS + 1)
    rows, cursor = told(describe(env, "many", limit=1 << 30))
    assert len(rows[0][1]) == MAX_PARTITIONS == 2000
    assert cursor == ("many", 2000)


# Responses of Kafka 3.9.2.
def test_missing_topics_have_errors(env: BrokerEnvironment) -> None:
    reply = describe(env, "never", "a", "x y", "a")
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [
        ("a", 0),
        ("never", 3),
        ("x y", 17),
    ]


def test_cursor_past_end_of_topic_returns_no_partition(env: BrokerEnvironment) -> None:
    assert told(describe(env, "a", cursor=("a", 99))) == ([("a", [])], None)


def test_cursor_at_deleted_topic_continues_with_next(env: BrokerEnvironment) -> None:
    assert told(describe(env, cursor=("aa", 7))) == ([("b", [0, 1, 2]), ("c", [0])], None)


@pytest.mark.parametrize("cursor", [("a", -2), ("z", 0), ("b", 0)])
def test_cursor_outside_requested_topics_is_rejected(
    env: BrokerEnvironment, cursor: tuple[str, int]
) -> None:
    reply = describe(env, "a", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [("a", 42)]


def test_gateway_is_leader_and_only_replica() -> None:
    env = open_environment(node_id=4)
    env.topic("a")
    topic = describe(env, "a").topics[0]
    (row,) = topic.partitions
    assert (row.leader_id, row.leader_epoch, list(row.replica_nodes), list(row.isr_nodes)) == (
        4,
        0,
        [4],
        [4],
    )
    assert topic.topic_id.bytes == env.broker.topics.require("a").topic.topic_id
    # 0b110111111000: read, write, create, delete, alter, describe, describe and alter configs, as
    # in Kafka 3.9.2 without an authorizer.
    assert topic.topic_authorized_operations == 3576
