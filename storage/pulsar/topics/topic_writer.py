"""Keeps the known topics as the metadata log says, and writes what differs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from storage.log import StorageError, StorageFailed
from storage.pulsar.topics.topic_listing import PulsarTopic
from storage.pulsar.topics.topic_rows import (
    ReplayedRows,
    Rows,
    decode_topic,
    encode_topic,
    topic_key,
)
from storage.pulsar.topics.topic_view import KnownTopics

NAMES_LOGGED = 3
"""Names of topics in an error."""

log = logging.getLogger(__name__)


class TopicWriter:
    """Applies replayed rows to `view`, in every gateway; the controller also writes rows.

    `unwritten` has the names of topics whose rows could not be written. The next refresh reads them
    again.
    """

    def __init__(self, view: KnownTopics, rows: ReplayedRows) -> None:
        self.unwritten: set[str] = set()
        self._view = view
        self._rows = rows
        self._own_changes: set[str] = set()
        self._names_by_key: dict[bytes, str] = {}
        self._replay(rows.rows)
        rows.watch(self._replay)

    async def write(self, changes: Mapping[str, PulsarTopic | None]) -> None:
        """Write rows (None: deleted); `view` has them when this returns.

        Raises StorageFailed. The rows are then written by the next refresh, if Pulsar has the
        changes.
        """
        try:
            await self._rows.put(
                {
                    topic_key(name): None if found is None else encode_topic(found)
                    for name, found in changes.items()
                }
            )
        except StorageError as failure:
            self.unwritten.update(changes)
            names = ", ".join(sorted(changes)[:NAMES_LOGGED])
            others = " and others" if len(changes) > NAMES_LOGGED else ""
            raise StorageFailed(
                f"metadata of {names}{others} could not be written to the log of the cluster; what "
                f"was changed in Pulsar appears with the next refresh: {failure}"
            ) from failure

    async def write_own(self, name: str, found: PulsarTopic | None) -> None:
        """As `write`, without calling the watchers of this process. Requires the topic's lock."""
        self._own_changes.add(name)
        try:
            await self.write({name: found})
        finally:
            self._own_changes.discard(name)

    def _replay(self, rows: Rows) -> None:
        """Apply replayed rows, and call the watchers unless all are own changes."""
        seen: dict[str, PulsarTopic | None] = {}
        for key, row in rows.items():
            try:
                found = None if row is None else decode_topic(row)
            except ValueError as error:
                log.error("row of a topic ignored, it cannot be read key=%r: %s", key, error)
                continue
            if found is None:
                name = self._names_by_key.pop(key, None)
            else:
                name = self._names_by_key[key] = found.topic.name
            if name is not None:
                seen[name] = found
        deleted = [
            before.topic
            for name, found in seen.items()
            if found is None
            and (before := self._view.by_name.get(name)) is not None
            and before.is_being_deleted
            and name not in self._own_changes
        ]
        if self._view.merge(seen) - self._own_changes:
            self._view.notify()
        for topic in deleted:
            self._view.notify_deleted(topic)
