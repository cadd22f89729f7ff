"""Settings: consumer groups and committed offsets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    HOUR,
    INT16_MAX,
    INT32_MAX,
    KIB,
    MAX_GROUP_ID_BYTES,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
)


class GroupSettings(BaseModel):
    """Consumer groups and committed offsets."""

    model_config = SECTION_CONFIG

    group_min_session_timeout_ms: int = Field(
        6 * SECOND,
        ge=0,
        le=INT32_MAX,
        description="Minimum session timeout that a member may request. Kafka's default.",
    )
    group_max_session_timeout_ms: int = Field(
        30 * MINUTE,
        ge=1,
        le=INT32_MAX,
        description="Maximum session timeout that a member may request. Kafka's default.",
    )
    offsets_shards: int = Field(
        32,
        ge=1,
        le=256,
        description=(
            "Number of shards of a new store in Pulsar: the parts that gateways lead, each with "
            "its groups, offsets and partitions. Fixed when a store is first used; later values "
            "are ignored."
        ),
    )
    group_initial_rebalance_delay_ms: int = Field(
        3 * SECOND,
        ge=0,
        le=1 * HOUR,
        description=(
            "How long an empty group waits for more members before its first rebalance, so that a "
            "starting application is assigned once. Kafka's default."
        ),
    )
    group_max_size: int = Field(
        10_000,
        ge=1,
        le=INT32_MAX,
        description=(
            "Maximum number of members of a group. As many as partitions of a topic: more would "
            "have nothing to read."
        ),
    )
    group_max_pending_members: int = Field(
        10_000,
        ge=1,
        description=(
            "Maximum number of new members per group that received a member id and have not joined "
            "with it yet, about 300 bytes each."
        ),
    )
    group_member_max_bytes: int = Field(
        1 * MIB,
        ge=1 * KIB,
        le=100 * MIB,
        description=(
            "Maximum size of a member's JoinGroup metadata, and of its assignment. Kafka allows "
            "that much for a whole group."
        ),
    )
    max_group_bytes: int = Field(
        256 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum memory of all groups and their members, about 2 KiB each plus their metadata. "
            "Beyond it new members are refused."
        ),
    )
    max_bytes_per_group: int = Field(
        32 * MIB,
        ge=64 * KIB,
        description=(
            "Maximum memory of one group, enough for ten thousand members with 1 KiB each. A group "
            "is stored, sent to its leader and assigned as a whole."
        ),
    )
    group_consumer_session_timeout_ms: int = Field(
        45 * SECOND,
        ge=1 * SECOND,
        le=INT32_MAX,
        description=(
            "Session timeout of members of the consumer protocol (KIP-848), which do not choose it "
            "themselves. Kafka's default."
        ),
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5 * SECOND,
        ge=100,
        le=INT32_MAX,
        description=(
            "Heartbeat interval sent to members of the consumer protocol; determines how fast "
            "partitions move. Kafka's default."
        ),
    )
    group_consumer_assignment_interval_ms: int = Field(
        1 * SECOND,
        ge=0,
        le=1 * MINUTE,
        description=(
            "Minimum time between two assignments of a group of the consumer protocol, so that a "
            "thousand members joining together cost few assignments. After a slow assignment the "
            "interval is twenty times its duration. Default of Kafka 4.3."
        ),
    )
    group_consumer_regex_max_bytes: int = Field(
        2 * KIB,
        ge=1,
        le=64 * KIB,
        description=(
            "Maximum length of a subscription's regular expression. Fits sixty topic names; the "
            "most expensive expression of this length takes 0.1 s to refuse."
        ),
    )
    group_consumer_migration_policy: Literal[
        "bidirectional", "upgrade", "downgrade", "disabled"
    ] = Field(
        "bidirectional",
        description=(
            "Whether a classic group becomes a consumer group when the first member of the "
            "consumer protocol joins (upgrade), and a classic group again when the last one "
            "leaves (downgrade). Kafka's default."
        ),
    )

    group_id_max_bytes: int = Field(
        MAX_GROUP_ID_BYTES,
        ge=1,
        le=MAX_GROUP_ID_BYTES,
        description="Maximum length of a group id. Limited by the size of the store's keys.",
    )
    offset_metadata_max_bytes: int = Field(
        4 * KIB,
        ge=0,
        le=INT16_MAX,
        description=(
            "Maximum length of the metadata of a committed offset, in characters, as in Kafka. "
            "Kafka's default."
        ),
    )
    max_offsets_per_group: int = Field(
        100_000,
        ge=1,
        description=(
            "Maximum number of partitions with committed offsets per group: ten topics of the "
            "maximum size."
        ),
    )
    committed_offsets_max_bytes: int = Field(
        512 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum memory of all committed offsets: 600 bytes each plus metadata and group ids, "
            "about 900,000 offsets. Protects against clients that commit under ever new names."
        ),
    )
    offsets_commit_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description=(
            "Maximum time to store a commit or a change of a group; afterwards the client receives "
            "COORDINATOR_NOT_AVAILABLE and retries. Kafka's default."
        ),
    )
    offsets_retention_minutes: int = Field(
        7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description=(
            "How long offsets are kept after a group has become empty or its members stopped "
            "reading the topic (KIP-211). In minutes, as in Kafka; its default, a week."
        ),
    )
    offsets_retention_check_interval_ms: int = Field(
        10 * MINUTE,
        ge=1,
        le=24 * HOUR,
        description="How often expired offsets are removed. Kafka's default.",
    )
