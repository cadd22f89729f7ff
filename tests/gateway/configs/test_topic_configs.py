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


def test_the_names_are_those_of_kafka_3_9_in_their_order_and_one_of_our_own() -> None:
    # As many as Kafka 3.9.2 tells of a topic.
    assert len(DEFINITIONS.keys() - {"entry.format"}) == 36
    assert list(DEFINITIONS) == sorted(DEFINITIONS)


def test_a_config_that_means_something_here_says_what() -> None:
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


def test_every_default_passes_its_own_check() -> None:
    check({name: one.default_text(SETTINGS) for name, one in DEFINITIONS.items()}, SETTINGS)


def test_without_overrides_a_topic_is_as_the_settings_say() -> None:
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


def test_overrides_count_before_the_settings() -> None:
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


def test_a_topic_without_cleanup_keeps_everything() -> None:
    check({"cleanup.policy": ""}, SETTINGS)
    config = effective_config({"cleanup.policy": ""}, SETTINGS)
    assert (config.deletes, config.compacts) == (False, False)


def test_an_override_that_a_store_of_another_version_left_counts_for_nothing() -> None:
    assert effective_config(
        {"retention.ms": "a fortnight", "unheard.of": "1"}, SETTINGS
    ) == effective_config({}, SETTINGS)


# As Kafka 3.9.2 said it.
def test_what_kafka_refuses_is_refused_in_its_words() -> None:
    assert complaint(no_such="1") == "Unknown topic config name: no.such"
    assert (
        complaint(retention_ms="x")
        == "Invalid value x for configuration retention.ms: Not a number of type LONG"
    )
    assert (
        complaint(min_compaction_lag_ms="5", max_compaction_lag_ms="3")
        == "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (3)"
    )
    assert (
        complaint(remote_storage_enable="true")
        == "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
    )
    assert (
        complaint(compression_type="x")
        == "Invalid value x for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"
    )


def test_an_unknown_name_is_complained_of_before_any_value() -> None:
    assert complaint(retention_ms="x", no_such="1") == "Unknown topic config name: no.such"


def test_every_store_keeps_one_format_or_all_and_only_one_in_pulsar_keeps_pulsars() -> None:
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


def test_the_setting_is_the_format_of_topics_without_one() -> None:
    assert effective_config({}, Settings(entry_format="kafka")).always_v2
    assert not effective_config(
        {"entry.format": "mixed_kafka"}, Settings(entry_format="kafka")
    ).always_v2
