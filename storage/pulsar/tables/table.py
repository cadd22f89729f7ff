"""A state table on a compacted topic: one keyed message per row, one entry per burst of puts."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Mapping

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
from storage.pulsar.tables.table_loader import load
from storage.pulsar.tables.table_writer import TableWriter, failed


class PulsarTable:
    """A `StateTable`. To be opened before it is used, and closed before the session is."""

    def __init__(
        self,
        session: PulsarClient,
        admin: PulsarAdmin,
        settings: PulsarSettings,
        reactor: Reactor,
        name: str,
    ) -> None:
        self._session = session
        self._admin = admin
        self._settings = settings
        self._topic = table_topic(settings, name)
        self._compactor = TableCompactor(admin, settings, reactor, self._topic)
        self._writer = TableWriter(
            session, settings, reactor, self._topic, self._compactor.add_written
        )
        self._loading = DeferredLock()

    async def open(self) -> None:
        """Make the topic where it is missing, and take the right to write from whoever had it. Raises StorageFailed."""
        await self._compactor.prepare()
        await self._writer.open()
        self._compactor.start()

    async def close(self) -> None:
        """Write what is queued; later puts fail with LogClosed."""
        self._compactor.stop()
        await self._writer.close()

    async def items(self) -> list[tuple[bytes, bytes]]:
        """Every row, in key order, read from Pulsar; nothing is kept here. Raises StorageFailed, Fenced, LogClosed.

        A message is written first, so this succeeds only where a put would.
        """
        await self._loading.acquire()
        try:
            end = os.urandom(16)
            await self._writer.send({END_KEY: end}, MAX_MESSAGE_OVERHEAD)
            rows = await load(self._session, self._admin, self._topic, end)
        finally:
            self._loading.release()
        return sorted(rows.items())

    def put(self, rows: Mapping[bytes, bytes | None]) -> Awaitable[None]:
        """As `StateTable.put`. What fails with StorageFailed may become durable all the same, before anything that is put later; so may what fails with
        Fenced, and then every later put fails with it, too: another process writes this table.
        """
        if not all(1 <= len(key) <= MAX_KEY_BYTES for key in rows):
            return failed(lambda: ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes"))
        return self._writer.put(rows)
