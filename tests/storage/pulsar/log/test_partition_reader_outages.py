"""Reads from a broker that does not answer end in time, and continue when it answers again."""

from __future__ import annotations

from functools import partial

import pulsar as library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.log import StorageFailed
from tests.storage.pulsar.broker_tables import until_answered
from tests.storage.pulsar.partition_topics import PartitionTopic, ReadingStack, numbered, offsets

pytestmark = [pytest.mark.peer]

ALL = 1 << 30
STEP_SECONDS = 5.0
#: Time for a message, for the check whether there is one, and for another reader.
READ_SECONDS = 10 * 3 * STEP_SECONDS


@ensureDeferred
async def test_read_from_hanging_broker_ends_in_time(restartable_pulsar):
    broker = restartable_pulsar
    tenant = broker.tenant()
    settings = tenant.settings(
        read_timeout_seconds=STEP_SECONDS, operation_timeout_seconds=STEP_SECONDS
    )
    client = library.Client(
        broker.service_url, logger=library.ConsoleLogger(library.LoggerLevel.Error)
    )
    side = ReadingStack(settings, reactor)
    await side.client.open()
    partition = PartitionTopic(tenant, settings, client)
    partition.write(numbered(0, 300, size=1000))
    client.close()
    reader = side.reader(partition)
    assert offsets(await until_answered(lambda: reader.read(0, 300, 0))) == [0]
    broker.pause()
    with pytest.raises(StorageFailed):
        await read_on(reader, 1)
    broker.resume()
    assert await read_all(reader, 200) == list(range(200, 300))
    await side.close()


async def read_all(reader, offset):
    found = []
    while not found or found[-1] + 1 < 300:
        found += offsets(
            await until_answered(partial(reader.read, found[-1] + 1 if found else offset, 300, ALL))
        )
    return found


async def read_on(reader, offset):
    """Reads may still return prefetched messages; each read is in time."""
    while offset < 300:
        read = Deferred.fromCoroutine(reader.read(offset, 300, 0))
        assert offsets(await read.addTimeout(READ_SECONDS, reactor)) == [offset]
        offset += 1
