"""Configs of consumer groups (KIP-848), as Kafka's GroupConfig and GroupConfigManager."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.configs.overrides import ConfigTable, Overrides
from gateway.configs.value_types import ConfigDefinition, ConfigType
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from storage.log import StateTable

#: Maximum number of groups with configs of their own, some 500 bytes each.
MAX_GROUPS = 10_000

#: Default settings by config name. Kafka's broker config has the same name with the prefix
#: "group.".
SETTINGS = {
    "consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval_ms",
    "consumer.session.timeout.ms": "group_consumer_session_timeout_ms",
}

DEFINITIONS = {
    name: ConfigDefinition(name, ConfigType.INT, Settings.model_fields[setting].description or "")
    for name, setting in SETTINGS.items()
}

#: Kafka's defaults of group.consumer.min.* and group.consumer.max.*, in milliseconds.
BOUNDS = {
    "consumer.heartbeat.interval.ms": (5_000, 15_000),
    "consumer.session.timeout.ms": (45_000, 60_000),
}


class GroupConfigs:
    """Configs by group; `settings` apply to groups without configs of their own."""

    def __init__(self, table: StateTable, settings: Settings) -> None:
        self._table = ConfigTable(table, "group-configs", self._check, self._put_in_force)
        self._settings = settings
        self._by_group: dict[str, Settings] = {}
        self._watchers: list[Callable[[str], None]] = []

    async def open(self) -> None:
        """Load the table. Raises StorageError."""
        await self._table.open()
        for group_id in self._table:
            self._put_in_force(group_id)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the groups that have configs of their own."""
        return iter(self._table)

    def overrides(self, group_id: str) -> Overrides:
        return self._table.get(group_id)

    def settings_of(self, group_id: str) -> Settings:
        """Return the effective settings of a group."""
        return self._by_group.get(group_id, self._settings)

    def watch(self, call: Callable[[str], None]) -> None:
        """Call `call` with the group after each change of its settings."""
        self._watchers.append(call)

    async def alter(
        self, group_id: str, change: Callable[[Overrides], Overrides], *, validate_only: bool
    ) -> None:
        """Replace the configs of a group with the result of `change`. Raises KafkaError."""
        if not self.overrides(group_id) and len(self._table) >= MAX_GROUPS:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{MAX_GROUPS} groups have configs, the maximum; delete some",
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
        for call in self._watchers:
            call(group_id)

    def _check(self, overrides: Overrides) -> None:
        """Refuse invalid configs with Kafka's message (GroupConfig.validate).

        Raises KafkaError(INVALID_CONFIG).
        """
        for name in overrides:
            if name not in DEFINITIONS:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {name}")
        values = {name: DEFINITIONS[name].read(text) for name, text in overrides.items()}
        for name, value in values.items():
            least, most = BOUNDS[name]
            kind, _, rest = name.partition(".")
            # The gateway's own setting is always allowed.
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
