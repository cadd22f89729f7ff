"""Topic configs: which names there are, what they may say, which of them mean something here, and what a topic's overrides come to.

Names, types and defaults are Kafka 3.9's (TopicConfig, LogConfig). A name that Kafka does not know is refused as Kafka refuses it; one that it
knows and that means nothing here is kept and shown, and its documentation says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gateway.config import Settings
from gateway.errors import ErrorCode, KafkaError

# int() itself would also take underscores and digits of other scripts.
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class ConfigType(IntEnum):
    """DescribeConfigsResponse's config types (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Definition:
    """One topic config. `default` is the text without an override; `server_key` the broker config that sets it, where there is one."""

    name: str
    type: ConfigType
    default: str | Callable[[Settings], str]
    server_key: str | None = None
    lowest: int | None = None
    highest: int | None = None
    choices: frozenset[str] | None = None
    works: bool = False
    documentation: str = ""

    def default_text(self, settings: Settings) -> str:
        return self.default if isinstance(self.default, str) else self.default(settings)


_NO_EFFECT = "Kept and shown for the tools that set it; it has no effect in this gateway."


def _kept(name: str, kind: ConfigType, default: str, lowest: int | None = None, choices: frozenset[str] | None = None) -> Definition:
    return Definition(name, kind, default, None, lowest, None, choices, False, _NO_EFFECT)


_B, _S, _I, _L, _D, _X = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

DEFINITIONS: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        Definition(
            "cleanup.policy",
            _X,
            lambda s: ",".join(s.log_cleanup_policy),
            "log.cleanup.policy",
            choices=frozenset({"delete", "compact"}),
            works=True,
            documentation="delete: old records go by time and size. compact: of each key the last record is kept.",
        ),
        Definition(
            "compression.type",
            _S,
            "producer",
            "compression.type",
            choices=frozenset({"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}),
            works=True,
            documentation="Records are kept in the codec of their producer; any other value is kept and shown, and has no effect.",
        ),
        Definition(
            "max.message.bytes",
            _I,
            lambda s: str(s.message_max_bytes),
            "message.max.bytes",
            lowest=0,
            works=True,
            documentation="The largest batch (or, of old formats, message) that is taken, as sent, with its header.",
        ),
        Definition(
            "message.downconversion.enable",
            _B,
            lambda s: str(s.log_message_downconversion_enable).lower(),
            "log.message.downconversion.enable",
            works=True,
            documentation="Whether consumers older than the stored format are served. Otherwise they get UNSUPPORTED_VERSION.",
        ),
        Definition(
            "message.timestamp.type",
            _S,
            lambda s: s.log_message_timestamp_type,
            "log.message.timestamp.type",
            choices=frozenset({"CreateTime", "LogAppendTime"}),
            works=True,
            documentation="Whose clock a record's timestamp is from: the producer's or the gateway's.",
        ),
        Definition(
            "retention.bytes",
            _L,
            lambda s: str(s.log_retention_bytes),
            "log.retention.bytes",
            works=True,
            documentation="How many bytes a partition keeps when cleanup.policy has delete; -1 is no limit.",
        ),
        Definition(
            "retention.ms",
            _L,
            lambda s: str(s.log_retention_ms),
            "log.retention.ms",
            lowest=-1,
            works=True,
            documentation="How long a partition keeps records when cleanup.policy has delete; -1 is for ever.",
        ),
        _kept("compression.gzip.level", _I, "-1"),
        _kept("compression.lz4.level", _I, "9"),
        _kept("compression.zstd.level", _I, "3"),
        _kept("delete.retention.ms", _L, "86400000", 0),
        _kept("file.delete.delay.ms", _L, "60000", 0),
        _kept("flush.messages", _L, str(LONG_MAX), 1),
        _kept("flush.ms", _L, str(LONG_MAX), 0),
        _kept("follower.replication.throttled.replicas", _X, ""),
        _kept("index.interval.bytes", _I, "4096", 0),
        _kept("leader.replication.throttled.replicas", _X, ""),
        _kept("local.retention.bytes", _L, "-2", -2),
        _kept("local.retention.ms", _L, "-2", -2),
        _kept("max.compaction.lag.ms", _L, str(LONG_MAX), 1),
        _kept("message.format.version", _S, "3.0-IV1"),
        _kept("message.timestamp.after.max.ms", _L, str(LONG_MAX), 0),
        _kept("message.timestamp.before.max.ms", _L, str(LONG_MAX), 0),
        _kept("message.timestamp.difference.max.ms", _L, str(LONG_MAX), 0),
        _kept("min.cleanable.dirty.ratio", _D, "0.5"),
        _kept("min.compaction.lag.ms", _L, "0", 0),
        _kept("min.insync.replicas", _I, "1", 1),
        _kept("preallocate", _B, "false"),
        _kept("remote.log.copy.disable", _B, "false"),
        _kept("remote.log.delete.on.disable", _B, "false"),
        _kept("remote.storage.enable", _B, "false"),
        _kept("segment.bytes", _I, "1073741824", 14),
        _kept("segment.index.bytes", _I, "10485760", 4),
        _kept("segment.jitter.ms", _L, "0", 0),
        _kept("segment.ms", _L, "604800000", 1),
        _kept("unclean.leader.election.enable", _B, "false"),
    )
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic's overrides and the settings come to, read once. Times in milliseconds; None is no limit."""

    retention_ms: int | None
    retention_bytes: int | None
    max_message_bytes: int
    is_log_append_time: bool
    may_downconvert: bool
    deletes: bool
    compacts: bool


def effective(overrides: Mapping[str, str], settings: Settings) -> TopicConfig:
    """Read overrides that `check` has passed."""

    def text(name: str) -> str:
        return overrides.get(name) or DEFINITIONS[name].default_text(settings)

    policies = {policy.strip() for policy in text("cleanup.policy").split(",")}
    retention_ms, retention_bytes = int(text("retention.ms")), int(text("retention.bytes"))
    return TopicConfig(
        retention_ms=None if retention_ms < 0 else retention_ms,
        retention_bytes=None if retention_bytes < 0 else retention_bytes,
        max_message_bytes=int(text("max.message.bytes")),
        is_log_append_time=text("message.timestamp.type") == "LogAppendTime",
        may_downconvert=text("message.downconversion.enable").lower() == "true",
        deletes="delete" in policies,
        compacts="compact" in policies,
    )


def check(name: str, value: str | None) -> None:
    """Raises KafkaError(INVALID_CONFIG), in Kafka's words, for a name or a value that Kafka would refuse."""
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    if definition.type in (ConfigType.INT, ConfigType.LONG):
        _check_number(definition, value)
    elif definition.type is ConfigType.DOUBLE:
        _check_ratio(name, value)
    elif definition.type is ConfigType.BOOLEAN and value.strip().lower() not in ("true", "false"):
        raise _invalid(name, value, "Expected value to be either true or false")
    elif definition.choices is not None:
        parts = [part.strip() for part in value.split(",")] if definition.type is ConfigType.LIST else [value]
        for part in parts:
            if part not in definition.choices:
                raise _invalid(name, value, f"String must be one of: {', '.join(sorted(definition.choices))}")


def _check_number(definition: Definition, value: str) -> None:
    bound, noun = (INT_MAX, "INT") if definition.type is ConfigType.INT else (LONG_MAX, "LONG")
    if not _NUMBER.match(value.strip()):
        raise _invalid(definition.name, value, f"Not a number of type {noun}")
    number = int(value)
    if not -bound - 1 <= number <= bound:
        raise _invalid(definition.name, value, f"Not a number of type {noun}")
    if definition.lowest is not None and number < definition.lowest:
        raise _invalid(definition.name, value, f"Value must be at least {definition.lowest}")


def _check_ratio(name: str, value: str) -> None:
    try:
        ratio = float(value)
    except ValueError:
        raise _invalid(name, value, "Not a number of type DOUBLE") from None
    if not 0 <= ratio <= 1:
        raise _invalid(name, value, "Value must be between 0 and 1")


def _invalid(name: str, value: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {value[:200]} for configuration {name}: {why}")
