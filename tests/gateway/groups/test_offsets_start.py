"""How long the offsets of a large installation take to be there after a start."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.task import Clock

from gateway.config import Settings
from gateway.groups.offset_rows import Committed, Place, key_of, value_of
from gateway.groups.offsets import CommittedOffsets
from gateway.topics import Topics
from storage.lmdb import LmdbSettings, LmdbStore

GROUPS, PARTITIONS = 1_000, 100


def nothing_in_the_background(work: Coroutine[Any, Any, None]) -> None:
    raise AssertionError("no partition is opened here")


@ensureDeferred
async def test_a_hundred_thousand_offsets_are_there_in_less_than_two_seconds(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, reactor=reactor, settings=LmdbSettings())
    await store.open()
    topics = Topics(store, Settings(), Clock(), lambda: 0, nothing_in_the_background)
    await topics.open()
    live = await topics.create("orders", PARTITIONS, {})
    table = await store.table("offsets")
    row = value_of(Committed(1 << 40, 7, "consumer-host-17", 1_700_000_000_000))
    for index in range(PARTITIONS):
        await table.put({key_of(Place(f"application-{number}", live.topic.topic_id, index)): row for number in range(GROUPS)})
    await store.close()

    store = LmdbStore(tmp_path, reactor=reactor, settings=LmdbSettings())
    await store.open()
    topics = Topics(store, Settings(), Clock(), lambda: 0, nothing_in_the_background)
    await topics.open()
    offsets = CommittedOffsets(await store.table("offsets"), topics, Settings(), Clock())
    # Of this process alone: what else the machine does is no matter here.
    began = time.process_time()
    await offsets.open()
    took = time.process_time() - began
    assert len(offsets) == GROUPS * PARTITIONS
    await store.close()
    assert took < 2, f"{took:.2f} s"
