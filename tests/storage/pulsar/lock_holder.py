"""A process that holds the store's lock.

`python -m tests.storage.pulsar.lock_holder NODE SERVICE_URL ADMIN_URL TENANT NAMESPACE`. Prints
`taken`; when the lock is lost or cannot be taken, prints the reason and exits.
"""

from __future__ import annotations

import sys

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.lock import StoreLock
from storage.pulsar.settings import PulsarSettings


def lost(reason: str) -> None:
    print(reason, flush=True)
    reactor.stop()


async def hold(node: str, settings: PulsarSettings) -> None:
    client = PulsarClient(settings, reactor)
    await client.open()
    lock = StoreLock(client, PulsarAdmin(settings, reactor), settings, reactor)
    lock.when_lost(lost)
    await lock.take(node, False)
    print("taken", flush=True)


if __name__ == "__main__":
    service_url, admin_url, tenant, namespace = sys.argv[2:]
    chosen = PulsarSettings(
        service_url,
        admin_url,
        metadata_tenant=tenant,
        metadata_namespace=namespace,
        lock_beat_seconds=0.2,
    )
    Deferred.fromCoroutine(hold(sys.argv[1], chosen)).addErrback(
        lambda failure: lost(failure.getErrorMessage())
    )
    reactor.run()
