"""Settings: creation of topics, and defaults of topic configs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    HOUR,
    INT32_MAX,
    INT64_MAX,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    CleanupPolicy,
)


class TopicSettings(BaseModel):
    """Creation of topics, and defaults of topic configs."""

    model_config = SECTION_CONFIG

    auto_create_topics_enable: bool = Field(
        True,
        description=(
            "Whether Metadata and Produce requests create missing topics. Kafka's default; old "
            "applications rely on it."
        ),
    )
    num_partitions: int = Field(
        1,
        ge=1,
        description="Number of partitions of a topic created without a number. Kafka's default.",
    )
    max_partitions_per_topic: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of partitions per topic; limits what one request can allocate to about "
            "10 MB."
        ),
    )
    max_topics: int = Field(
        50_000,
        ge=1,
        le=10_000_000,
        description=(
            "Maximum number of topics that clients can create, about 2 KiB of memory each without "
            "partitions in use. Topics that exist in Pulsar are served beyond it."
        ),
    )
    log_retention_ms: int = Field(
        7 * 24 * HOUR,
        ge=-1,
        description="Default of the topic config `retention.ms`. Kafka's default, a week.",
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description=(
            "Default of the topic config `retention.bytes` (per partition). Kafka's default."
        ),
    )
    log_retention_check_interval_ms: int = Field(
        5 * MINUTE,
        ge=1,
        le=24 * HOUR,
        description="How often retention is applied. Kafka's default.",
    )
    log_cleaner_backoff_ms: int = Field(
        15 * SECOND,
        ge=1,
        le=24 * HOUR,
        description=(
            "How often compacted topics are checked for records to remove. Kafka's default. A "
            "partition without new records costs 5 us."
        ),
    )
    log_cleaner_delete_retention_ms: int = Field(
        24 * HOUR,
        ge=0,
        le=INT64_MAX,
        description="Default of the topic config `delete.retention.ms`. Kafka's default.",
    )
    log_cleaner_max_compaction_lag_ms: int = Field(
        INT64_MAX,
        ge=1,
        le=INT64_MAX,
        description="Default of the topic config `max.compaction.lag.ms`. Kafka's default.",
    )
    log_cleaner_min_cleanable_ratio: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Default of the topic config `min.cleanable.dirty.ratio`. Kafka's default.",
    )
    log_cleaner_min_compaction_lag_ms: int = Field(
        0,
        ge=0,
        le=INT64_MAX,
        description="Default of the topic config `min.compaction.lag.ms`. Kafka's default.",
    )
    log_cleanup_policy: CleanupPolicy = Field(
        ("delete",), description="Default of the topic config `cleanup.policy`. Kafka's default."
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        "CreateTime",
        description="Default of the topic config `message.timestamp.type`. Kafka's default.",
    )
    log_message_downconversion_enable: bool = Field(
        True,
        description=(
            "Default of the topic config `message.downconversion.enable`. Enabled, because serving "
            "old consumers is the purpose of the gateway."
        ),
    )
    log_segment_bytes: int = Field(
        1024 * MIB,
        ge=14,
        le=INT32_MAX,
        description="Default of the topic config `segment.bytes`. Kafka's default.",
    )
    message_max_bytes: int = Field(
        1 * MIB + 12,
        ge=0,
        le=INT32_MAX,
        description=(
            "Default of the topic config `max.message.bytes`, the maximum size of a batch. Kafka's "
            "default."
        ),
    )
    producer_id_expiration_ms: int = Field(
        24 * HOUR,
        ge=1,
        description="Idempotent producers idle for this long are forgotten. Kafka's default.",
    )
    max_producer_ids_per_partition: int = Field(
        10_000,
        ge=1,
        description=(
            "Maximum number of idempotent producers remembered per partition, about 1 KB each. The "
            "one idle longest is forgotten first, unless it has in-flight batches."
        ),
    )
