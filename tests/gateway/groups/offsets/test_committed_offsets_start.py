"""The cost per offset of loading committed offsets does not grow with their number."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.task import Clock

from gateway.cluster.shard_leadership import ROWS_PER_TURN, ShardLeadership
from gateway.coroutines import TimeSlices
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset, OffsetKey, encode_key, encode_value
from gateway.settings.model import Settings
from gateway.topics.registry import Topics
from storage.lmdb import LmdbSettings, LmdbStore

GROUPS, PARTITIONS = 300, 100


def nothing_in_the_background(work: Coroutine[Any, Any, None]) -> None:
    raise AssertionError("no partition is opened here")


def topics_of(store: LmdbStore) -> Topics:
    leadership = ShardLeadership(store, Clock(), nothing_in_the_background)
    return Topics(store, leadership, Settings(), Clock(), lambda: 0, nothing_in_the_background)


async def seconds_to_open(folder: Path, groups: int) -> float:
    """CPU seconds to load the offsets of `groups` groups with offsets in every partition."""
    store = LmdbStore(folder, reactor=reactor, settings=LmdbSettings())
    await store.open()
    topics = topics_of(store)
    await topics.open()
    live = await topics.create("orders", PARTITIONS, {})
    table = await store.table("offsets")
    row = encode_value(CommittedOffset(1 << 40, 7, "consumer-host-17", 1_700_000_000_000))
    for index in range(PARTITIONS):
        await table.put(
            {
                encode_key(OffsetKey(f"application-{number}", live.topic.topic_id, index)): row
                for number in range(groups)
            }
        )
    await store.close()

    store = LmdbStore(folder, reactor=reactor, settings=LmdbSettings())
    await store.open()
    topics = topics_of(store)
    await topics.open()
    took = []
    for _ in range(3):
        offsets = CommittedOffsets(store, topics, Settings(), Clock())
        began = time.process_time()
        await offsets.open_shard(0, TimeSlices(cast(Any, reactor), ROWS_PER_TURN))
        took.append(time.process_time() - began)
        assert len(offsets) == groups * PARTITIONS
    await store.close()
    return min(took)


@ensureDeferred
async def test_loading_cost_per_offset_is_constant(
    tmp_path: Path,
) -> None:
    few = await seconds_to_open(tmp_path / "few", GROUPS // 10)
    many = await seconds_to_open(tmp_path / "many", GROUPS)
    # Ten times the offsets; quadratic cost would take a hundred times as long.
    assert many < 30 * few
