"""Persistent config overrides: one table row per resource, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from gateway.cluster.replicated_rows import load_and_follow
from gateway.coroutines import SerialChanges
from gateway.protocol.errors import KafkaError, storage_error
from storage.log import StateTable, StorageError

Overrides = Mapping[str, str]

_Row = dict[str, str]


class ConfigTable:
    """A table of overrides; `check` raises KafkaError for invalid ones.

    `changed` is called with the resource after another gateway has changed its overrides. `name` is
    that of the table.
    """

    def __init__(
        self,
        table: StateTable,
        name: str,
        check: Callable[[Overrides], None],
        changed: Callable[[str], None],
    ) -> None:
        self._table = table
        self._name = name
        self._changed = changed
        self._changed_keys: set[str] = set()
        self._check = check
        self._rows: dict[str, Overrides] = {}
        self._changes = SerialChanges()

    async def open(self) -> None:
        """Load the table. Raises StorageError.

        Overrides written by another version that are invalid in this one are ignored.
        """
        await load_and_follow(self._table, self._name, self._apply_row, self._report_changes)
        self._changed_keys.clear()

    def _apply_row(self, key: bytes, row: bytes | None) -> None:
        overrides = {} if row is None else msgspec.json.decode(row, type=_Row)
        self._set(
            key.decode(),
            {name: text for name, text in overrides.items() if self._is_valid(name, text)},
        )
        self._changed_keys.add(key.decode())

    def _report_changes(self) -> None:
        changed, self._changed_keys = self._changed_keys, set()
        for key in sorted(changed):
            self._changed(key)

    def _set(self, key: str, overrides: Overrides) -> None:
        if overrides:
            self._rows[key] = overrides
        else:
            self._rows.pop(key, None)

    def _is_valid(self, name: str, text: str) -> bool:
        try:
            self._check({name: text})
        except KafkaError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: str) -> Overrides:
        return self._rows.get(key, {})

    async def alter(
        self, key: str, change: Callable[[Overrides], Overrides], *, validate_only: bool
    ) -> None:
        """Replace a resource's overrides with the result of `change`; changes are serialized.

        Raises KafkaError.
        """
        if validate_only:
            self._check(change(self.get(key)))
            return
        await self._changes.make(partial(self._alter, key, change))

    async def _alter(self, key: str, change: Callable[[Overrides], Overrides]) -> None:
        overrides = change(self.get(key))
        self._check(overrides)
        try:
            await self._table.put(
                {key.encode(): msgspec.json.encode(overrides) if overrides else None}
            )
        except StorageError as failure:
            raise storage_error(failure) from failure
        self._set(key, overrides)
