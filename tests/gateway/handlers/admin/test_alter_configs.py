from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest

from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call, start_call

TOPIC, BROKER, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)

Row = tuple[int, str | None]


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def incremental_request(wanted: Any, *, validate_only: bool = False) -> Any:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for kind, name, changes in wanted
        ],
        validate_only=validate_only,
    )


def incremental(
    env: BrokerEnvironment, *wanted: Any, version: int = 1, validate_only: bool = False
) -> list[Row]:
    reply = call(env, incremental_request(wanted, validate_only=validate_only), version)
    return [(row.error_code, row.error_message) for row in reply.responses]


def alter(
    env: BrokerEnvironment, *wanted: Any, version: int = 2, validate_only: bool = False
) -> list[Row]:
    resource = AlterConfigsRequest.AlterConfigsResource
    request = AlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[resource.AlterableConfig(name=key, value=value) for key, value in configs],
            )
            for kind, name, configs in wanted
        ],
        validate_only=validate_only,
    )
    return [(row.error_code, row.error_message) for row in call(env, request, version).responses]


def overrides(env: BrokerEnvironment) -> dict[str, str]:
    return dict(env.broker.topics.require("orders").topic.configs)


@pytest.mark.parametrize("version", range(2))
def test_setting_one_config_keeps_the_others(env: BrokerEnvironment, version: int) -> None:
    env.topic(segment_ms="7")
    assert incremental(env, (TOPIC, "orders", [("retention.ms", SET, "5")]), version=version) == [
        (0, None)
    ]
    assert overrides(env) == {"segment.ms": "7", "retention.ms": "5"}


def test_changed_config_applies_to_open_partitions(env: BrokerEnvironment) -> None:
    env.topic()
    partition = env.partition()
    incremental(env, (TOPIC, "orders", [("max.message.bytes", SET, "123")]))
    assert partition.config.max_message_bytes == 123


def test_deleted_override_restores_default(env: BrokerEnvironment) -> None:
    env.topic(retention_ms="5")
    assert incremental(
        env, (TOPIC, "orders", [("retention.ms", DELETE, None), ("segment.ms", DELETE, None)])
    ) == [(0, None)]
    assert overrides(env) == {}


def test_list_items_are_appended_once_and_subtracted(env: BrokerEnvironment) -> None:
    env.topic()
    incremental(env, (TOPIC, "orders", [("cleanup.policy", APPEND, "compact,delete")]))
    assert overrides(env) == {"cleanup.policy": "delete,compact"}
    incremental(env, (TOPIC, "orders", [("cleanup.policy", SUBTRACT, "delete,compact")]))
    assert overrides(env) == {"cleanup.policy": ""}


def test_list_is_no_longer_than_a_string(env: BrokerEnvironment) -> None:
    env.topic()
    name = "leader.replication.throttled.replicas"
    halves = [
        ",".join(f"{n}:{n}" for n in range(first, first + 2000)) for first in (10_000, 20_000)
    ]
    assert incremental(env, (TOPIC, "orders", [(name, APPEND, halves[0])])) == [(0, None)]
    ((code, message),) = incremental(env, (TOPIC, "orders", [(name, APPEND, halves[1])]))
    assert (code, "32767 bytes" in message) == (40, True)
    assert overrides(env) == {name: halves[0]}


def test_validate_only_reports_errors_and_changes_nothing(env: BrokerEnvironment) -> None:
    env.topic()
    assert incremental(
        env, (TOPIC, "orders", [("retention.ms", SET, "5")]), validate_only=True
    ) == [(0, None)]
    assert [
        code
        for code, _ in incremental(
            env, (TOPIC, "orders", [("retention.ms", SET, "x")]), validate_only=True
        )
    ] == [40]
    assert overrides(env) == {}


# Codes and messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (
            [("retention.ms", APPEND, "1")],
            40,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            [("no.such", APPEND, "1")],
            40,
            "Can't APPEND to key no.such because its type is not LIST.",
        ),
        (
            [("retention.ms", SUBTRACT, "1")],
            40,
            "Can't SUBTRACT to key retention.ms because its type is not LIST.",
        ),
        ([("no.such", SET, "1")], 40, "Unknown topic config name: no.such"),
        (
            [("cleanup.policy", APPEND, "zzz")],
            40,
            (
                "Invalid value zzz for configuration cleanup.policy: String must be one of: "
                "compact, delete"
            ),
        ),
        (
            [("retention.ms", SET, None), ("segment.ms", SET, None)],
            42,
            "Null value not supported for : retention.ms, segment.ms",
        ),
        (
            [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
            42,
            "Error due to duplicate config keys",
        ),
        ([("retention.ms", 7, "1")], 42, "Unknown operations type 7"),
    ],
)
def test_rejected_change_is_rejected_as_a_whole(
    env: BrokerEnvironment, changes: Any, code: int, message: str
) -> None:
    env.topic(flush_ms="3")
    # A valid config beside the invalid one.
    assert incremental(env, (TOPIC, "orders", [("preallocate", SET, "true"), *changes])) == [
        (code, message)
    ]
    assert overrides(env) == {"flush.ms": "3"}


def test_duplicate_resource_is_rejected_twice(env: BrokerEnvironment) -> None:
    env.topic()
    wanted = (TOPIC, "orders", [("retention.ms", SET, "5")])
    assert incremental(env, wanted, wanted) == [(42, "Each resource must appear at most once.")] * 2
    assert overrides(env) == {}


# Codes and messages of Kafka 3.9.2, except for loggers, which Kafka can alter: here the error names
# the settings.
@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "never", 3, "The topic 'never' does not exist."),
        (TOPIC, "", 42, "Default topic resources are not allowed."),
        (
            TOPIC,
            "x y",
            17,
            (
                "Topic name is invalid: 'x y' contains one or more characters other than "
                "ASCII alphanumerics, '.', '_' and '-'"
            ),
        ),
        (BROKER, "9", 42, "Unexpected broker id, expected 0, but received 9"),
        (BROKER, "x", 42, "Node id must be an integer, but it is: x"),
        (BROKER, "0", 42, "Cannot update these configs dynamically: Set(retention.ms)"),
        (BROKER, "", 42, "Cannot update these configs dynamically: Set(retention.ms)"),
        (
            LOGGER,
            "0",
            42,
            "The log levels of this broker (log_level, log_levels) cannot be altered "
            "while it runs: set them in its file, environment or "
            "flags, and restart it.",
        ),
        (99, "x", 42, "Unknown resource type 99"),
        (0, "x", 42, "Unknown resource type 0"),
    ],
)
def test_unalterable_resource_fails_alone(
    env: BrokerEnvironment, kind: int, name: str, code: int, message: str
) -> None:
    assert incremental(env, (kind, name, [("retention.ms", SET, "1")])) == [(code, message)]
    assert alter(env, (kind, name, [("retention.ms", "1")])) == [(code, message)]


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_overrides(env: BrokerEnvironment, version: int) -> None:
    env.topic(segment_ms="7")
    assert alter(env, (TOPIC, "orders", [("retention.ms", "5")]), version=version) == [(0, None)]
    assert overrides(env) == {"retention.ms": "5"}


# Codes and messages of Kafka 3.9.2.
@pytest.mark.parametrize(
    ("configs", "code", "message"),
    [
        ([("no.such", "1")], 40, "Unknown topic config name: no.such"),
        ([("segment.ms", "1"), ("segment.ms", "2")], 42, "Error due to duplicate config keys"),
        ([("segment.ms", None)], 42, "Null value not supported for : segment.ms"),
    ],
)
def test_rejected_alter_configs_changes_nothing(
    env: BrokerEnvironment, configs: Any, code: int, message: str
) -> None:
    env.topic(flush_ms="3")
    assert alter(env, (TOPIC, "orders", configs)) == [(code, message)]
    assert overrides(env) == {"flush.ms": "3"}


def test_alter_configs_validate_only_changes_nothing(env: BrokerEnvironment) -> None:
    env.topic(flush_ms="3")
    assert alter(env, (TOPIC, "orders", []), validate_only=True) == [(0, None)]
    assert overrides(env) == {"flush.ms": "3"}


def test_concurrent_changes_are_both_kept(env: BrokerEnvironment) -> None:
    env.topic()
    env.store.hold()
    for key in ("retention.ms", "segment.ms"):
        start_call(env, incremental_request([(TOPIC, "orders", [(key, SET, "5")])]), 1)
    env.store.release()
    assert overrides(env) == {"retention.ms": "5", "segment.ms": "5"}


def test_change_is_applied_after_client_disconnects(env: BrokerEnvironment) -> None:
    env.topic()
    env.store.hold()
    waiting = start_call(
        env, incremental_request([(TOPIC, "orders", [("retention.ms", SET, "5")])]), 1
    )
    waiting.cancel()
    env.store.release()
    assert overrides(env) == dict(env.store.topics["orders"].configs) == {"retention.ms": "5"}


def test_full_disk_changes_nothing(env: BrokerEnvironment) -> None:
    env.topic()
    env.store.refuse_writes = True
    assert [
        code for code, _ in incremental(env, (TOPIC, "orders", [("retention.ms", SET, "5")]))
    ] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert overrides(env) == {}
