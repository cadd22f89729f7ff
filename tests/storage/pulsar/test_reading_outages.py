"""Reading from a broker that does not answer ends in time, and goes on when it answers again."""

from __future__ import annotations

import time

import pulsar as library
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.log import StorageFailed
from tests.peers.pulsar import Pulsar
from tests.peers.tenant import Tenant
from tests.storage.pulsar.partitions import Partition, Side, numbered, offsets

pytestmark = [pytest.mark.peer, pytest.mark.timeout(500)]

ALL = 1 << 30


@ensureDeferred
async def test_a_broker_that_stands_still_holds_up_a_read_no_longer_than_its_time():
    with Pulsar.start() as broker:
        tenant = Tenant.make(broker.service_url, broker.admin_url)
        settings = tenant.settings(read_timeout_seconds=5.0, operation_timeout_seconds=5.0)
        client = library.Client(broker.service_url, logger=library.ConsoleLogger(library.LoggerLevel.Error))
        side = Side(settings, reactor)
        await side.session.open()
        partition = Partition(tenant, settings, client)
        partition.write(numbered(0, 300, size=1000))
        client.close()
        reader = side.reader(partition)
        assert offsets(await reader.read(0, 300, 0)) == [0]
        broker.pause()
        begun = time.monotonic()
        # What was fetched ahead may still come.
        with pytest.raises(StorageFailed):
            await read_on(reader, 1)
        # For a message, for the question whether there is one, and for another reader; and the machine, which may stand still for a while.
        assert time.monotonic() - begun < 5 + 5 + 5 + 15
        broker.resume()
        assert offsets(await reader.read(200, 300, ALL)) == list(range(200, 300))
        await side.close()


async def read_on(reader, offset):
    while offset < 300:
        assert offsets(await reader.read(offset, 300, 0)) == [offset]
        offset += 1
