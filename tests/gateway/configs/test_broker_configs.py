"""Configs of brokers through AlterConfigs, IncrementalAlterConfigs and DescribeConfigs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.configs.entries import broker_entries
from gateway.configs.topic_configs import CompactionConfig
from gateway.net.listeners import ConnectionLimits
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers.admin.test_alter_configs import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    alter,
    incremental,
)
from tests.gateway.handlers.admin.test_describe_configs import describe, values

TOPIC, BROKER = 2, 4
DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = 2, 3, 4, 5


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment(node_id=1)


def put(
    env: BrokerEnvironment, name: str, value: str | None, resource: str = "1", how: int = SET
) -> tuple[int, str | None]:
    return incremental(env, (BROKER, resource, [(name, how, value)]))[0]


def row(env: BrokerEnvironment, name: str, resource: tuple[int, str] = (BROKER, "1")) -> Any:
    (result,) = describe(env, (*resource, [name]), include_synonyms=True)
    (found,) = result.configs
    return found


def synonyms(found: Any) -> list[tuple[str, str, int]]:
    return [(one.name, one.value, one.source) for one in found.synonyms]


def test_changed_default_applies_to_topics_at_once(env: BrokerEnvironment) -> None:
    plain, own = env.topic("plain"), env.topic("own", max_message_bytes="77")
    assert put(env, "message.max.bytes", "2000") == (0, None)
    assert (plain.config.max_message_bytes, own.config.max_message_bytes) == (2000, 77)
    assert env.partition("plain").config.max_message_bytes == 2000
    assert env.topic("later").config.max_message_bytes == 2000
    assert env.broker.settings.message_max_bytes == 2000
    assert put(env, "message.max.bytes", None, how=DELETE) == (0, None)
    assert plain.config.max_message_bytes == 1048588


def test_changed_compaction_defaults_apply_to_topics_at_once(env: BrokerEnvironment) -> None:
    plain, own = env.topic("plain"), env.topic("own", segment_bytes="77")
    changes = {
        "log.cleaner.delete.retention.ms": "1",
        "log.cleaner.max.compaction.lag.ms": "3",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.cleaner.min.compaction.lag.ms": "2",
        "log.segment.bytes": "2000",
    }
    assert [put(env, name, value) for name, value in changes.items()] == [(0, None)] * 5
    assert plain.config.compaction == CompactionConfig(1, 3, 0.25, 2, 2000)
    assert own.config.compaction == CompactionConfig(1, 3, 0.25, 2, 77)
    assert row(env, "min.cleanable.dirty.ratio", (TOPIC, "plain")).value == "0.25"


def test_open_partition_uses_changed_default(env: BrokerEnvironment) -> None:
    env.topic("plain")
    partition = env.partition("plain")
    put(env, "log.message.timestamp.type", "LogAppendTime")
    assert partition.config.is_log_append_time


def test_broker_value_precedes_cluster_value(env: BrokerEnvironment) -> None:
    put(env, "log.retention.ms", "1000", resource="")
    assert env.broker.settings.log_retention_ms == 1000
    put(env, "log.retention.ms", "2000")
    assert env.broker.settings.log_retention_ms == 2000
    put(env, "log.retention.ms", None, how=DELETE)
    assert env.broker.settings.log_retention_ms == 1000


# Order and names of Kafka 3.9.2.
def test_sources_and_synonyms_show_where_value_is_set() -> None:
    env = open_environment(node_id=1, message_max_bytes=3000)
    env.topic("orders")
    put(env, "message.max.bytes", "1000", resource="")
    put(env, "message.max.bytes", "2000")
    found = row(env, "message.max.bytes")
    places = [
        ("message.max.bytes", "2000", DYNAMIC_BROKER),
        ("message.max.bytes", "1000", DYNAMIC_DEFAULT),
        ("message.max.bytes", "3000", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]
    assert (found.value, found.config_source, found.read_only, synonyms(found)) == (
        "2000",
        DYNAMIC_BROKER,
        False,
        places,
    )
    of_topic = row(env, "max.message.bytes", (TOPIC, "orders"))
    assert (of_topic.value, of_topic.config_source, synonyms(of_topic)) == (
        "2000",
        DYNAMIC_BROKER,
        places,
    )
    of_all = row(env, "message.max.bytes", (BROKER, ""))
    assert (of_all.value, of_all.config_source, synonyms(of_all)) == (
        "1000",
        DYNAMIC_DEFAULT,
        [places[1]],
    )


def test_changed_retention_has_synonyms(env: BrokerEnvironment) -> None:
    env.topic("orders")
    put(env, "log.retention.ms", "1000")
    assert synonyms(row(env, "retention.ms", (TOPIC, "orders"))) == [
        ("log.retention.ms", "1000", DYNAMIC_BROKER),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_broker_configs_survive_restart() -> None:
    medium = Medium()
    env = open_environment(medium, node_id=1)
    put(env, "log.retention.bytes", "5000")
    put(env, "log.cleanup.policy", "compact", resource="")
    ended(env.store.close())
    again = open_environment(medium, node_id=1)
    assert (
        again.broker.settings.log_retention_bytes,
        again.broker.settings.log_cleanup_policy,
    ) == (5000, ("compact",))
    assert again.topic("plain").config.compacts
    ended(again.store.close())
    # Another broker of the cluster has only the cluster-wide value.
    other = open_environment(medium, node_id=2)
    assert (
        other.broker.settings.log_retention_bytes,
        other.broker.settings.log_cleanup_policy,
    ) == (-1, ("compact",))


def test_alter_configs_replaces_all_broker_overrides(env: BrokerEnvironment) -> None:
    put(env, "log.retention.bytes", "5000")
    assert alter(env, (BROKER, "1", [("message.max.bytes", "2000")])) == [(0, None)]
    assert (env.broker.settings.log_retention_bytes, env.broker.settings.message_max_bytes) == (
        -1,
        2000,
    )


@pytest.mark.parametrize(
    ("how", "value", "outcome"),
    [(APPEND, "compact", ("delete", "compact")), (SUBTRACT, "delete", ())],
)
def test_broker_list_configs_are_appended_and_subtracted(
    env: BrokerEnvironment, how: int, value: str, outcome: tuple[str, ...]
) -> None:
    assert put(env, "log.cleanup.policy", value, how=how) == (0, None)
    assert env.broker.settings.log_cleanup_policy == outcome


def test_validate_only_changes_no_broker_config(env: BrokerEnvironment) -> None:
    wanted = (BROKER, "1", [("message.max.bytes", SET, "2000")])
    assert incremental(env, wanted, validate_only=True) == [(0, None)]
    assert env.broker.settings.message_max_bytes == 1048588


# Errors of Kafka 3.9.2; tests/peers/tools/test_kafka_tools.py compares them.
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "3", "Cannot update these configs dynamically: Set(num.partitions)"),
        (
            "message.max.bytes",
            "-1",
            "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            "log.retention.ms",
            "x",
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
    ],
)
def test_fixed_broker_configs_are_rejected(
    env: BrokerEnvironment, name: str, value: str, message: str
) -> None:
    assert put(env, name, value) == (42, message)
    assert put(env, name, value, resource="") == (42, message)
    assert list(describe(env, (BROKER, "", None))[0].configs) == []


def test_one_invalid_config_rejects_whole_request(env: BrokerEnvironment) -> None:
    rows = incremental(
        env, (BROKER, "1", [("message.max.bytes", SET, "2000"), ("num.partitions", SET, "3")])
    )
    assert rows == [(42, "Cannot update these configs dynamically: Set(num.partitions)")]
    assert env.broker.settings.message_max_bytes == 1048588


def test_deleting_unset_config_succeeds(env: BrokerEnvironment) -> None:
    """kafka-reassign-partitions.sh deletes throttles that are not set."""
    assert put(env, "leader.replication.throttled.rate", None, how=DELETE) == (0, None)


def test_client_metrics_are_rejected(env: BrokerEnvironment) -> None:
    ((code, message),) = incremental(env, (16, "all", [("interval.ms", SET, "1000")]))
    assert (code, message) == (42, "The gateway collects no client metrics (KIP-714).")


def test_connection_limits_change_at_runtime(env: BrokerEnvironment) -> None:
    limits = ConnectionLimits(env.broker.settings)
    env.broker.configs.watch(limits.update)
    assert limits.refusal_reason("10.0.0.1") is None
    put(env, "max.connections", "1")
    limits.connections.add(None)
    assert limits.refusal_reason("10.0.0.1") == "max_connections=1 reached"


def test_value_of_newer_version_is_ignored() -> None:
    medium = Medium()
    env = open_environment(medium, node_id=1)
    put(env, "message.max.bytes", "2000")
    ended(env.store.close())
    medium.tables["broker-configs"][b"1"] = (
        b'{"message.max.bytes":"2000","from.the.future":"1","log.retention.ms":"x"}'
    )
    assert (
        values(describe(open_environment(medium, node_id=1), (BROKER, "1", None))[0])[
            "message.max.bytes"
        ]
        == "2000"
    )


@pytest.mark.parametrize(("settings", "node_id"), [({}, "0"), ({"node_id": 4}, "4")])
@pytest.mark.parametrize("name", ["broker.id", "node.id"])
def test_node_id_has_its_value_in_use_and_the_default_of_kafka(name, settings, node_id):
    broker = open_environment(**settings).broker
    entries = broker_entries(broker.configs, broker.cluster.advertised, 50)
    (entry,) = [entry for entry in entries if entry.name == name]
    assert [(one.value, one.source.name) for one in entry.synonyms] == [
        (node_id, "STATIC_BROKER_CONFIG"),
        ("-1", "DEFAULT_CONFIG"),
    ]
