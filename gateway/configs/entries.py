"""Describes the configs of topics, groups and this broker, with the source of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gateway.configs import group_configs as group_configs
from gateway.configs.broker_configs import ALL_BROKERS, DYNAMIC, BrokerConfigs
from gateway.configs.topic_configs import DEFINITIONS, TopicDefinition, setting_text
from gateway.configs.value_types import ConfigType
from gateway.settings.addresses import Endpoint
from gateway.settings.model import Settings

#: Partitions of an internal topic of a gateway that is alone: Kafka's default of
#: offsets.topic.num.partitions and transaction.state.log.num.partitions.
INTERNAL_PARTITIONS = 50


class ConfigSource(IntEnum):
    """Config sources of DescribeConfigsResponse (KIP-226)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """One source of a config's value."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config; `synonyms` are the sources that have a value for it, by precedence."""

    name: str
    value: str
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]
    is_read_only: bool = False

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source if self.synonyms else ConfigSource.DEFAULT_CONFIG


def topic_entries(overrides: Mapping[str, str], configs: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Return all configs of a topic with these overrides, sorted by name."""
    for name, one in DEFINITIONS.items():
        synonyms = _server_synonyms(one, configs)
        value = one.default_text(configs.settings)
        if name in overrides:
            value = one.definition.show(overrides[name])
            synonyms = (Synonym(name, value, ConfigSource.TOPIC_CONFIG), *synonyms)
        yield ConfigEntry(name, value, one.definition.type, one.definition.documentation, synonyms)


def _server_synonyms(one: TopicDefinition, configs: BrokerConfigs) -> tuple[Synonym, ...]:
    if one.server_key is None:
        return ()
    if one.setting is None:
        return (Synonym(one.server_key, one.default, ConfigSource.DEFAULT_CONFIG),)
    return _setting_synonyms(one.server_key, one.setting, configs)


#: Configs that are unset by default, and the config and default that Kafka lists instead.
_DEFAULTS_ELSEWHERE = {
    "log.retention.ms": ("log.retention.hours", "168"),
    "broker.id": ("broker.id", "-1"),
    "node.id": ("node.id", "-1"),
}


def _setting_synonyms(name: str, setting: str, configs: BrokerConfigs) -> tuple[Synonym, ...]:
    elsewhere = _DEFAULTS_ELSEWHERE.get(name)
    settings, dynamic = configs.started_with, tuple(_dynamic_synonyms(name, configs))
    if setting not in settings.model_fields_set and not dynamic and elsewhere:
        # Kafka lists synonyms from the first config with a value (ConfigHelper.configSynonyms);
        # this one has none.
        return ()
    default_name, default_text = elsewhere or (
        name,
        setting_text(Settings.model_fields[setting].default),
    )
    default = Synonym(default_name, default_text, ConfigSource.DEFAULT_CONFIG)
    if setting not in settings.model_fields_set:
        return *dynamic, default
    return (
        *dynamic,
        Synonym(name, setting_text(getattr(settings, setting)), ConfigSource.STATIC_BROKER_CONFIG),
        default,
    )


def _dynamic_synonyms(name: str, configs: BrokerConfigs) -> Iterator[Synonym]:
    """Yield values set by AlterConfigs: for this broker, then for all brokers."""
    for resource in configs.names:
        text = configs.overrides(resource).get(name)
        if text is not None:
            yield Synonym(
                name, DYNAMIC[name][0].show(text), _DYNAMIC_SOURCES[resource == ALL_BROKERS]
            )


_DYNAMIC_SOURCES = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


_B, _S, _I, _L, _D, _X, _H = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
    ConfigType.SHORT,
)

#: Kafka's name, type and setting. No secrets: neither passwords nor the paths of files that hold
#: them.
_SETTINGS = (
    ("auto.create.topics.enable", _B, "auto_create_topics_enable"),
    ("broker.id", _I, "node_id"),
    ("connection.failed.authentication.delay.ms", _I, "connection_failed_authentication_delay_ms"),
    ("connections.max.idle.ms", _L, "connections_max_idle_ms"),
    ("entry.format", _S, "entry_format"),
    ("fetch.max.bytes", _I, "fetch_max_bytes"),
    ("group.consumer.heartbeat.interval.ms", _I, "group_consumer_heartbeat_interval_ms"),
    ("group.consumer.session.timeout.ms", _I, "group_consumer_session_timeout_ms"),
    ("group.initial.rebalance.delay.ms", _I, "group_initial_rebalance_delay_ms"),
    ("group.max.session.timeout.ms", _I, "group_max_session_timeout_ms"),
    ("group.max.size", _I, "group_max_size"),
    ("group.min.session.timeout.ms", _I, "group_min_session_timeout_ms"),
    ("log.cleaner.backoff.ms", _L, "log_cleaner_backoff_ms"),
    ("log.cleaner.delete.retention.ms", _L, "log_cleaner_delete_retention_ms"),
    ("log.cleaner.max.compaction.lag.ms", _L, "log_cleaner_max_compaction_lag_ms"),
    ("log.cleaner.min.cleanable.ratio", _D, "log_cleaner_min_cleanable_ratio"),
    ("log.cleaner.min.compaction.lag.ms", _L, "log_cleaner_min_compaction_lag_ms"),
    ("log.cleanup.policy", _X, "log_cleanup_policy"),
    ("log.message.downconversion.enable", _B, "log_message_downconversion_enable"),
    ("log.message.timestamp.type", _S, "log_message_timestamp_type"),
    ("log.retention.bytes", _L, "log_retention_bytes"),
    ("log.retention.check.interval.ms", _L, "log_retention_check_interval_ms"),
    ("log.retention.ms", _L, "log_retention_ms"),
    ("log.segment.bytes", _I, "log_segment_bytes"),
    ("max.connections", _I, "max_connections"),
    ("max.connections.per.ip", _I, "max_connections_per_ip"),
    ("max.incremental.fetch.session.cache.slots", _I, "max_incremental_fetch_session_cache_slots"),
    ("message.max.bytes", _I, "message_max_bytes"),
    ("node.id", _I, "node_id"),
    ("num.partitions", _I, "num_partitions"),
    ("offset.metadata.max.bytes", _I, "offset_metadata_max_bytes"),
    ("offsets.commit.timeout.ms", _I, "offsets_commit_timeout_ms"),
    ("offsets.retention.check.interval.ms", _L, "offsets_retention_check_interval_ms"),
    ("offsets.retention.minutes", _I, "offsets_retention_minutes"),
    ("producer.id.expiration.ms", _I, "producer_id_expiration_ms"),
    ("sasl.enabled.mechanisms", _X, "sasl_enabled_mechanisms"),
    ("sasl.server.max.receive.size", _I, "sasl_server_max_receive_size"),
    ("socket.request.max.bytes", _I, "socket_request_max_bytes"),
    ("ssl.client.auth", _S, "ssl_client_auth"),
)

#: Kafka's name, type, value and documentation of configs that cannot be set.
_FIXED = (
    (
        "default.replication.factor",
        _I,
        "1",
        "Replication factor reported to clients. Actual replication depends on the store.",
    ),
    ("delete.topic.enable", _B, "true", "Topics can be deleted."),
    (
        "group.consumer.assignors",
        _X,
        "uniform,range",
        "Server-side assignors for consumer groups (KIP-848).",
    ),
    (
        "group.coordinator.rebalance.protocols",
        _X,
        "classic,consumer",
        "The supported group protocols.",
    ),
    (
        "log.cleaner.enable",
        _B,
        "true",
        "Topics whose cleanup.policy includes compact are compacted.",
    ),
    ("log.cleaner.threads", _I, "1", "Partitions are compacted one at a time."),
    (
        "log.retention.hours",
        _I,
        "168",
        "How long records are kept if log.retention.ms is not set.",
    ),
    (
        "offsets.topic.replication.factor",
        _H,
        "1",
        "Replication factor of __consumer_offsets reported to clients.",
    ),
)


def all_brokers_entries(configs: BrokerConfigs) -> list[ConfigEntry]:
    """Return the configs that AlterConfigs set for all brokers."""
    entries = []
    for name, text in sorted(configs.overrides(ALL_BROKERS).items()):
        definition = DYNAMIC[name][0]
        value = definition.show(text)
        synonyms = (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),)
        entries.append(
            ConfigEntry(name, value, definition.type, definition.documentation, synonyms)
        )
    return entries


def broker_entries(
    configs: BrokerConfigs, advertised: Mapping[str, tuple[str, int]], internal_partitions: int
) -> list[ConfigEntry]:
    """Return the configs of this broker, sorted by name; those that AlterConfigs can change are not
    read-only.

    `advertised` maps listeners to the addresses that clients are given. `internal_partitions` is
    the number of partitions of an internal topic.
    """
    settings = configs.settings
    entries = [
        ConfigEntry(
            name,
            setting_text(getattr(settings, setting)),
            kind,
            Settings.model_fields[setting].description or "",
            _setting_synonyms(name, setting, configs),
            is_read_only=name not in DYNAMIC,
        )
        for name, kind, setting in _SETTINGS
    ]
    entries.append(
        _static(
            "advertised.listeners", _listeners(advertised), "Addresses that clients connect to."
        )
    )
    protocols = ",".join(
        f"{one.name}:{settings.security_protocol(one.name).name}" for one in settings.listeners
    )
    entries.append(
        _static(
            "listener.security.protocol.map", protocols, "The security protocol of each listener."
        )
    )
    entries.append(
        _static(
            "listeners", setting_text(settings.listeners), "Addresses that the gateway listens on."
        )
    )
    entries.append(_static("log.dirs", str(settings.store), "The store that holds the topics."))
    partitions = "Number of partitions of __consumer_offsets reported to clients."
    fixed = [
        *_FIXED,
        ("offsets.topic.num.partitions", _I, str(internal_partitions), partitions),
        *(
            (one.server_key, one.definition.type, one.default, one.definition.documentation)
            for one in DEFINITIONS.values()
            if one.setting is None
        ),
    ]
    for name, kind, value, documentation in fixed:
        if name is not None:
            synonyms = (Synonym(name, value, ConfigSource.DEFAULT_CONFIG),)
            entries.append(
                ConfigEntry(name, value, kind, documentation, synonyms, is_read_only=True)
            )
    return sorted(entries, key=lambda entry: entry.name)


def group_entries(overrides: Mapping[str, str], configs: BrokerConfigs) -> Iterator[ConfigEntry]:
    """Return the configs of a consumer group with these overrides, sorted by name."""
    for name, setting in group_configs.SETTINGS.items():
        synonyms = _setting_synonyms(f"group.{name}", setting, configs)
        value = synonyms[0].value
        if name in overrides:
            value = group_configs.DEFINITIONS[name].show(overrides[name])
            synonyms = (Synonym(name, value, ConfigSource.GROUP_CONFIG), *synonyms)
        definition = group_configs.DEFINITIONS[name]
        yield ConfigEntry(name, value, definition.type, definition.documentation, synonyms)


def _listeners(addresses: Mapping[str, tuple[str, int]]) -> str:
    return ",".join(str(Endpoint(name, host, port)) for name, (host, port) in addresses.items())


def _static(name: str, value: str, documentation: str) -> ConfigEntry:
    synonyms = (Synonym(name, value, ConfigSource.STATIC_BROKER_CONFIG),)
    return ConfigEntry(name, value, ConfigType.STRING, documentation, synonyms, is_read_only=True)
