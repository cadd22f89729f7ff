"""Creates the metadata log, the presence and the inbox of one gateway on Pulsar."""

from __future__ import annotations

from storage.bridge import Reactor
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.inbox import PulsarInbox
from storage.pulsar.cluster.metadata_log import PulsarMetadataLog
from storage.pulsar.cluster.presence import PulsarPresence
from storage.pulsar.settings import PulsarSettings


class PulsarClusterMedium:
    """A `ClusterMedium`, with the client and admin API of the store.

    `log_client` is used only for the metadata log. A broker closes the connection of a producer
    that still sends after it was fenced. With a separate client, a controller that is replaced does
    not lose the connection of its partitions as well.
    """

    def __init__(
        self,
        client: PulsarClient,
        log_client: PulsarClient,
        admin: PulsarAdmin,
        settings: PulsarSettings,
        reactor: Reactor,
    ) -> None:
        self.log = PulsarMetadataLog(log_client, admin, settings, reactor)
        self.presence = PulsarPresence(client, admin, settings, reactor)
        self.inbox = PulsarInbox(client, admin, settings, reactor)
