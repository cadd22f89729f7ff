"""Broker configs that AlterConfigs changes at run time, as Kafka's DynamicBrokerConfig.

The store's table holds the configs of all brokers under "default" and those of one broker under its
id. The effective settings are the start-up settings, overridden by the configs of all brokers, then
by the broker's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway import logs
from gateway.configs.overrides import ConfigTable, Overrides
from gateway.configs.topic_configs import DEFINITIONS
from gateway.configs.value_types import ConfigDefinition, ConfigType, at_least, between
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import StateTable

_log = logs.get_logger(__name__)

#: Resource name of the configs of all brokers.
ALL_BROKERS = ""

_DAY_MS = 24 * 3_600_000


def _of_topics(name: str, topic_config: str) -> tuple[ConfigDefinition, str]:
    """Define a default of topics, with the values of the topic config."""
    one = DEFINITIONS[topic_config]
    assert one.setting is not None
    return ConfigDefinition(
        name, one.definition.type, one.definition.documentation, one.definition.rule
    ), one.setting


def _own(
    name: str, kind: ConfigType, setting: str, rule: Callable[[Any], None]
) -> tuple[ConfigDefinition, str]:
    return ConfigDefinition(
        name, kind, Settings.model_fields[setting].description or "", rule
    ), setting


#: Definition and setting by Kafka's config name: what DynamicBrokerConfig can change and applies to
#: the gateway.
DYNAMIC: dict[str, tuple[ConfigDefinition, str]] = {
    pair[0].name: pair
    for pair in (
        _own(
            "log.cleaner.backoff.ms", ConfigType.LONG, "log_cleaner_backoff_ms", between(1, _DAY_MS)
        ),
        _of_topics("log.cleaner.delete.retention.ms", "delete.retention.ms"),
        _of_topics("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
        _of_topics("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
        _of_topics("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
        _of_topics("log.cleanup.policy", "cleanup.policy"),
        _of_topics("log.message.downconversion.enable", "message.downconversion.enable"),
        _of_topics("log.message.timestamp.type", "message.timestamp.type"),
        _own("log.retention.bytes", ConfigType.LONG, "log_retention_bytes", at_least(-1)),
        _of_topics("log.retention.ms", "retention.ms"),
        _of_topics("log.segment.bytes", "segment.bytes"),
        _own("max.connections", ConfigType.INT, "max_connections", between(1, 1_000_000)),
        _own(
            "max.connections.per.ip",
            ConfigType.INT,
            "max_connections_per_ip",
            between(1, 1_000_000),
        ),
        _of_topics("message.max.bytes", "max.message.bytes"),
        _own("producer.id.expiration.ms", ConfigType.INT, "producer_id_expiration_ms", at_least(1)),
    )
}


class BrokerConfigs:
    """The dynamic configs of this broker.

    `settings` are the effective settings, `started_with` those from file, environment and flags.
    """

    def __init__(self, table: StateTable, settings: Settings) -> None:
        self._table = ConfigTable(table, "broker-configs", check, self._changed_outside)
        self._watchers: list[Callable[[Settings], None]] = []
        self.started_with = settings
        self.settings = settings

    async def open(self) -> None:
        """Load the table. Raises StorageError."""
        await self._table.open()
        self._put_in_force()

    @property
    def names(self) -> tuple[str, str]:
        """Resource names that apply to this broker, by precedence."""
        return str(self.started_with.node_id), ALL_BROKERS

    def overrides(self, name: str) -> Overrides:
        """Return the overrides of one of `names`."""
        return self._table.get(_key(name))

    def watch(self, call: Callable[[Settings], None]) -> None:
        """Call `call` with the effective settings after every change."""
        self._watchers.append(call)

    async def alter(
        self, name: str, change: Callable[[Overrides], Overrides], *, validate_only: bool
    ) -> None:
        """Replace the overrides of `name` with the result of `change`.

        `name` is the id of any broker, or ALL_BROKERS. Raises KafkaError.
        """
        await self._table.alter(_key(name), change, validate_only=validate_only)
        if not validate_only:
            self._put_in_force()
            configs = ",".join(
                f"{key}={value}" for key, value in sorted(self.overrides(name).items())
            )
            _log.info("broker configs altered", resource=name or "all brokers", configs=configs)

    def _changed_outside(self, key: str) -> None:
        if key in map(_key, self.names):
            self._put_in_force()

    def _put_in_force(self) -> None:
        values: dict[str, Any] = {}
        for name in reversed(self.names):
            for key, text in self.overrides(name).items():
                definition, setting = DYNAMIC[key]
                value = definition.read(text)
                values[setting] = tuple(value) if isinstance(value, list) else value
        self.settings = self.started_with.model_copy(update=values)
        for call in self._watchers:
            call(self.settings)


def _key(name: str) -> str:
    # Keys of the table cannot be empty.
    return name or "default"


def check(overrides: Overrides) -> None:
    """Refuse unknown, read-only or invalid configs with Kafka's message.

    Raises KafkaError(INVALID_REQUEST).
    """
    fixed = [name for name in overrides if name not in DYNAMIC]
    if fixed:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: Set({', '.join(fixed)})",
        )
    for name, text in overrides.items():
        try:
            DYNAMIC[name][0].read(text)
        except KafkaError as wrong:
            # Not INVALID_CONFIG: ConfigAdminManager.validateBrokerConfigChange.
            raise KafkaError(ErrorCode.INVALID_REQUEST, wrong.message) from None
