from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

from gateway.cluster.view import Node
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers.handler_calls import call, decode_response, start_call

New = CreateTopicsRequest.CreatableTopic
More = CreatePartitionsRequest.CreatePartitionsTopic


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment(node_id=1)


def new(
    name: str, partitions: int = 1, replicas: int = 1, assigned: Any = (), **configs: str | None
) -> Any:
    return New(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            New.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assigned
        ],
        configs=[
            New.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def create(
    env: BrokerEnvironment, *topics: Any, version: int = 4, validate_only: bool = False
) -> list[Any]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return list(call(env, request, version).topics)


def told(rows: list[Any]) -> list[tuple[str, int, str | None]]:
    return [(row.name, row.error_code, row.error_message) for row in rows]


def names(env: BrokerEnvironment) -> set[str]:
    return {live.name for live in env.broker.topics}


@pytest.mark.parametrize("version", range(8))
def test_every_version_creates_a_topic(env: BrokerEnvironment, version: int) -> None:
    rows = create(env, new("orders", 3), version=version)
    assert [(row.name, row.error_code) for row in rows] == [("orders", 0)]
    assert env.broker.topics.require("orders").topic.partitions == 3


def test_created_topic_survives_restart() -> None:
    medium = Medium()
    first = open_environment(medium)
    create(first, new("orders", 2, retention_ms="5"))
    medium.held_by = None
    topic = open_environment(medium).broker.topics.require("orders").topic
    assert (topic.partitions, dict(topic.configs)) == (2, {"retention.ms": "5"})


@pytest.mark.parametrize("replicas", [-1, 1, 3, 32767])
def test_any_replication_factor_is_accepted_and_1_returned(
    env: BrokerEnvironment, replicas: int
) -> None:
    (row,) = create(env, new("orders", 1, replicas), version=5)
    assert (row.error_code, row.replication_factor) == (0, 1)


def test_minus_one_partitions_uses_default() -> None:
    (row,) = create(open_environment(num_partitions=7), new("orders", -1, -1), version=5)
    assert row.num_partitions == 7


def test_created_topic_id_is_returned(env: BrokerEnvironment) -> None:
    (row,) = create(env, new("orders"), version=7)
    assert row.topic_id.bytes == env.broker.topics.require("orders").topic.topic_id


def test_configs_are_returned_from_v5_with_sources(env: BrokerEnvironment) -> None:
    (row,) = create(env, new("orders", retention_ms=" 5 "), version=5)
    rows = {
        config.name: (config.value, config.config_source, config.read_only, config.is_sensitive)
        for config in row.configs
    }
    # 36 configs of Kafka 3.9.2 and one of the gateway; 1 is TOPIC_CONFIG, 5 is DEFAULT_CONFIG.
    assert len(rows) == 37
    assert rows["retention.ms"] == ("5", 1, False, False)
    assert rows["segment.bytes"] == ("1073741824", 5, False, False)


def test_validate_only_creates_nothing_and_returns_result(env: BrokerEnvironment) -> None:
    (row,) = create(env, new("orders", 4), version=7, validate_only=True)
    assert (row.error_code, row.num_partitions, row.topic_id) == (0, 4, None)
    assert names(env) == set()


# Codes and messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("topic", "code", "message"),
    [
        (new(""), 17, "Topic name is invalid: the empty string is not allowed"),
        (new("."), 17, "Topic name is invalid: '.' is not allowed"),
        (new(".."), 17, "Topic name is invalid: '..' is not allowed"),
        (
            new("x y"),
            17,
            (
                "Topic name is invalid: 'x y' contains one or more characters other than "
                "ASCII alphanumerics, '.', '_' and '-'"
            ),
        ),
        (new("t", 0), 37, "Number of partitions was set to an invalid non-positive value."),
        (new("t", -2), 37, "Number of partitions was set to an invalid non-positive value."),
        (
            new("t", 1, 0),
            38,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            new("t", 1, -2),
            38,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (new("t", no_such="1"), 40, "Unknown topic config name: no.such"),
        (
            new("t", retention_ms=None, segment_ms=None),
            40,
            "Null value not supported for topic configs: retention.ms,segment.ms",
        ),
        (
            new("t", retention_ms="x"),
            40,
            "Invalid value x for configuration retention.ms: Not a number of type LONG",
        ),
        (
            new("t", 1, -1, [(0, [1])]),
            42,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            new("t", -1, 1, [(0, [1])]),
            42,
            (
                "A manual partition assignment was specified, but replication factor was not "
                "set to -1."
            ),
        ),
        (
            new("t", -1, -1, [(0, [1]), (2, [1])]),
            39,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            new("t", -1, -1, [(-1, [1])]),
            39,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            new("t", -1, -1, [(0, [1]), (0, [1])]),
            39,
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            new("t", -1, -1, [(0, [])]),
            39,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            new("t", -1, -1, [(0, [1, 1])]),
            39,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            new("t", -1, -1, [(0, [7])]),
            39,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            new("t", -1, -1, [(0, [1]), (1, [1, 2])]),
            39,
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
    ],
)
def test_invalid_topic_is_rejected_with_kafka_message(
    env: BrokerEnvironment, topic: Any, code: int, message: str
) -> None:
    assert told(create(env, topic)) == [(topic.name, code, message)]
    assert names(env) == set()


def test_longest_name_has_249_characters(env: BrokerEnvironment) -> None:
    assert [row.error_code for row in create(env, new("q" * 249), new("q" * 250))] == [0, 17]


def test_existing_topic_is_rejected(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    assert told(create(env, new("orders"))) == [("orders", 36, "Topic 'orders' already exists.")]


def test_name_differing_only_in_dots_and_underscores_collides(env: BrokerEnvironment) -> None:
    create(env, new("a.b"))
    assert told(create(env, new("a_b"))) == [
        ("a_b", 17, "Topic 'a_b' collides with existing topic: a.b")
    ]


def test_name_of_deleted_topic_does_not_collide(env: BrokerEnvironment) -> None:
    create(env, new("a.b"))
    delete(env, "a.b")
    assert [row.error_code for row in create(env, new("a_b"))] == [0]


def test_duplicate_name_is_rejected_once_and_not_created(
    env: BrokerEnvironment,
) -> None:
    rows = create(env, new("twice"), new("once"), new("twice"), new("twice"))
    assert told(rows) == [("once", 0, None), ("twice", 42, "Duplicate topic name.")]
    assert names(env) == {"once"}


def test_one_rejected_topic_does_not_affect_others(env: BrokerEnvironment) -> None:
    rows = create(env, new("good"), new("bad", 0), new("better"))
    assert [row.error_code for row in rows] == [0, 37, 0]
    assert names(env) == {"good", "better"}


def test_manual_assignment_sets_partition_count(env: BrokerEnvironment) -> None:
    (row,) = create(env, new("orders", -1, -1, [(1, [1]), (0, [1])]), version=5)
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 2, 1)


def test_assigned_partitions_need_equal_replica_counts(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        env.broker.cluster, "nodes", lambda listener: [Node(1, "a", 1), Node(2, "b", 2)]
    )
    assert told(create(env, new("t", -1, -1, [(0, [1]), (1, [1, 2])]))) == [
        (
            "t",
            39,
            "The manual partition assignment includes a partition with 2 replica(s), but "
            "this is not consistent with previous "
            "partitions, which have 1 replica(s).",
        )
    ]


def test_topic_above_partition_limit_is_rejected() -> None:
    env = open_environment(max_partitions_per_topic=10)
    assert [row.error_code for row in create(env, new("a", 10), new("b", 11))] == [0, 37]


def test_request_above_partition_limit_creates_no_topic() -> None:
    env = open_environment(max_partitions_per_topic=10)
    rows = create(env, new("a", 6), new("b", 5), new("c", 0))
    assert [row.error_code for row in rows] == [
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_PARTITIONS,
    ]
    assert names(env) == set()


def test_topics_above_limit_are_rejected_until_one_is_deleted() -> None:
    env = open_environment(max_topics=2)
    rows = create(env, new("a"), new("b"), new("c"))
    assert [row.error_code for row in rows] == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert "max_topics=2" in rows[2].error_message
    ended(env.broker.topics.delete(env.broker.topics.require("a")))
    assert [row.error_code for row in create(env, new("c"))] == [0]


def test_full_disk_is_storage_error_and_name_stays_free(env: BrokerEnvironment) -> None:
    env.store.refuse_writes = True
    assert [row.error_code for row in create(env, new("orders"))] == [ErrorCode.KAFKA_STORAGE_ERROR]
    env.store.refuse_writes = False
    assert [row.error_code for row in create(env, new("orders"))] == [0]


def test_topic_is_created_after_client_disconnects(env: BrokerEnvironment) -> None:
    env.store.hold()
    waiting = start_call(env, CreateTopicsRequest(topics=[new("orders")], timeout_ms=1000), 4)
    waiting.cancel()
    env.store.release()
    assert names(env) == {"orders"}
    assert told(create(env, new("orders"))) == [("orders", 36, "Topic 'orders' already exists.")]


def delete(env: BrokerEnvironment, *wanted: str, version: int = 5) -> list[tuple[str, int]]:
    rows = call(
        env, DeleteTopicsRequest(topic_names=list(wanted), timeout_ms=1000), version
    ).responses
    return [(row.name, row.error_code) for row in rows]


def delete_by(
    env: BrokerEnvironment, *wanted: tuple[str | None, uuid.UUID | None]
) -> list[tuple[str | None, int, str | None]]:
    topics = [
        DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=topic_id)
        for name, topic_id in wanted
    ]
    rows = call(env, DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6).responses
    return [(row.name, row.error_code, row.error_message) for row in rows]


@pytest.mark.parametrize("version", range(6))
def test_topics_are_deleted_by_name(env: BrokerEnvironment, version: int) -> None:
    create(env, new("orders"), new("kept"))
    assert sorted(delete(env, "orders", "never", version=version)) == [
        ("never", 3),
        ("orders", 0),
    ]
    assert names(env) == {"kept"}


def test_deleting_topic_deletes_committed_offsets(env: BrokerEnvironment) -> None:
    create(env, new("orders", 2), new("kept"))
    at = {
        ("orders", 0): CommittedOffset(1, -1, "", 1),
        ("orders", 1): CommittedOffset(2, -1, "", 1),
    }
    ended(env.broker.offsets.commit("first", at))
    ended(env.broker.offsets.commit("second", {**at, ("kept", 0): CommittedOffset(3, -1, "", 1)}))
    delete(env, "orders")
    assert list(env.broker.offsets.groups()) == ["second"]
    assert list(env.broker.offsets.of_group("second")) == [("kept", 0)]


def test_deletion_completes_after_client_disconnects(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(1, -1, "", 1)}))
    env.store.hold()
    start_call(env, DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 5).cancel()
    env.store.release()
    assert names(env) == set()
    assert list(env.broker.offsets.groups()) == []


def test_topics_are_deleted_by_id(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    topic_id = uuid.UUID(bytes=env.broker.topics.require("orders").topic.topic_id)
    (row,) = call(
        env,
        DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)]
        ),
        6,
    ).responses
    assert (row.name, row.topic_id, row.error_code) == ("orders", topic_id, 0)
    assert names(env) == set()


def test_deleting_duplicate_name_is_rejected(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    assert delete(env, "orders", "orders") == [("orders", 42)]
    assert names(env) == {"orders"}


# Codes and messages of Kafka 3.9.2.
def test_invalid_deletion_is_rejected_with_kafka_message(env: BrokerEnvironment) -> None:
    one = uuid.uuid4()
    assert delete_by(env, (None, None)) == [(None, 42, "Neither topic name nor id were specified.")]
    assert delete_by(env, ("x", one)) == [
        ("x", 42, "You may not specify both topic name and topic id.")
    ]
    assert delete_by(env, (None, one), (None, one)) == [(None, 42, "Duplicate topic id.")]
    assert [row[1] for row in delete_by(env, (None, one))] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_topic_given_by_name_and_id_is_not_deleted(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    topic_id = uuid.UUID(bytes=env.broker.topics.require("orders").topic.topic_id)
    rows = delete_by(env, ("orders", None), (None, topic_id))
    assert rows == [
        ("orders", 42, "The provided topic name maps to an ID that was already supplied.")
    ]
    assert names(env) == {"orders"}


def test_full_disk_keeps_topic(env: BrokerEnvironment) -> None:
    create(env, new("orders"))
    env.store.refuse_writes = True
    assert delete(env, "orders") == [("orders", ErrorCode.KAFKA_STORAGE_ERROR)]
    assert names(env) == {"orders"}


def extend(
    env: BrokerEnvironment,
    *wanted: tuple[str, int, Any],
    version: int = 3,
    validate_only: bool = False,
) -> list[tuple[str, int, str | None]]:
    topics = [
        More(
            name=name,
            count=count,
            assignments=None
            if brokers is None
            else [More.CreatePartitionsAssignment(broker_ids=ids) for ids in brokers],
        )
        for name, count, brokers in wanted
    ]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)
    return told(call(env, request, version).results)


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_adds_partitions(env: BrokerEnvironment, version: int) -> None:
    create(env, new("orders", 2, retention_ms="5"))
    assert extend(env, ("orders", 5, None), version=version) == [("orders", 0, None)]
    topic = env.broker.topics.require("orders").topic
    assert (topic.partitions, dict(topic.configs)) == (5, {"retention.ms": "5"})


def test_validate_only_adds_no_partitions(env: BrokerEnvironment) -> None:
    create(env, new("orders", 2))
    assert extend(env, ("orders", 5, None), validate_only=True) == [("orders", 0, None)]
    assert env.broker.topics.require("orders").topic.partitions == 2


# Codes and messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("count", "brokers", "code", "message"),
    [
        (2, None, 37, "Topic already has 2 partition(s)."),
        (0, None, 37, "The topic orders currently has 2 partition(s); 0 would not be an increase."),
        (
            -1,
            None,
            37,
            "The topic orders currently has 2 partition(s); -1 would not be an increase.",
        ),
        (
            4,
            [[1]],
            39,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (3, [[]], 39, "The manual partition assignment includes an empty replica list."),
        (3, [[1, 1]], 39, "The manual partition assignment includes the broker 1 more than once."),
        (
            4,
            [[1], [9]],
            39,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
    ],
)
def test_invalid_partition_count_is_rejected(
    env: BrokerEnvironment, count: int, brokers: Any, code: int, message: str
) -> None:
    create(env, new("orders", 2))
    assert extend(env, ("orders", count, brokers)) == [("orders", code, message)]
    assert env.broker.topics.require("orders").topic.partitions == 2


def test_partitions_of_unknown_or_duplicate_topic_are_rejected(env: BrokerEnvironment) -> None:
    create(env, new("orders", 2))
    rows = extend(env, ("never", 3, None), ("orders", 3, None), ("orders", 4, None))
    assert [(name, code) for name, code, _ in rows] == [("never", 3), ("orders", 42)]
    assert env.broker.topics.require("orders").topic.partitions == 2


def test_topic_does_not_grow_above_limit() -> None:
    env = open_environment(max_partitions_per_topic=10)
    create(env, new("orders", 2))
    assert [row[1] for row in extend(env, ("orders", 11, None))] == [37]


def test_concurrent_increase_is_applied_once(env: BrokerEnvironment) -> None:
    create(env, new("orders", 2))
    env.store.hold()
    request = CreatePartitionsRequest(
        topics=[More(name="orders", count=3, assignments=None)],
        timeout_ms=1000,
        validate_only=False,
    )
    first, second = start_call(env, request, 3), start_call(env, request, 3)
    env.store.release()
    codes = [
        decode_response(request, one.result, 3).results[0].error_code for one in (first, second)
    ]
    assert codes == [0, ErrorCode.INVALID_PARTITIONS]
