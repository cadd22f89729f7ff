"""A process that a crash test kills: puts rows as fast as they are acknowledged.

`python -m tests.storage.pulsar.row_writer SERVICE_URL ADMIN_URL TENANT NAMESPACE LANE`. Each put
sets the ROWS rows `LANE KIND n` to its number, and deletes those of the put before last. Prints
`put KIND NUMBER` after each acknowledgement.
"""

from __future__ import annotations

import os
import sys

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table import PulsarTable

ROWS = 20
LANES = 8


async def put_for_ever(table: PulsarTable, lane: str) -> None:
    number = 0
    while True:
        rows: dict[bytes, bytes | None] = {
            b"%s %08d %02d" % (lane.encode(), number, row): b"%d" % number for row in range(ROWS)
        }
        rows |= {b"%s %08d %02d" % (lane.encode(), number - 2, row): None for row in range(ROWS)}
        await table.put(rows)
        print(f"put {lane} {number}", flush=True)
        number += 1


async def write(settings: PulsarSettings, run: str) -> None:
    client = PulsarClient(settings, reactor)
    await client.open()
    table = PulsarTable(client, PulsarAdmin(settings, reactor), settings, reactor, "rows")
    await table.open()
    await table.items()
    for lane in range(LANES):
        Deferred.fromCoroutine(put_for_ever(table, f"{run}.{lane}")).addErrback(
            lambda failure: (failure.printTraceback(sys.stderr), os._exit(1))
        )


if __name__ == "__main__":
    service_url, admin_url, tenant, namespace, run_name = sys.argv[1:]
    # Small, so that a burst takes few puts and the table is compacted while it is written.
    chosen = PulsarSettings(
        service_url,
        admin_url,
        metadata_tenant=tenant,
        metadata_namespace=namespace,
        table_burst_bytes=10_000,
        table_compaction_bytes=100_000,
        table_upkeep_seconds=0.1,
    )
    Deferred.fromCoroutine(write(chosen, run_name)).addErrback(
        lambda failure: (failure.printTraceback(sys.stderr), os._exit(1))
    )
    reactor.run()
