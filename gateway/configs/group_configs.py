"""Configs of single consumer groups (KIP-848), as Kafka's GroupConfig and GroupConfigManager have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.configs.overrides import ConfigTable, Overrides
from gateway.configs.value_types import ConfigDefinition, ConfigType
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import StateTable

#: Groups that may have configs of their own, some 500 bytes each.
MAX_GROUPS = 10_000

#: By name: the setting of groups that have none of their own. Kafka's name of that is the name with "group." before it.
SETTINGS = {
    "consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval_ms",
    "consumer.session.timeout.ms": "group_consumer_session_timeout_ms",
}

DEFINITIONS = {
    name: ConfigDefinition(name, ConfigType.INT, Settings.model_fields[setting].description or "")
    for name, setting in SETTINGS.items()
}

#: Kafka's defaults of group.consumer.min.X and group.consumer.max.X, in ms.
BOUNDS = {
    "consumer.heartbeat.interval.ms": (5_000, 15_000),
    "consumer.session.timeout.ms": (45_000, 60_000),
}


class GroupConfigs:
    """`settings` are those of groups without configs of their own."""

    def __init__(self, table: StateTable, settings: Settings) -> None:
        self._table = ConfigTable(table, self._check)
        self._settings = settings
        self._by_group: dict[str, Settings] = {}

    async def open(self) -> None:
        """Read the table. Raises StorageError."""
        await self._table.open()
        for group_id in self._table:
            self._put_in_force(group_id)

    def __iter__(self) -> Iterator[str]:
        """The groups that have configs of their own."""
        return iter(self._table)

    def overrides(self, group_id: str) -> Overrides:
        return self._table.get(group_id)

    def settings_of(self, group_id: str) -> Settings:
        """The settings that the group goes by."""
        return self._by_group.get(group_id, self._settings)

    async def alter(
        self, group_id: str, change: Callable[[Overrides], Overrides], *, validate_only: bool
    ) -> None:
        """Replace the configs of a group by what `change` makes of them. Raises KafkaError."""
        if not self.overrides(group_id) and len(self._table) >= MAX_GROUPS:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{MAX_GROUPS} groups have configs of their own: delete some",
            )
        await self._table.alter(group_id, change, validate_only=validate_only)
        if not validate_only:
            self._put_in_force(group_id)

    def _put_in_force(self, group_id: str) -> None:
        values = {
            SETTINGS[name]: DEFINITIONS[name].read(text)
            for name, text in self.overrides(group_id).items()
        }
        if values:
            self._by_group[group_id] = self._settings.model_copy(update=values)
        else:
            self._by_group.pop(group_id, None)

    def _check(self, overrides: Overrides) -> None:
        """Raises KafkaError(INVALID_CONFIG) in Kafka's words (GroupConfig.validate)."""
        for name in overrides:
            if name not in DEFINITIONS:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        values = {name: DEFINITIONS[name].read(text) for name, text in overrides.items()}
        for name, value in values.items():
            least, most = BOUNDS[name]
            kind, _, rest = name.partition(".")
            # What the gateway itself is set to is always allowed.
            default = getattr(self._settings, SETTINGS[name])
            if value < min(least, default):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{name} must be greater than or equal to group.{kind}.min.{rest}",
                )
            if value > max(most, default):
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"{name} must be less than or equal to group.{kind}.max.{rest}",
                )
