"""Loads the stored groups at startup."""

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

#: Rows of each consumer group: key, row number and value.
_Rows = dict[str, list[tuple[bytes, int, bytes]]]


async def load_groups(
    table: StateTable,
    topology: Topology,
    settings: Settings,
    now: float,
    settings_of: Callable[[str], Settings],
) -> list[ClassicGroup | ConsumerGroup]:
    """Load all readable groups. Unreadable ones are logged and deleted; their members rejoin.

    `settings_of` returns the settings of a consumer group. Raises StorageError.
    """
    groups: list[ClassicGroup | ConsumerGroup] = []
    rows_by_group: _Rows = defaultdict(list)
    for key, value in await table.items():
        try:
            if consumer_rows.is_consumer_key(key):
                group_id, number = consumer_rows.parse_key(key)
                rows_by_group[group_id].append((key, number, value))
            else:
                groups.append(
                    ClassicGroup.restored(
                        classic_rows.parse_key(key), classic_rows.decode(value), settings, now
                    )
                )
        except ValueError as failure:
            _log.error(
                "group unreadable, its members must rejoin", key=key.hex(), reason=str(failure)
            )
    unreadable: list[bytes] = []
    for group_id, rows in rows_by_group.items():
        try:
            stored = consumer_rows.decode_group((number, value) for _, number, value in rows)
            groups.append(
                ConsumerGroup.restored(group_id, stored, topology, settings_of(group_id), now)
            )
        except ValueError as failure:
            _log.error(
                "group unreadable, its members must rejoin", group=group_id, reason=str(failure)
            )
            unreadable += [key for key, _, _ in rows]
    await _delete_rows(table, unreadable)
    return groups


async def _delete_rows(table: StateTable, keys: list[bytes]) -> None:
    """Delete rows of unreadable groups, so that they do not mix with rows of a new group."""
    try:
        if keys:
            await table.put(dict.fromkeys(keys))
    except StorageError as failure:
        _log.warning("rows of unreadable groups not deleted", rows=len(keys), reason=str(failure))
