"""A partition log shared with native clients, on a broker that is killed and restarted."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from storage.pulsar.log.partition_rows import PartitionRow, PartitionState
from tests.fakes.memory_store import Medium, MemoryStore
from tests.storage.pulsar.native.test_native_log import NativeTopic, append, seen, values
from tests.storage.pulsar.native_application import NativeApplication
from tests.testkit.pulsar import Pulsar

pytestmark = pytest.mark.peer


@ensureDeferred
async def test_offsets_continue_after_broker_crash(restartable_pulsar: Pulsar) -> None:
    broker = restartable_pulsar
    store = MemoryStore(Medium())
    await store.open()
    partition = PartitionState(await store.table("partitions"), b"key", PartitionRow())
    topic = NativeTopic(NativeApplication(broker.tenant()), partition)
    log = await topic.open()
    assert await append(log, *values(b"a", b"b")) == 0
    topic.sender.send(b"n")
    broker.kill()
    broker.launch()
    again = await topic.again()
    assert again.end_offset == 3
    assert await append(again, *values(b"c")) == 3
    assert await seen(again) == [(0, b"a"), (1, b"b"), (2, b"n"), (3, b"c")]
    await topic.close()
    topic.sender.client.close()
    await store.close()
