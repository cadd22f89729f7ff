from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from kafka.protocol.admin.configs import DescribeConfigsRequest, ListConfigResourcesRequest

from gateway.configs.topic_configs import NO_EFFECT
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.handler_calls import call

TOPIC, BROKER, LOGGER = 2, 4, 8
# Config sources of DescribeConfigsResponse.
OF_TOPIC, STATIC, DEFAULT, OF_LOGGER = 1, 4, 5, 6

Wanted = tuple[int, str, list[str] | None]


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_environment()


def describe(
    env: BrokerEnvironment, *wanted: Wanted, version: int = 4, **flags: bool
) -> Sequence[Any]:
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys
        )
        for kind, name, keys in wanted
    ]
    return list(call(env, DescribeConfigsRequest(resources=resources, **flags), version).results)


def values(result: Any) -> dict[str, str]:
    return {row.name: row.value for row in result.configs}


@pytest.mark.parametrize("version", range(5))
def test_every_version_returns_requested_configs(env: BrokerEnvironment, version: int) -> None:
    env.topic(retention_ms="5")
    (result,) = describe(
        env, (TOPIC, "orders", ["retention.ms", "segment.bytes", "no.such"]), version=version
    )
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "orders")
    assert values(result) == {"retention.ms": "5", "segment.bytes": "1073741824"}


@pytest.mark.parametrize("keys", [None, []])
def test_null_keys_mean_all_configs(env: BrokerEnvironment, keys: list[str] | None) -> None:
    env.topic()
    # Number of topic configs in Kafka 3.9.2.
    assert len(describe(env, (TOPIC, "orders", keys))[0].configs) == 37


def test_v0_returns_is_default(env: BrokerEnvironment) -> None:
    env.topic(retention_ms="5")
    (result,) = describe(env, (TOPIC, "orders", ["retention.ms", "segment.ms"]), version=0)
    assert {row.name: row.is_default for row in result.configs} == {
        "retention.ms": False,
        "segment.ms": True,
    }


def test_source_is_topic_settings_or_default() -> None:
    env = open_environment(message_max_bytes=5000)
    env.topic(retention_ms="5")
    (result,) = describe(
        env, (TOPIC, "orders", ["retention.ms", "max.message.bytes", "retention.bytes"])
    )
    assert {row.name: row.config_source for row in result.configs} == {
        "retention.ms": OF_TOPIC,
        "max.message.bytes": STATIC,
        "retention.bytes": DEFAULT,
    }


def test_synonyms_start_with_effective_one() -> None:
    env = open_environment(log_retention_ms=70)
    env.topic(retention_ms="5")
    wanted = (TOPIC, "orders", ["retention.ms"])
    (result,) = describe(env, wanted, include_synonyms=True)
    assert [(one.name, one.value, one.source) for one in result.configs[0].synonyms] == [
        ("retention.ms", "5", OF_TOPIC),
        ("log.retention.ms", "70", STATIC),
        # A week, under the name that has the default in Kafka.
        ("log.retention.hours", "168", DEFAULT),
    ]
    (result,) = describe(env, wanted)
    assert list(result.configs[0].synonyms) == []


def test_broker_returns_advertised_listeners(env: BrokerEnvironment) -> None:
    (result,) = describe(
        env,
        (
            BROKER,
            "0",
            ["advertised.listeners", "listener.security.protocol.map", "offsets.retention.minutes"],
        ),
    )
    assert values(result) == {
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
        "offsets.retention.minutes": "10080",
    }


def test_default_retention_has_no_synonyms(env: BrokerEnvironment) -> None:
    """In Kafka log.retention.ms has no default, and its fallbacks are not listed."""
    env.topic()
    for wanted in ((TOPIC, "orders", ["retention.ms"]), (BROKER, "0", ["log.retention.ms"])):
        (result,) = describe(env, wanted, include_synonyms=True)
        (row,) = result.configs
        assert (row.value, row.config_source, list(row.synonyms)) == ("604800000", DEFAULT, [])


def test_types_are_kafkas_and_documentation_is_optional(env: BrokerEnvironment) -> None:
    env.topic()
    keys = [
        "retention.ms",
        "preallocate",
        "cleanup.policy",
        "min.cleanable.dirty.ratio",
        "max.message.bytes",
        "compression.type",
    ]
    (result,) = describe(env, (TOPIC, "orders", keys), include_documentation=True)
    # KIP-569: BOOLEAN 1, STRING 2, INT 3, LONG 5, DOUBLE 6, LIST 7.
    assert {row.name: row.config_type for row in result.configs} == {
        "retention.ms": 5,
        "preallocate": 1,
        "cleanup.policy": 7,
        "min.cleanable.dirty.ratio": 6,
        "max.message.bytes": 3,
        "compression.type": 2,
    }
    assert all(row.documentation for row in result.configs)
    (result,) = describe(env, (TOPIC, "orders", keys))
    assert [row.documentation for row in result.configs] == [None] * len(keys)


def test_documentation_names_configs_without_effect(env: BrokerEnvironment) -> None:
    env.topic(segment_jitter_ms="5")
    (result,) = describe(
        env, (TOPIC, "orders", ["segment.jitter.ms", "retention.ms"]), include_documentation=True
    )
    assert {row.name: row.documentation == NO_EFFECT for row in result.configs} == {
        "segment.jitter.ms": True,
        "retention.ms": False,
    }


# Codes and messages of Kafka 3.9.2 for broker id 0.
@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "never", 3, None),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (
            TOPIC,
            "x y",
            17,
            (
                "Topic name is invalid: 'x y' contains one or more characters other than "
                "ASCII alphanumerics, '.', '_' and '-'"
            ),
        ),
        (BROKER, "7", 42, "Unexpected broker id, expected 0 or empty string, but received 7"),
        (BROKER, "x", 42, "Broker id must be an integer, but it is: x"),
        (LOGGER, "", 42, "Broker id must not be empty"),
        (LOGGER, "7", 42, "Unexpected broker id, expected 0 but received 7"),
        (0, "x", 42, None),
        (99, "x", 42, None),
    ],
)
def test_unsupported_resource_fails_alone(
    env: BrokerEnvironment, kind: int, name: str, code: int, message: str | None
) -> None:
    env.topic()
    results = describe(env, (kind, name, None), (TOPIC, "orders", ["retention.ms"]))
    assert [result.error_code for result in results] == [code, 0]
    assert message in (None, results[0].error_message)
    assert list(results[0].configs) == []


def test_duplicate_resource_is_merged(
    env: BrokerEnvironment,
) -> None:
    env.topic()
    (result,) = describe(
        env, (TOPIC, "orders", ["retention.ms"]), (TOPIC, "orders", ["segment.ms"])
    )
    assert set(values(result)) == {"retention.ms", "segment.ms"}
    (result,) = describe(env, (TOPIC, "orders", ["retention.ms"]), (TOPIC, "orders", None))
    assert len(result.configs) == 37


def test_broker_configs_are_the_settings() -> None:
    env = open_environment(node_id=3, num_partitions=12)
    (result,) = describe(env, (BROKER, "3", None), include_synonyms=True)
    rows = {row.name: row for row in result.configs}
    assert (rows["num.partitions"].value, rows["num.partitions"].config_source) == ("12", STATIC)
    assert (
        rows["auto.create.topics.enable"].value,
        rows["auto.create.topics.enable"].config_source,
    ) == ("true", DEFAULT)
    assert rows["node.id"].value == rows["broker.id"].value == "3"
    # Configs that Kafka 3.9.2 can change at runtime and that have a meaning here.
    assert {name for name, row in rows.items() if not row.read_only} == {
        "log.cleaner.backoff.ms",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio",
        "log.cleaner.min.compaction.lag.ms",
        "log.cleanup.policy",
        "log.message.downconversion.enable",
        "log.message.timestamp.type",
        "log.retention.bytes",
        "log.retention.ms",
        "log.segment.bytes",
        "max.connections",
        "max.connections.per.ip",
        "message.max.bytes",
        "producer.id.expiration.ms",
    }


def test_secrets_and_their_files_are_not_returned() -> None:
    env = open_environment(
        users_file="hidden.users",
        ssl_key_password_file="hidden.password",
        ssl_key_file="hidden.key",
        ssl_certificate_file="hidden.pem",
    )
    (result,) = describe(
        env, (BROKER, "0", None), include_synonyms=True, include_documentation=True
    )
    told = [
        text for row in result.configs for text in (row.value, *(one.value for one in row.synonyms))
    ]
    assert not [text for text in told if "hidden" in text]


def test_cluster_wide_broker_resource_has_no_configs(env: BrokerEnvironment) -> None:
    (result,) = describe(env, (BROKER, "", None))
    assert (result.error_code, list(result.configs)) == (0, [])


def test_loggers_are_returned_with_levels() -> None:
    env = open_environment(log_level="warning", log_levels={"gateway.protocol.session": "debug"})
    (result,) = describe(env, (LOGGER, "0", None))
    assert [(row.name, row.value, row.config_source) for row in result.configs] == [
        ("gateway.protocol.session", "DEBUG", OF_LOGGER),
        ("root", "WARNING", OF_LOGGER),
    ]


def listed(env: BrokerEnvironment, version: int, kinds: list[int]) -> Any:
    return call(env, ListConfigResourcesRequest(resource_types=kinds), version)


def names(reply: Any) -> list[tuple[int, str]]:
    return [(row.resource_type, row.resource_name) for row in reply.config_resources]


def test_config_resources_are_listed_by_type() -> None:
    env = open_environment(node_id=3)
    env.topic("orders")
    assert names(listed(env, 1, [])) == [(2, "orders"), (4, "3"), (8, "3")]
    assert names(listed(env, 1, [4])) == [(4, "3")]
    assert names(listed(env, 1, [16, 32])) == []
    ended(
        env.broker.group_configs.alter(
            "g", lambda _: {"consumer.session.timeout.ms": "50000"}, validate_only=False
        )
    )
    assert names(listed(env, 1, [16, 32])) == [(32, "g")]


def test_v0_lists_client_metrics_only() -> None:
    env = open_environment()
    env.topic("orders")
    assert list(listed(env, 0, []).config_resources) == []


def test_unknown_resource_type_is_rejected() -> None:
    assert listed(open_environment(), 1, [2, 99]).error_code == 35


def test_client_metrics_have_no_configs() -> None:
    (result,) = describe(open_environment(), (16, "all", None))
    assert (result.error_code, list(result.configs)) == (0, [])
