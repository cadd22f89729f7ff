"""Topic configs: definitions, validation, and a topic's effective config.

Names, types, defaults and rules are those of Kafka 3.9 (TopicConfig, LogConfig,
ServerTopicConfigSynonyms), plus `entry.format`. Unknown names are refused as in Kafka. Configs of
Kafka that have no effect here are stored and shown, and documented as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.configs.value_types import (
    LONG_MAX,
    ConfigDefinition,
    ConfigType,
    Rule,
    at_least,
    between,
    gzip_level,
    kafka_version,
    one_of,
    show,
    throttled_replicas,
)
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire.primitives import MAX_STRING_BYTES
from gateway.settings.model import Settings

#: Documentation of a config without effect.
NO_EFFECT = "Stored and shown for compatibility; has no effect in this gateway."


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic config.

    Its default is the value of the broker config `server_key`: the setting `setting` if there is
    one, otherwise `default`.
    """

    definition: ConfigDefinition
    server_key: str | None
    setting: str | None = None
    default: str = ""

    @property
    def name(self) -> str:
        return self.definition.name

    def default_text(self, settings: Settings) -> str:
        return (
            self.default if self.setting is None else setting_text(getattr(settings, self.setting))
        )


def setting_text(value: Any) -> str:
    """Return a setting's value in the format of configs."""
    return show(list(map(str, value)) if isinstance(value, tuple) else value)


#: The only config that Kafka does not have; named as in KoP.
ENTRY_FORMAT = "entry.format"
MIXED_FORMAT, KAFKA_FORMAT, PULSAR_FORMAT = "mixed_kafka", "kafka", "pulsar"

#: Documentation of the configs that have an effect.
_EFFECTS = {
    "cleanup.policy": (
        "delete: old records are deleted by time and size. compact: the last record of each key "
        "is kept. Neither: all records are kept."
    ),
    "compression.type": (
        "Records always keep the producer's codec; other values are stored and shown."
    ),
    ENTRY_FORMAT: (
        "How records are stored. mixed_kafka: as produced. kafka: converted to format 2. pulsar "
        "(only for a store in Apache Pulsar): one message per record, readable and writable by "
        "Pulsar clients. Records stored before a change stay readable."
    ),
    "max.message.bytes": (
        "Maximum size of a batch (in old formats: of a message) as sent, including its header."
    ),
    "message.downconversion.enable": (
        "Whether records are converted for consumers of older formats. Otherwise they get "
        "UNSUPPORTED_VERSION."
    ),
    "message.timestamp.type": (
        "Whether timestamps are set by the producer or by the gateway. With LogAppendTime, "
        "message sets of format 0, which has no timestamps, are stored in format 2."
    ),
    "retention.bytes": (
        "Maximum size of a partition if cleanup.policy includes delete; -1 means no limit."
    ),
    "retention.ms": (
        "How long records are kept if cleanup.policy includes delete; -1 means forever."
    ),
}

#: Documentation of the configs that have an effect on compaction.
_EFFECTS_ON_COMPACTION = {
    "delete.retention.ms": (
        "how long a tombstone stays after the pass that removed the records before it."
    ),
    "max.compaction.lag.ms": (
        "records older than this are compacted regardless of min.cleanable.dirty.ratio and "
        "segment.ms."
    ),
    "min.cleanable.dirty.ratio": (
        "a pass starts when the dirty bytes exceed this share of the bytes it would read."
    ),
    "min.compaction.lag.ms": "minimum time that every record stays.",
    "segment.bytes": (
        "the newest bytes of a partition, up to this many, are not compacted until they are "
        "older than segment.ms."
    ),
    "segment.ms": (
        "records older than this may be compacted although they are among the newest bytes; the "
        "last batch never is."
    ),
}


def _documentation(name: str) -> str:
    if name in _EFFECTS_ON_COMPACTION:
        return f"If cleanup.policy includes compact: {_EFFECTS_ON_COMPACTION[name]}"
    return _EFFECTS.get(name, NO_EFFECT)


def _set(name: str, kind: ConfigType, setting: str, rule: Rule | None = None) -> TopicDefinition:
    """Define a config whose default is a setting, named after the broker config."""
    return TopicDefinition(
        ConfigDefinition(name, kind, _documentation(name), rule), setting.replace("_", "."), setting
    )


def _row(
    name: str, kind: ConfigType, default: str, server_key: str | None, rule: Rule | None = None
) -> TopicDefinition:
    return TopicDefinition(
        ConfigDefinition(name, kind, _documentation(name), rule), server_key, None, default
    )


_B, _S, _I, _L, _D, _X = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)
_FOREVER = str(LONG_MAX)
_CODECS = one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_FOLLOWERS, _LEADERS = (
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
)

#: Sorted by name. Columns: name, type, default (in `_set`: the setting), broker config if any,
#: rule.
_TABLE = (
    _set("cleanup.policy", _X, "log_cleanup_policy", one_of("compact", "delete")),
    _row("compression.gzip.level", _I, "-1", "compression.gzip.level", gzip_level),
    _row("compression.lz4.level", _I, "9", "compression.lz4.level", between(1, 17)),
    _row("compression.type", _S, "producer", "compression.type", _CODECS),
    _row("compression.zstd.level", _I, "3", "compression.zstd.level", between(-131072, 22)),
    _set("delete.retention.ms", _L, "log_cleaner_delete_retention_ms", at_least(0)),
    _set(ENTRY_FORMAT, _S, "entry_format", one_of(MIXED_FORMAT, KAFKA_FORMAT, PULSAR_FORMAT)),
    _row("file.delete.delay.ms", _L, "60000", "log.segment.delete.delay.ms", at_least(0)),
    _row("flush.messages", _L, _FOREVER, "log.flush.interval.messages", at_least(1)),
    _row("flush.ms", _L, _FOREVER, None, at_least(0)),
    _row(_FOLLOWERS, _X, "", None, throttled_replicas(_FOLLOWERS)),
    _row("index.interval.bytes", _I, "4096", "log.index.interval.bytes", at_least(0)),
    _row(_LEADERS, _X, "", None, throttled_replicas(_LEADERS)),
    _row("local.retention.bytes", _L, "-2", "log.local.retention.bytes", at_least(-2)),
    _row("local.retention.ms", _L, "-2", "log.local.retention.ms", at_least(-2)),
    _set("max.compaction.lag.ms", _L, "log_cleaner_max_compaction_lag_ms", at_least(1)),
    _set("max.message.bytes", _I, "message_max_bytes", at_least(0)),
    _set("message.downconversion.enable", _B, "log_message_downconversion_enable"),
    _row("message.format.version", _S, "3.0-IV1", "log.message.format.version", kafka_version),
    _row(
        "message.timestamp.after.max.ms",
        _L,
        _FOREVER,
        "log.message.timestamp.after.max.ms",
        at_least(0),
    ),
    _row(
        "message.timestamp.before.max.ms",
        _L,
        _FOREVER,
        "log.message.timestamp.before.max.ms",
        at_least(0),
    ),
    _row(
        "message.timestamp.difference.max.ms",
        _L,
        _FOREVER,
        "log.message.timestamp.difference.max.ms",
        at_least(0),
    ),
    _set(
        "message.timestamp.type",
        _S,
        "log_message_timestamp_type",
        one_of("CreateTime", "LogAppendTime"),
    ),
    _set("min.cleanable.dirty.ratio", _D, "log_cleaner_min_cleanable_ratio", between(0, 1)),
    _set("min.compaction.lag.ms", _L, "log_cleaner_min_compaction_lag_ms", at_least(0)),
    _row("min.insync.replicas", _I, "1", "min.insync.replicas", at_least(1)),
    _row("preallocate", _B, "false", "log.preallocate"),
    _row("remote.log.copy.disable", _B, "false", None),
    _row("remote.log.delete.on.disable", _B, "false", None),
    _row("remote.storage.enable", _B, "false", None),
    _set("retention.bytes", _L, "log_retention_bytes"),
    _set("retention.ms", _L, "log_retention_ms", at_least(-1)),
    _set("segment.bytes", _I, "log_segment_bytes", at_least(14)),
    _row("segment.index.bytes", _I, "10485760", "log.index.size.max.bytes", at_least(4)),
    _row("segment.jitter.ms", _L, "0", None, at_least(0)),
    _row("segment.ms", _L, "604800000", None, at_least(1)),
    _row("unclean.leader.election.enable", _B, "false", "unclean.leader.election.enable"),
)

#: Definitions by name, sorted.
DEFINITIONS: dict[str, TopicDefinition] = {one.name: one for one in _TABLE}


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """Effective compaction configs of a topic; times in milliseconds."""

    delete_retention_ms: int = 86_400_000
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Effective configs of a topic. Times are in milliseconds; None means no limit."""

    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    is_log_append_time: bool
    downconversion_enabled: bool
    deletes: bool
    compacts: bool
    compaction: CompactionConfig = CompactionConfig()
    always_v2: bool = False

    def stores_as_v2(self, magic: int) -> bool:
        """Whether a message set of format `magic` is converted to a batch before it is stored.

        Format 0 has no field for the append time.
        """
        return self.always_v2 or (self.is_log_append_time and magic == 0)


def effective_value(name: str, overrides: Mapping[str, str], settings: Settings) -> Any:
    """Return the override or else the default. Raises KafkaError(INVALID_CONFIG)."""
    one = DEFINITIONS[name]
    override = overrides.get(name)
    return one.definition.read(one.default_text(settings) if override is None else override)


def effective_config(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    """Parse overrides that passed `check`.

    Overrides that are invalid in this version, because another version stored them, are ignored, so
    that no stored topic prevents a start.
    """

    def value(name: str) -> Any:
        try:
            return effective_value(name, overrides, settings)
        except KafkaError:
            return effective_value(name, {}, settings)

    retention_ms, retention_bytes, policies = (
        value("retention.ms"),
        value("retention.bytes"),
        value("cleanup.policy"),
    )
    return TopicConfig(
        retention_ms=None if retention_ms < 0 else retention_ms,
        retention_bytes=None if retention_bytes < 0 else retention_bytes,
        max_message_bytes=value("max.message.bytes"),
        is_log_append_time=value("message.timestamp.type") == "LogAppendTime",
        downconversion_enabled=value("message.downconversion.enable"),
        deletes="delete" in policies,
        compacts="compact" in policies,
        compaction=CompactionConfig(
            delete_retention_ms=value("delete.retention.ms"),
            max_compaction_lag_ms=value("max.compaction.lag.ms"),
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
        ),
        always_v2=value(ENTRY_FORMAT) == KAFKA_FORMAT,
    )


def check(overrides: Mapping[str, str], settings: Settings) -> None:
    """Refuse overrides that Kafka would refuse (LogConfig.validate) or the store cannot implement.

    Raises KafkaError(INVALID_CONFIG) with Kafka's message.
    """
    for name in overrides:
        if name not in DEFINITIONS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    for name, text in overrides.items():
        if len(text.encode()) > MAX_STRING_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Invalid value for configuration {name}: more than {MAX_STRING_BYTES} bytes",
            )
        DEFINITIONS[name].definition.read(text)
    least, most = (
        effective_value("min.compaction.lag.ms", overrides, settings),
        effective_value("max.compaction.lag.ms", overrides, settings),
    )
    if least > most:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > "
            f"max.compaction.lag.ms ({most})",
        )
    if effective_value("remote.storage.enable", overrides, settings):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage.",
        )
    if (
        effective_value(ENTRY_FORMAT, overrides, settings) == PULSAR_FORMAT
        and ENTRY_FORMAT in overrides
        and not settings.store.is_pulsar
    ):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ENTRY_FORMAT}={PULSAR_FORMAT} requires a store in Apache Pulsar, but the store is "
            f"{settings.store}; use {MIXED_FORMAT} or {KAFKA_FORMAT}.",
        )
