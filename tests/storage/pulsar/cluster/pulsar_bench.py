"""Processes of one cluster on a real broker, each with a separate client in this process."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from twisted.internet import reactor

from storage.cluster import ClusterMedium
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.medium import PulsarClusterMedium
from storage.pulsar.settings import PulsarSettings
from tests.testkit.settle import settle

JOIN_SECONDS = 60.0


class PulsarClusterBench:
    """A `ClusterBench`. `kill` closes the connections of a process."""

    def __init__(self, settings: PulsarSettings) -> None:
        self.settings = settings
        self._opened: list[tuple[PulsarClusterMedium, PulsarAdmin, PulsarClient]] = []

    async def process(self, name: str, **others: Any) -> PulsarClusterMedium:
        """A process with an open metadata log; `others` are its settings."""
        settings = replace(self.settings, node=name, **others)
        client, admin = PulsarClient(settings, reactor), PulsarAdmin(settings, reactor)
        await client.open()
        medium = PulsarClusterMedium(client, client, admin, settings, reactor)
        self._opened.append((medium, admin, client))
        await medium.log.open()
        return medium

    def kill(self, process: ClusterMedium) -> None:
        (client,) = (client for medium, _, client in self._opened if medium is process)
        client._open_client().shutdown()

    async def close_all(self) -> None:
        """End all processes, within a test; `close` is for fixtures."""
        for medium, admin, client in self._opened:
            await medium.presence.release()
            await medium.inbox.close()
            await medium.log.close()
            await admin.close()
            await client.close()
        self._opened.clear()

    def close(self) -> None:
        settle(self.close_all())
        # A thread that still calls the client library when the interpreter ends aborts the process.
        for thread in threading.enumerate():
            if thread.name in ("pulsar-metadata", "pulsar-inbox"):
                thread.join(JOIN_SECONDS)
