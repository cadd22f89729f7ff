"""A killed process loses no acknowledged data."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, task

from storage.log import StaleStoreLock, Store
from tests.contract.benches import Bench
from tests.contract.crashes import AcknowledgedWrites, check_nothing_is_lost, write_and_kill
from tests.storage.open_shards import open_with_shards

pytestmark = pytest.mark.long


@ensureDeferred
async def test_acknowledged_entries_and_rows_survive_kill(bench: Bench) -> None:
    if bench.spec is None:
        pytest.skip("this store lives in one process")
    told = AcknowledgedWrites()
    for acknowledgements in (1, 500, 50):
        write_and_kill(bench.spec, acknowledgements, told)
        store = await open_again(bench)
        await check_nothing_is_lost(store, told)
        await store.close()


async def open_again(bench: Bench) -> Store:
    """Open a store on the medium of a killed process as soon as its lock is released."""
    while True:
        store = bench.store()
        try:
            await open_with_shards(store)
        except StaleStoreLock:
            await task.deferLater(reactor, 0.1)
        else:
            return store
