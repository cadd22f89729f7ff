"""State tables on a real broker, opened as by separate processes, and changes to their topics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pulsar as client_library
from twisted.internet import reactor, task

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.row_messages import table_topic
from storage.pulsar.tables.table import PulsarTable
from storage.pulsar.topics.pulsar_names import path_of
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant

T = TypeVar("T")

#: A compaction takes 0.5 s, or 2 s on a busy machine. If its messages do not arrive, it fails after
#: 30 s (phase one) or never.
PATIENCE_SECONDS = 60.0
#: Attempts of a compaction. It fails if the broker hangs for 30 s meanwhile, because the broker's
#: own requests time out.
ATTEMPTS = 3


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, retried while Pulsar exceeds the timeouts in the store's settings."""
    while True:
        try:
            return await call()
        except StorageFailed:
            await task.deferLater(reactor, 0.1)


class BrokerTables:
    """The tables of one namespace, closed together."""

    def __init__(self, tenant: Tenant, settings: PulsarSettings) -> None:
        self.tenant = tenant
        self.settings = settings
        self._opened: list[tuple[PulsarTable, PulsarAdmin, PulsarClient]] = []

    async def open(
        self,
        name: str = "rows",
        *,
        settings: PulsarSettings | None = None,
        client: PulsarClient | None = None,
    ) -> PulsarTable:
        """Open the table as another process would."""
        settings = settings or self.settings
        client = client or PulsarClient(settings, reactor)
        admin = PulsarAdmin(settings, reactor)
        await client.open()
        table = PulsarTable(client, admin, settings, reactor, name)
        self._opened.append((table, admin, client))
        await table.open()
        return table

    async def rows(self, name: str = "rows") -> list[tuple[bytes, bytes]]:
        """The rows that the next process would load."""
        return await (await self.open(name)).items()

    def close(self) -> None:
        for table, admin, client in self._opened:
            settle(table.close())
            settle(admin.close())
            settle(client.close())

    def admin(self, method: str, what: str = "", body: object = None, name: str = "rows") -> Any:
        """Call the admin API for the table's topic. Blocking."""
        return self.tenant.admin(
            method, path_of(table_topic(self.settings, name)).lstrip("/") + what, body
        )

    def compact(self, name: str = "rows") -> None:
        """Start a compaction and wait for it; retry if it fails, as the gateway does."""
        self.admin("PUT", "/compaction", name=name)
        self.until_compacted(name, attempts=ATTEMPTS)

    def until_compacted(self, name: str = "rows", *, attempts: int = 1) -> None:
        """Wait for the compaction; AssertionError has its status if it fails or takes too long."""
        began = time.monotonic()
        said = []
        while (found := self.admin("GET", "/compaction", name=name))["status"] != "SUCCESS":
            took = time.monotonic() - began
            if found["status"] != "RUNNING":
                # Pulsar does not retry by itself.
                said.append(f"after {took:.1f} s: {found}")
                assert found["status"] == "ERROR", said
                assert len(said) < attempts, said
                self.admin("PUT", "/compaction", name=name)
            assert took < PATIENCE_SECONDS, [*said, f"after {took:.1f} s: {found}"]
            time.sleep(0.02)

    def move(self, name: str = "rows") -> None:
        """Unload the topic as if it moved to another broker: state is lost, a new ledger begins."""
        self.admin("PUT", "/unload", name=name)

    def trim(self) -> int:
        """Trim the topic; returns its bytes afterwards, including the compacted ledger."""
        self.admin("POST", "/trim")
        space = self.admin("GET", "/internalStats")
        return int(space["totalSize"]) + max(int(space["compactedLedger"]["size"]), 0)

    def send(self, *messages: tuple[str | None, bytes]) -> None:
        """Send messages (key and payload) to the topic as another writer."""
        client = client_library.Client(
            self.settings.service_url,
            logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error),
        )
        producer = client.create_producer(table_topic(self.settings, "rows"))
        for key, payload in messages:
            producer.send(payload, partition_key=key)
        client.close()

    def places(self) -> dict[str | None, tuple[int, int]]:
        """Ledger and entry of the last message of each key, ignoring compaction."""
        client = client_library.Client(
            self.settings.service_url,
            logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error),
        )
        reader = client.create_reader(
            table_topic(self.settings, "rows"), client_library.MessageId.earliest
        )
        found = {}
        while reader.has_message_available():
            message = reader.read_next()
            found[message.partition_key()] = (
                message.message_id().ledger_id(),
                message.message_id().entry_id(),
            )
        client.close()
        return found
