"""The replayed rows of the metadata log.

A burst (puts that are stored together) arrives when this process has written it, by the tail of the
log, or as part of a load. Each burst has a revision, one more than the burst before, by which a
burst that arrives twice is recognized, and so is a missing one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from storage.bridge import SharedResult
from storage.cluster import Rows
from storage.log import LogClosed

log = logging.getLogger(__name__)


class Replay:
    """Rows, their revision, and the callers that wait for a revision."""

    def __init__(self) -> None:
        self.revision = 0
        self._rows: dict[bytes, bytes] = {}
        self.rows: Mapping[bytes, bytes] = MappingProxyType(self._rows)
        self._watchers: list[Callable[[Rows], None]] = []
        self._waiting: list[tuple[int, SharedResult[None]]] = []
        self._is_closed = False

    def watch(self, call: Callable[[Rows], None]) -> None:
        self._watchers.append(call)

    def apply(self, revision: int, rows: Rows) -> bool:
        """Apply one burst, unless it was applied before. Returns False if one is missing."""
        if revision <= self.revision:
            return True
        if revision > self.revision + 1:
            return False
        self._change(revision, rows)
        return True

    def replace(self, revision: int, rows: Mapping[bytes, bytes]) -> bool:
        """Replace all rows by loaded ones. Returns False, without a change, if those are older."""
        if revision < self.revision:
            return False
        changed: dict[bytes, bytes | None] = {
            key: value for key, value in rows.items() if self._rows.get(key) != value
        }
        changed.update(dict.fromkeys(self._rows.keys() - rows.keys()))
        if changed or revision > self.revision:
            self._change(revision, changed)
        return True

    async def wait_for(self, revision: int) -> None:
        """As `MetadataLog.wait_for`."""
        if self.revision >= revision:
            return
        if self._is_closed:
            raise LogClosed("the metadata log is closed")
        reached: SharedResult[None] = SharedResult()
        self._waiting.append((revision, reached))
        await reached

    def close(self) -> None:
        """Fail pending and later calls of `wait_for` with LogClosed."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for _, reached in waiting:
            reached.fail(LogClosed("the metadata log is closed"))

    def _change(self, revision: int, changed: Rows) -> None:
        self.revision = revision
        for key, value in changed.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        for call in tuple(self._watchers):
            try:
                call(changed)
            except Exception:
                log.exception("bug: a watcher of the metadata log raised")
        due = [reached for wanted, reached in self._waiting if wanted <= self.revision]
        self._waiting = [one for one in self._waiting if one[0] > self.revision]
        for reached in due:
            reached.succeed(None)
