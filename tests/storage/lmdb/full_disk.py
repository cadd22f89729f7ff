"""The process of `test_full_disk`, which limits its file size to simulate a small disk.

`python -m tests.storage.lmdb.full_disk DIRECTORY LIMIT`. It prints its observations and exits
without closing the store.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import PartitionLog, StorageFailed
from tests.storage.entries import sized, topic

ENTRY = 16_000


async def fill(log: PartitionLog) -> int:
    """Append until the disk is full; return the number of stored entries."""
    stored = 0
    while True:
        appends = [log.append([sized(log.next_offset, ENTRY)]) for _ in range(5)]
        refused = 0
        for one in appends:
            try:
                await one
                stored += 1
            except StorageFailed:
                refused += 1
        if refused:
            assert log.next_offset == log.end_offset
            return stored


async def run(directory: Path, limit: int) -> None:
    store = LmdbStore(
        directory, reactor=reactor, settings=LmdbSettings(tail_bytes=0, reserve_bytes=500_000)
    )
    await store.open()
    await store.create_topic(topic("orders", 2))
    log = await store.log("orders", 0)
    other = await store.log("orders", 1)
    await other.append([sized(0, 10)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    print("filled", await fill(log) > 100, flush=True)
    print("reads", len(await log.read(0, 1 << 30)) == log.end_offset, flush=True)
    start = await log.delete_before(log.end_offset // 2)
    again = await refill(log)
    print("goes on after a deletion", again > 10, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await log.append([sized(log.next_offset, ENTRY)])
    await (await store.table("rows")).put({b"k": b"v"})
    print("goes on with more space", flush=True)
    print("state", start, log.end_offset, log.size, flush=True)
    os._exit(0)


async def refill(log: PartitionLog) -> int:
    """Retry until an append succeeds: freeing takes several turns of the writer."""
    for _ in range(100):
        if stored := await fill(log):
            return stored
    return 0


if __name__ == "__main__":
    done = Deferred.fromCoroutine(run(Path(sys.argv[1]), int(sys.argv[2])))
    done.addErrback(lambda failure: (failure.printTraceback(sys.stderr), os._exit(1)))
    reactor.run()
