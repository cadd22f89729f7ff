"""What one gateway shares with others on Pulsar."""

from __future__ import annotations

from storage.bridge import Reactor
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.inbox import PulsarInbox
from storage.pulsar.cluster.metadata_log import PulsarMetadataLog
from storage.pulsar.cluster.presence import PulsarPresence
from storage.pulsar.settings import PulsarSettings


class PulsarClusterMedium:
    """A `ClusterMedium`, with the client and admin API of the store."""

    def __init__(
        self, client: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings, reactor: Reactor
    ) -> None:
        self.log = PulsarMetadataLog(client, admin, settings, reactor)
        self.presence = PulsarPresence(client, admin, settings, reactor)
        self.inbox = PulsarInbox(client, admin, settings, reactor)
