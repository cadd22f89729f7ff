"""Settings: The traffic log and the gateway's own log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    File,
    Level,
    Levels,
)


class LogSettings(BaseModel):
    """The traffic log and the gateway's own log."""

    model_config = SECTION_CONFIG

    traffic_log: File | None = Field(
        None,
        description="Folder of the traffic log, which records client versions for reports "
        "(docs/traffic-log.md). Disabled by default.",
    )
    traffic_topic: bool = Field(
        False,
        description=(
            "Whether the traffic rows are also written to the topic `__kopgate_traffic`, for "
            "streaming reports. Disabled by default, because it uses space in the store."
        ),
    )
    traffic_log_interval_ms: int = Field(
        1 * MINUTE,
        ge=1 * SECOND,
        le=1 * HOUR,
        description=(
            "How often the usage of a connection is written, and the maximum loss in a crash. A "
            "minute is fine enough for every trend and produces few rows."
        ),
    )
    traffic_log_max_rows_per_connection: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of topics and groups of a connection with rows of their own per "
            "interval, about 500 bytes of memory each; the others are merged into one row per "
            "request and version. Only tools that access all topics exceed the default."
        ),
    )
    traffic_log_queue_lines: int = Field(
        100_000,
        ge=1_000,
        le=10_000_000,
        description=(
            "Maximum number of rows waiting for the disk; further rows are dropped and counted "
            "(`queue full`). Also limits the rows of topics and groups of all connections per "
            "interval to about 70 MB; further ones are merged. Ten per connection by default."
        ),
    )
    traffic_log_queue_bytes: int = Field(
        64 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum bytes of waiting rows, about 450 each. Also limits what waits for the traffic "
            "topic."
        ),
    )
    traffic_log_rotate_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=16 * GIB,
        description=(
            "Size at which a file is finished: 4 to 7 MiB compressed by default; Spark reads "
            "several in one task."
        ),
    )
    traffic_log_rotate_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Age at which a file is finished and compressed. Reports also read the current file; "
            "other tools that read finished files lag by this much. 144 files a day by default."
        ),
    )
    traffic_log_compression_level: int = Field(
        1,
        ge=0,
        le=3,
        description=(
            "gzip level (ISA-L) of finished files. Level 1 makes them about ten times smaller; "
            "higher levels gain little."
        ),
    )
    traffic_log_retention_ms: int = Field(
        90 * 24 * HOUR,
        ge=-1,
        description=(
            "Finished files older than this are deleted; -1 keeps them. Also the initial retention "
            "of the traffic topic. 90 days include clients that connect once a month."
        ),
    )
    traffic_log_retention_bytes: int = Field(
        10 * GIB,
        ge=-1,
        description=(
            "Maximum size of the folder; beyond it the oldest finished files are deleted; -1 means "
            "no limit. The default holds about 80 million connection-minutes: two months of 1,000 "
            "connections."
        ),
    )
    traffic_log_salt_file: File | None = Field(
        None,
        description=(
            "File with a secret in its first line; addresses are hashed with it before they are "
            "written. A file, so that the secret is not visible in process lists. Without it "
            "addresses are written unchanged."
        ),
    )

    log_format: Literal["text", "json"] = Field(
        "text",
        description="Log format, one event per line: `text` for people or `json` for programs.",
    )
    log_level: Level = Field("info", description="Minimum level of events written.")
    log_levels: Levels = Field(
        {},
        description=(
            "Levels of single modules, for example `gateway.net.connection:debug`; a level "
            "applies to all modules below."
        ),
    )
    log_queue_events: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description=(
            "Maximum number of log lines waiting for a slow stderr, about 2 MB; further lines are "
            "dropped and counted."
        ),
    )
