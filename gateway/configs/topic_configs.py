"""Topic configs: which names there are, what they may say, which of them mean something here, and what a topic's overrides come to.

Names, types, defaults and rules are those of Kafka 3.9 (TopicConfig, LogConfig, ServerTopicConfigSynonyms), and there is one of our own, `entry.format`.
A name that nobody knows is refused as Kafka refuses it; one that Kafka knows and that means nothing here is kept and shown, and its documentation
says so.
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

#: The documentation of a config without effect.
NO_EFFECT = "Kept and shown for the tools that set it; it has no effect in this gateway."


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A config of topics. Without an override its value is that of the broker's config `server_key`: the field `setting` of the settings where
    there is one, otherwise `default`."""

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
    """A setting's value in the form that configs have."""
    return show(list(map(str, value)) if isinstance(value, tuple) else value)


#: The one config of our own, by KoP's name for it.
ENTRY_FORMAT = "entry.format"
MIXED_FORMAT, KAFKA_FORMAT, PULSAR_FORMAT = "mixed_kafka", "kafka", "pulsar"

#: The configs that mean something here, and what.
_EFFECTS = {
    "cleanup.policy": "delete: old records go by time and size. compact: of each key the last record is kept. Neither: everything is kept.",
    "compression.type": "Records keep their producer's codec, whatever is set here; other values are kept and shown.",
    ENTRY_FORMAT: "How records are kept. mixed_kafka: as they were produced. kafka: in format 2 only, whatever old producers send. pulsar, of a store in "
    "Apache Pulsar: one message a record, which Pulsar's own clients read and write. What was stored before stays readable.",
    "max.message.bytes": "The largest batch (or, of old formats, message) that is taken, as sent, with its header.",
    "message.downconversion.enable": "Whether consumers older than the stored format are served. Otherwise they get UNSUPPORTED_VERSION.",
    "message.timestamp.type": "Whose clock a record's timestamp is from: the producer's or the gateway's. With LogAppendTime, "
    "message sets of format 0, which has no timestamps, are stored in format 2.",
    "retention.bytes": "How many bytes a partition keeps when cleanup.policy has delete; -1 is no limit.",
    "retention.ms": "How long a partition keeps records when cleanup.policy has delete; -1 is for ever.",
}

#: Those that mean something where cleanup.policy has compact.
_EFFECTS_ON_COMPACTION = {
    "delete.retention.ms": "how long a record without a value stays after the pass that removed what was before it.",
    "max.compaction.lag.ms": "records older than this are compacted whatever min.cleanable.dirty.ratio and segment.ms say.",
    "min.cleanable.dirty.ratio": "a pass is made when the bytes not yet compacted exceed this share of all that it would read.",
    "min.compaction.lag.ms": "how long every record stays at least.",
    "segment.bytes": "the newest bytes of a partition, up to this many, are left alone until they are older than segment.ms.",
    "segment.ms": "records older than this may be compacted although they are among the newest; the very last batch never is.",
}


def _documentation(name: str) -> str:
    if name in _EFFECTS_ON_COMPACTION:
        return f"Of a topic whose cleanup.policy has compact: {_EFFECTS_ON_COMPACTION[name]}"
    return _EFFECTS.get(name, NO_EFFECT)


def _set(name: str, kind: ConfigType, setting: str, rule: Rule | None = None) -> TopicDefinition:
    """A config whose default is a setting, which bears the name of the broker's config."""
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

#: In the order of the names: the name, the type, the default (or, in `_set`, the setting that it is), the broker's config where there is
#: one, and what else a value must be.
_TABLE = (
    _set("cleanup.policy", _X, "log_cleanup_policy", one_of("compact", "delete")),
    _row("compression.gzip.level", _I, "-1", "compression.gzip.level", gzip_level),
    _row("compression.lz4.level", _I, "9", "compression.lz4.level", between(1, 17)),
    _row("compression.type", _S, "producer", "compression.type", _CODECS),
    _row("compression.zstd.level", _I, "3", "compression.zstd.level", between(-131072, 22)),
    _row("delete.retention.ms", _L, "86400000", "log.cleaner.delete.retention.ms", at_least(0)),
    _set(ENTRY_FORMAT, _S, "entry_format", one_of(MIXED_FORMAT, KAFKA_FORMAT, PULSAR_FORMAT)),
    _row("file.delete.delay.ms", _L, "60000", "log.segment.delete.delay.ms", at_least(0)),
    _row("flush.messages", _L, _FOREVER, "log.flush.interval.messages", at_least(1)),
    _row("flush.ms", _L, _FOREVER, None, at_least(0)),
    _row(_FOLLOWERS, _X, "", None, throttled_replicas(_FOLLOWERS)),
    _row("index.interval.bytes", _I, "4096", "log.index.interval.bytes", at_least(0)),
    _row(_LEADERS, _X, "", None, throttled_replicas(_LEADERS)),
    _row("local.retention.bytes", _L, "-2", "log.local.retention.bytes", at_least(-2)),
    _row("local.retention.ms", _L, "-2", "log.local.retention.ms", at_least(-2)),
    _row("max.compaction.lag.ms", _L, _FOREVER, "log.cleaner.max.compaction.lag.ms", at_least(1)),
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
    _row("min.cleanable.dirty.ratio", _D, "0.5", "log.cleaner.min.cleanable.ratio", between(0, 1)),
    _row("min.compaction.lag.ms", _L, "0", "log.cleaner.min.compaction.lag.ms", at_least(0)),
    _row("min.insync.replicas", _I, "1", "min.insync.replicas", at_least(1)),
    _row("preallocate", _B, "false", "log.preallocate"),
    _row("remote.log.copy.disable", _B, "false", None),
    _row("remote.log.delete.on.disable", _B, "false", None),
    _row("remote.storage.enable", _B, "false", None),
    _set("retention.bytes", _L, "log_retention_bytes"),
    _set("retention.ms", _L, "log_retention_ms", at_least(-1)),
    _row("segment.bytes", _I, "1073741824", "log.segment.bytes", at_least(14)),
    _row("segment.index.bytes", _I, "10485760", "log.index.size.max.bytes", at_least(4)),
    _row("segment.jitter.ms", _L, "0", None, at_least(0)),
    _row("segment.ms", _L, "604800000", None, at_least(1)),
    _row("unclean.leader.election.enable", _B, "false", "unclean.leader.election.enable"),
)

#: By name, in the order of the names.
DEFINITIONS: dict[str, TopicDefinition] = {one.name: one for one in _TABLE}


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """When a partition is compacted, and what is left alone. Times in milliseconds; see the documentation of the configs of these names."""

    delete_retention_ms: int = 86_400_000
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic's overrides and the settings come to, read once. Times in milliseconds; None is no limit."""

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
        """Whether a message set of format 0 or 1 is stored as a batch. Format 0 has no field for an append time."""
        return self.always_v2 or (self.is_log_append_time and magic == 0)


def effective_value(name: str, overrides: Mapping[str, str], settings: Settings) -> Any:
    """The value that counts: the override, or else the default. Raises KafkaError(INVALID_CONFIG)."""
    one = DEFINITIONS[name]
    override = overrides.get(name)
    return one.definition.read(one.default_text(settings) if override is None else override)


def effective_config(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    """Read overrides that `check` has passed. One that it would not pass any more, since the store is of another version, counts for nothing:
    no stored topic keeps the gateway from starting."""

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
    """Raises KafkaError(INVALID_CONFIG), in Kafka's words, for overrides that Kafka would refuse (LogConfig.validate), or that the store cannot do."""
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
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
        )
    if effective_value("remote.storage.enable", overrides, settings):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        )
    if (
        effective_value(ENTRY_FORMAT, overrides, settings) == PULSAR_FORMAT
        and ENTRY_FORMAT in overrides
        and not settings.store.is_pulsar
    ):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{ENTRY_FORMAT}={PULSAR_FORMAT} needs a store in Apache Pulsar, and this one is {settings.store}; {MIXED_FORMAT} and {KAFKA_FORMAT} are for every store.",
        )
