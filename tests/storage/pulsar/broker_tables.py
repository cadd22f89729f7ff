"""Tables on a broker, each as a process of its own would have it, and what a test does to their topics behind their back."""

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
from tests.contract.waiting import settle
from tests.peers.tenant import Tenant

T = TypeVar("T")

#: A compaction takes half a second, two on cores that six others use; one whose messages do not come gives up after 30 (its phase one) or never.
PATIENCE_SECONDS = 60.0
#: Of a compaction: in a broker that stands still for 30 s in the midst of one, requests of its own time out, and the compaction fails.
ATTEMPTS = 3


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, which is retried while Pulsar exceeds the timeouts of the store's settings."""
    while True:
        try:
            return await call()
        except StorageFailed:
            await task.deferLater(reactor, 0.1)


class BrokerTables:
    """The tables of one namespace; closed together."""

    def __init__(self, tenant: Tenant, settings: PulsarSettings) -> None:
        self.tenant = tenant
        self.settings = settings
        self._opened: list[tuple[PulsarTable, PulsarAdmin, PulsarClient]] = []

    async def open(
        self,
        name: str = "rows",
        *,
        settings: PulsarSettings | None = None,
        session: PulsarClient | None = None,
    ) -> PulsarTable:
        """The table of that name, opened as by another process."""
        settings = settings or self.settings
        session = session or PulsarClient(settings, reactor)
        admin = PulsarAdmin(settings, reactor)
        await session.open()
        table = PulsarTable(session, admin, settings, reactor, name)
        self._opened.append((table, admin, session))
        await table.open()
        return table

    async def rows(self, name: str = "rows") -> list[tuple[bytes, bytes]]:
        """What the next process would find."""
        return await (await self.open(name)).items()

    def close(self) -> None:
        for table, admin, session in self._opened:
            settle(table.close())
            settle(admin.close())
            settle(session.close())

    def admin(self, method: str, what: str = "", body: object = None, name: str = "rows") -> Any:
        """A call about the table's topic; blocks."""
        return self.tenant.admin(
            method, path_of(table_topic(self.settings, name)).lstrip("/") + what, body
        )

    def compact(self, name: str = "rows") -> None:
        """Ask for a compaction and wait until it is done; where it fails it is asked for again, as by the gateway."""
        self.admin("PUT", "/compaction", name=name)
        self.until_compacted(name, attempts=ATTEMPTS)

    def until_compacted(self, name: str = "rows", *, attempts: int = 1) -> None:
        """Wait for the compaction that was asked for; where it fails, is lost or takes too long, the broker's word for that is in the AssertionError."""
        began = time.monotonic()
        said = []
        while (found := self.admin("GET", "/compaction", name=name))["status"] != "SUCCESS":
            took = time.monotonic() - began
            if found["status"] != "RUNNING":
                # Pulsar does not try again by itself.
                said.append(f"after {took:.1f} s: {found}")
                assert found["status"] == "ERROR", said
                assert len(said) < attempts, said
                self.admin("PUT", "/compaction", name=name)
            assert took < PATIENCE_SECONDS, [*said, f"after {took:.1f} s: {found}"]
            time.sleep(0.02)

    def move(self, name: str = "rows") -> None:
        """As when the topic moves to another broker: what the broker knew of it is gone, and a new ledger begins."""
        self.admin("PUT", "/unload", name=name)

    def trim(self) -> int:
        """Have deleted what nothing keeps; the bytes that the topic takes then, what compaction left included."""
        self.admin("POST", "/trim")
        space = self.admin("GET", "/internalStats")
        return int(space["totalSize"]) + max(int(space["compactedLedger"]["size"]), 0)

    def send(self, *messages: tuple[str | None, bytes]) -> None:
        """Messages that somebody else puts into the topic, by key and payload."""
        client = client_library.Client(
            self.settings.service_url,
            logger=client_library.ConsoleLogger(client_library.LoggerLevel.Error),
        )
        producer = client.create_producer(table_topic(self.settings, "rows"))
        for key, payload in messages:
            producer.send(payload, partition_key=key)
        client.close()

    def places(self) -> dict[str | None, tuple[int, int]]:
        """Where each key was written last: ledger and entry, as they are before any compaction."""
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
