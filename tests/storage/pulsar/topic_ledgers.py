"""A compacted topic in a store on a real broker; tests choose where its ledgers end."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor, task

from storage.log import Entry, PartitionLog
from storage.pulsar.compaction.trim import CURSOR
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.store import PulsarStore
from storage.pulsar.topics.topic_listing import LOWERED, RETENTION
from tests.storage.entries import sized, topic
from tests.storage.open_shards import open_with_shards
from tests.testkit.tenant import Tenant

COMPACT = {"cleanup.policy": "compact"}
SIZE = 10_000


class CompactedTopic:
    """Uses the topic `orders`."""

    store: PulsarStore

    def __init__(self, tenant: Tenant, settings: PulsarSettings) -> None:
        self.tenant = tenant
        self.settings = settings
        self.path = f"persistent/{settings.tenant}/{settings.namespace}/orders"

    async def make(self, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        await self.open()
        await self.store.create_topic(topic(partitions=partitions, configs=configs or COMPACT))

    async def open(self) -> None:
        self.store = PulsarStore(self.settings, reactor=reactor)
        await open_with_shards(self.store)

    async def restart(self) -> None:
        await self.store.close()
        await self.open()

    async def log(self, partition: int = 0) -> PartitionLog:
        return await self.store.log("orders", partition)

    async def fill(self, ledgers: int = 4, partition: int = 0) -> list[Entry]:
        """Append ten entries per ledger; the timestamp of an entry is its offset."""
        begin = (await self.log(partition)).end_offset
        entries = [sized(begin + n, SIZE, time=begin + n) for n in range(10 * ledgers)]
        for n, entry in enumerate(entries, 1):
            await (await self.log(partition)).append([entry])
            if n % 10 == 0:
                self.roll(partition)
        return entries

    def roll(self, partition: int = 0) -> None:
        """Begin a new ledger."""
        self.tenant.admin("PUT", f"{self.path}-partition-{partition}/unload")

    def stats(self, partition: int = 0) -> Any:
        return self.tenant.admin("GET", f"{self.path}-partition-{partition}/internalStats")

    def size(self, partition: int = 0) -> int:
        """Bytes of the partition's own topic in Pulsar."""
        return int(self.stats(partition)["totalSize"])

    async def wait_until_settled(self) -> None:
        """Wait until nothing temporary is left of a trim."""
        while self.temporary_settings():
            await self.pause()

    async def pause(self) -> None:
        """Pause between two checks."""
        await task.deferLater(reactor, 0.1)

    def temporary_settings(self) -> list[str]:
        """The temporary settings of a trim that the topic still has."""
        found = [
            name
            for name in self.tenant.admin("GET", f"{self.path}/subscriptions")
            if name == CURSOR
        ]
        found += self.tenant.admin("GET", f"{self.path}/backlogQuotaMap")
        time_to_live = self.tenant.admin("GET", f"{self.path}/messageTTL")
        properties = self.tenant.admin("GET", f"{self.path}/properties")
        return (
            found
            + [f"time to live {time_to_live}"] * (time_to_live not in ("", None))
            + [LOWERED] * (LOWERED in properties[RETENTION])
        )

    def side_topics(self) -> list[str]:
        topics = self.tenant.admin(
            "GET", f"persistent/{self.settings.metadata_tenant}/{self.settings.metadata_namespace}"
        )
        return [name for name in topics if ".compacted." in name]

    def retention(self) -> tuple[int, int]:
        """Minutes and MB."""
        found = self.tenant.admin("GET", f"{self.path}/retention")
        return found["retentionTimeInMinutes"], found["retentionSizeInMB"]
