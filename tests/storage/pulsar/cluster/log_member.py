"""A process for election tests: writes the metadata log while it is the writer.

`python -m tests.storage.pulsar.cluster.log_member NODE SERVICE_URL ADMIN_URL TENANT NAMESPACE`.
Claims its node id, then tries to become the writer several times per second. As the writer it puts
a counter as fast as puts are acknowledged. Prints, with the time:

    ready TIME
    writer TIME REVISION
    put TIME REVISION COUNTER
    refused TIME REASON
    lost TIME REASON

`force` on standard input makes the next attempt replace the writer.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from storage.cluster import OtherController, Rows
from storage.log import Fenced, StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.cluster.medium import PulsarClusterMedium
from storage.pulsar.settings import PulsarSettings

RETRY_SECONDS = 0.1

forced: list[bool] = []


def say(*words: object) -> None:
    print(words[0], f"{time.time():.4f}", *words[1:], flush=True)


async def run(node: int, settings: PulsarSettings) -> None:
    client, admin = PulsarClient(settings, reactor), PulsarAdmin(settings, reactor)
    await client.open()
    medium = PulsarClusterMedium(client, client, admin, settings, reactor)
    log = medium.log
    log.when_lost(lambda reason: say("lost", reason))
    await log.open()
    await medium.presence.claim(node, f"node {node}")
    say("ready")
    while True:
        force = bool(forced)
        forced.clear()
        try:
            await log.acquire(force)
        except (OtherController, Fenced, StorageFailed):
            await deferLater(reactor, RETRY_SECONDS)
            continue
        say("writer", log.revision)
        await write(medium)


async def write(medium: PulsarClusterMedium) -> None:
    """Put the counter until the log is lost.

    An acknowledgement may be handled after later bursts of the next writer were replayed, so the
    revision is noted when the counter is replayed.
    """
    log = medium.log
    revisions: dict[bytes | None, int] = {}

    def note(rows: Rows) -> None:
        revisions[rows.get(b"counter")] = log.revision

    log.watch(note)
    while True:
        counter = int(log.rows.get(b"counter", b"0")) + 1
        try:
            await log.put({b"counter": b"%d" % counter, b"put %d" % counter: b"x"})
        except Fenced as error:
            say("refused", error)
            return
        except StorageFailed as error:
            say("unknown", error)
            continue
        say("put", revisions[b"%d" % counter], counter)
        await deferLater(reactor, 0.005)


def listen() -> None:
    while sys.stdin.readline():
        forced.append(True)


if __name__ == "__main__":
    service_url, admin_url, tenant, namespace = sys.argv[2:]
    chosen = PulsarSettings(
        service_url,
        admin_url,
        metadata_tenant=tenant,
        metadata_namespace=namespace,
        node=f"node {sys.argv[1]}",
    )
    logging.basicConfig(format=f"%(asctime)s node {sys.argv[1]}: %(message)s")
    threading.Thread(target=listen, daemon=True).start()
    Deferred.fromCoroutine(run(int(sys.argv[1]), chosen)).addErrback(
        lambda failure: (failure.printTraceback(sys.stderr), os._exit(1))
    )
    reactor.run()
