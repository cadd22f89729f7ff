"""A state table on a compacted topic: one keyed message per row, one entry per burst of puts."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping

from twisted.internet.defer import DeferredLock

from storage.bridge import Reactor
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import (
    END_KEY,
    MAX_KEY_BYTES,
    MAX_MESSAGE_OVERHEAD,
    table_topic,
)
from storage.pulsar.tables.table_compaction import TableCompactor
from storage.pulsar.tables.table_loader import TopicSpace, load
from storage.pulsar.tables.table_writer import TableWriter, failed


class PulsarTable:
    """A `StateTable`. Open it before use, and close it before the client.

    `on_fenced` is called once, with the reason, when a put shows that another process has taken the
    table.
    """

    def __init__(
        self,
        client: PulsarClient,
        admin: PulsarAdmin,
        settings: PulsarSettings,
        reactor: Reactor,
        name: str,
        on_fenced: Callable[[str], None] = lambda reason: None,
        *,
        max_key_bytes: int = MAX_KEY_BYTES,
    ) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._topic = table_topic(settings, name)
        self._compactor = TableCompactor(admin, settings, reactor, self._topic)
        self._writer = TableWriter(
            client, settings, reactor, self._topic, self._compactor.add_written, on_fenced
        )
        self._max_key_bytes = max_key_bytes
        self._loading = DeferredLock()
        self._space: TopicSpace | None = None
        """The topic's space when the table was opened, until the first `items`."""

    async def open(self) -> None:
        """Create the topic if it is missing, and fence its writer. Raises StorageFailed."""
        self._space = await self._compactor.prepare()
        await self._writer.open()
        self._compactor.start()

    async def close(self) -> None:
        """Write queued rows; later puts fail with LogClosed."""
        self._compactor.stop()
        await self._writer.close()

    async def items(self) -> list[tuple[bytes, bytes]]:
        """All rows in key order, read from Pulsar and not cached.

        Raises StorageFailed, Fenced, LogClosed. Writes a message first, so it succeeds only if a
        put would.
        """
        async with self._loading:
            end = os.urandom(16)
            await self._writer.send({END_KEY: end}, MAX_MESSAGE_OVERHEAD)
            space, self._space = self._space, None
            rows = await load(self._client, self._admin, self._topic, end, space)
        return sorted(rows.items())

    def watch(self, on_change: Callable[[Mapping[bytes, bytes | None]], None]) -> None:
        """No effect: one process writes the table."""

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """`StateTable.put`.

        Rows of a put that fails with StorageFailed may still be stored, before any later put. The
        same holds for Fenced; then another process writes this table, and all later puts fail.
        """
        if not all(1 <= len(key) <= self._max_key_bytes for key in rows):
            return failed(lambda: ValueError(f"a key has 1 to {self._max_key_bytes} bytes"))
        return self._writer.put(rows)
