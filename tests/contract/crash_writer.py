"""The process that a crash test kills: appends to every partition and prints each acknowledgement.

`python -m tests.contract.crash_writer SPEC`, with SPEC naming a bench's medium. Lines: `log P BASE
END` for an append of the entries from BASE to END (exclusive), `row N` for a put to the table
`rows`: it adds two rows and sets the row `last`. A line is printed after the store acknowledged.
"""

from __future__ import annotations

import os
import sys

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.log import PartitionLog, StateTable, Store
from tests.contract.benches import store_from
from tests.storage.entries import sized, topic
from tests.storage.open_shards import open_with_shards

PARTITIONS = 3
IN_FLIGHT = 4


async def append_for_ever(store: Store, partition: int, lane: int) -> None:
    log: PartitionLog = await store.log("orders", partition)
    while True:
        base = log.next_offset
        entries = [sized(base, 20 + 700 * lane), sized(base + 1, 9000, records=3)]
        await log.append(entries)
        print(f"log {partition} {base} {base + 4}", flush=True)


async def put_for_ever(table: StateTable) -> None:
    row = len(await table.items()) // 2
    while True:
        key = b"%012d" % row
        await table.put({key + b"a": b"1", key + b"b": b"2", b"last": b"%d" % row})
        print(f"row {row}", flush=True)
        row += 1


async def write(store: Store) -> None:
    await open_with_shards(store)
    if "orders" not in store.topics:
        await store.create_topic(topic("orders", PARTITIONS))
    for lane in range(PARTITIONS * IN_FLIGHT):
        Deferred.fromCoroutine(append_for_ever(store, lane % PARTITIONS, lane))
    await put_for_ever(await store.table("rows"))


if __name__ == "__main__":
    Deferred.fromCoroutine(write(store_from(sys.argv[1]))).addErrback(
        lambda failure: (failure.printTraceback(sys.stderr), os._exit(1))
    )
    reactor.run()
