"""The groups of a store, when the gateway starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from gateway import logs
from gateway.groups.classic import classic_rows
from gateway.groups.classic.classic_group import ClassicGroup
from gateway.groups.consumer import consumer_rows
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.topology import Topology
from gateway.settings.model import Settings
from storage.log import StateTable, StorageError

_log = logs.get_logger(__name__)

#: Of the rows of consumer groups: their keys and, by number, their values.
_Rows = dict[str, list[tuple[bytes, int, bytes]]]


async def load_groups(
    table: StateTable,
    topology: Topology,
    settings: Settings,
    now: float,
    settings_of: Callable[[str], Settings],
) -> list[ClassicGroup | ConsumerGroup]:
    """`settings_of` gives those of a consumer group. All that can be read; of what cannot the log tells, and its members join anew. Raises StorageError."""
    groups: list[ClassicGroup | ConsumerGroup] = []
    parts: _Rows = defaultdict(list)
    for key, value in await table.items():
        try:
            if consumer_rows.is_consumer_key(key):
                group_id, number = consumer_rows.parse_key(key)
                parts[group_id].append((key, number, value))
            else:
                groups.append(
                    ClassicGroup.restored(
                        classic_rows.parse_key(key), classic_rows.decode(value), settings, now
                    )
                )
        except ValueError as failure:
            _log.error(
                "group unreadable: its members join anew", key=key.hex(), reason=str(failure)
            )
    unreadable: list[bytes] = []
    for group_id, found in parts.items():
        try:
            stored = consumer_rows.decode_group((number, value) for _, number, value in found)
            groups.append(
                ConsumerGroup.restored(group_id, stored, topology, settings_of(group_id), now)
            )
        except ValueError as failure:
            _log.error(
                "group unreadable: its members join anew", group=group_id, reason=str(failure)
            )
            unreadable += [key for key, _, _ in found]
    await _clear(table, unreadable)
    return groups


async def _clear(table: StateTable, keys: list[bytes]) -> None:
    """Rows of a group that has begun anew must not be found beside its new ones."""
    try:
        if keys:
            await table.put(dict.fromkeys(keys))
    except StorageError as failure:
        _log.warning(
            "rows of unreadable groups are still stored", rows=len(keys), reason=str(failure)
        )
