"""Keeps the rows of a table in memory: loads them at the start, then applies later changes.

The controller writes the tables of the whole cluster. The other gateways apply its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from gateway import logs
from storage.log import StateTable

_log = logs.get_logger(__name__)

Rows = Mapping[bytes, bytes | None]


async def load_and_follow(
    table: StateTable,
    name: str,
    apply: Callable[[bytes, bytes | None], None],
    changed: Callable[[], None] = lambda: None,
) -> None:
    """Call `apply(key, row)` for each row, and later for each changed row (None: deleted).

    `changed` is called after each set of later changes. `name` is the table's name in log messages.
    If `apply` raises for a later row, the row is logged and ignored.

    Raises StorageError, and what `apply` raises for a row that is loaded at the start.
    """
    table.watch(partial(_apply_changes, name, apply, changed))
    for key, row in await table.items():
        apply(key, row)


def _apply_changes(
    name: str,
    apply: Callable[[bytes, bytes | None], None],
    changed: Callable[[], None],
    rows: Rows,
) -> None:
    for key, row in rows.items():
        try:
            apply(key, row)
        except Exception as failure:  # noqa: BLE001 - the row was written by another version
            # Neither key nor message: rows hold credentials.
            _log.error(
                "row written by another gateway ignored: it cannot be read",
                table=name,
                error=type(failure).__name__,
            )
    try:
        changed()
    except Exception as failure:  # noqa: BLE001 - the table has other watchers
        _log.bug("rows of another gateway could not be put in force", failure, table=name)
