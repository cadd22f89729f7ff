"""Keeps the known topics as the metadata log says, and writes what differs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from storage.log import StorageError, StorageFailed, Topic
from storage.pulsar.topics.topic_listing import PulsarTopic
from storage.pulsar.topics.topic_rows import (
    DeletedTopic,
    ReplayedRows,
    Rows,
    decode_deletion,
    decode_topic,
    deletion_key,
    encode_deletion,
    encode_topic,
    is_deletion,
    topic_key,
)
from storage.pulsar.topics.topic_view import KnownTopics

NAMES_LOGGED = 3
"""Names of topics in an error."""

MAX_DELETED = 5_000
"""Deleted topics in the log, each of some hundred bytes; the oldest ones are dropped.

They are needed until every shard has been open since the deletion.
"""

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
                    **{
                        topic_key(name): None if found is None else encode_topic(found)
                        for name, found in changes.items()
                    },
                    **self._deletions(changes),
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

    def _deletions(self, changes: Mapping[str, PulsarTopic | None]) -> dict[bytes, bytes | None]:
        """The rows about deletions that change with these rows of topics.

        A topic that was being deleted and is gone, or has another id, cannot return. The id of a
        topic that another program created follows from its name, so it can be used again.
        """
        deleted = self._view.deleted
        rows: dict[bytes, bytes | None] = {}
        number = max(deleted.values(), default=0)
        for name, found in changes.items():
            topic_id = None if found is None else found.topic.topic_id
            if topic_id in deleted:
                rows[deletion_key(topic_id)] = None
            before = self._view.by_name.get(name)
            if before is not None and before.is_being_deleted:
                gone = before.topic
                if gone.topic_id != topic_id:
                    number += 1
                    rows[deletion_key(gone.topic_id)] = encode_deletion(
                        DeletedTopic(name, gone.topic_id, gone.partitions, number)
                    )
        excess = len(deleted) + sum(row is not None for row in rows.values()) - MAX_DELETED
        oldest = sorted(deleted, key=deleted.__getitem__)[:excess] if excess > 0 else []
        return {**dict.fromkeys(map(deletion_key, oldest)), **rows}

    def _replay(self, rows: Rows) -> None:
        """Apply replayed rows, and call the watchers unless all are own changes."""
        seen: dict[str, PulsarTopic | None] = {}
        deleted: list[Topic] = []
        for key, row in rows.items():
            try:
                if is_deletion(key):
                    deleted += self._replay_deletion(key, row)
                    continue
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
        if self._view.merge(seen) - self._own_changes:
            self._view.notify()
        for topic in deleted:
            if topic.name not in self._own_changes:
                self._view.notify_deleted(topic)

    def _replay_deletion(self, key: bytes, row: bytes | None) -> list[Topic]:
        """Apply a row about a deletion. Returns the topic unless its deletion is known."""
        if row is None:
            self._view.deleted.pop(key[1:], None)
            return []
        deleted = decode_deletion(row)
        is_known = deleted.topic_id in self._view.deleted
        self._view.deleted[deleted.topic_id] = deleted.number
        return [] if is_known else [Topic(deleted.name, deleted.topic_id, deleted.partitions, {})]
