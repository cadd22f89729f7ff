"""A killed process loses nothing that it was told is stored."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from tests.contract.benches import Bench
from tests.contract.crashes import Acknowledged, check_nothing_is_lost, write_and_kill


@ensureDeferred
async def test_every_acknowledged_entry_and_row_outlives_a_killed_process(bench: Bench) -> None:
    if bench.spec is None:
        pytest.skip("this store lives in one process")
    told = Acknowledged()
    for acknowledgements in (1, 500, 50):
        write_and_kill(bench.spec, acknowledgements, told)
        store = bench.store()
        await store.open()
        await check_nothing_is_lost(store, told)
        await store.close()
