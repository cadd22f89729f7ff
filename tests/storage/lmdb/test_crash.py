"""The store is killed repeatedly while it writes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pytest_twisted import ensureDeferred

from tests.contract.crashes import AcknowledgedWrites, check_nothing_is_lost, write_and_kill
from tests.storage.lmdb.conftest import Opener

pytestmark = pytest.mark.long


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.slow)])
@ensureDeferred
async def test_killed_store_keeps_everything_acknowledged(
    directory: Path, open_store: Opener, rounds: int
) -> None:
    told, moments = AcknowledgedWrites(), random.Random(rounds)
    for _ in range(rounds):
        write_and_kill(f"lmdb:{directory}", moments.randrange(1, 700), told)
    store = open_store()
    await store.open()
    await check_nothing_is_lost(store, told)
