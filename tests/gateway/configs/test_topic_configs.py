from __future__ import annotations

import pytest

from gateway.configs.topic_configs import (
    DEFINITIONS,
    NO_EFFECT,
    TopicConfig,
    check,
    effective_config,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.addresses import parse_store
from gateway.settings.model import Settings

SETTINGS = Settings()


def complaint(**overrides: str) -> str:
    with pytest.raises(KafkaError) as raised:
        check({name.replace("_", "."): value for name, value in overrides.items()}, SETTINGS)
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    return raised.value.message


def test_names_are_those_of_kafka_3_9_plus_entry_format() -> None:
    # The number that Kafka 3.9.2 describes.
    assert len(DEFINITIONS.keys() - {"entry.format"}) == 36
    assert list(DEFINITIONS) == sorted(DEFINITIONS)


def test_configs_with_effect_are_documented() -> None:
    assert {
        name for name, one in DEFINITIONS.items() if one.definition.documentation != NO_EFFECT
    } == {
        "cleanup.policy",
        "compression.type",
        "delete.retention.ms",
        "entry.format",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
    }


def test_defaults_pass_validation() -> None:
    check({name: one.default_text(SETTINGS) for name, one in DEFINITIONS.items()}, SETTINGS)


def test_settings_are_defaults_of_topic_configs() -> None:
    # Kafka's defaults: a week, no limit of bytes, 1 MiB and 12 bytes.
    assert effective_config({}, SETTINGS) == TopicConfig(
        7 * 24 * 3_600_000, None, 1_048_588, False, True, True, False
    )
    settings = Settings(
        log_retention_ms=-1,
        log_retention_bytes=500,
        message_max_bytes=100,
        log_message_timestamp_type="LogAppendTime",
        log_message_downconversion_enable=False,
        log_cleanup_policy=("compact",),
    )
    assert effective_config({}, settings) == TopicConfig(None, 500, 100, True, False, False, True)


def test_overrides_take_precedence_over_settings() -> None:
    overrides = {
        "retention.ms": " 5 ",
        "retention.bytes": "-7",
        "max.message.bytes": "0",
        "message.timestamp.type": "LogAppendTime",
        "message.downconversion.enable": "FALSE",
        "cleanup.policy": "compact, delete",
    }
    check(overrides, SETTINGS)
    assert effective_config(overrides, SETTINGS) == TopicConfig(5, None, 0, True, False, True, True)


def test_empty_cleanup_policy_keeps_everything() -> None:
    check({"cleanup.policy": ""}, SETTINGS)
    config = effective_config({"cleanup.policy": ""}, SETTINGS)
    assert (config.deletes, config.compacts) == (False, False)


def test_invalid_stored_override_is_ignored() -> None:
    assert effective_config(
        {"retention.ms": "a fortnight", "unheard.of": "1"}, SETTINGS
    ) == effective_config({}, SETTINGS)


# Messages of Kafka 3.9.2.
def test_invalid_override_is_refused_with_kafka_message() -> None:
    assert complaint(no_such="1") == "Unknown topic config name: no.such"
    assert (
        complaint(retention_ms="x")
        == "Invalid value x for configuration retention.ms: Not a number of type LONG"
    )
    assert (
        complaint(min_compaction_lag_ms="5", max_compaction_lag_ms="3")
        == "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)"
    )
    assert complaint(remote_storage_enable="true") == (
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
        "with remote log storage."
    )
    assert complaint(compression_type="x") == (
        "Invalid value x for configuration compression.type: String must be one of: "
        "uncompressed, zstd, lz4, snappy, gzip, producer"
    )


def test_unknown_name_is_reported_before_invalid_values() -> None:
    assert complaint(retention_ms="x", no_such="1") == "Unknown topic config name: no.such"


def test_entry_format_pulsar_requires_pulsar_store() -> None:
    for entry_format, keeps_one in (("mixed_kafka", False), ("kafka", True)):
        check({"entry.format": entry_format}, SETTINGS)
        assert effective_config({"entry.format": entry_format}, SETTINGS).always_v2 is keeps_one
    assert complaint(entry_format="pulsar").startswith(
        "entry.format=pulsar requires a store in Apache Pulsar, but the store is lmdb:./data;"
    )
    assert complaint(entry_format="json").endswith(
        "String must be one of: mixed_kafka, kafka, pulsar"
    )
    in_pulsar = Settings(
        store=parse_store("pulsar://localhost:6650"), pulsar_admin="http://localhost:8080"
    )
    check({"entry.format": "pulsar"}, in_pulsar)
    assert not effective_config({"entry.format": "pulsar"}, in_pulsar).always_v2


def test_entry_format_setting_is_default_of_topics() -> None:
    assert effective_config({}, Settings(entry_format="kafka")).always_v2
    assert not effective_config(
        {"entry.format": "mixed_kafka"}, Settings(entry_format="kafka")
    ).always_v2
