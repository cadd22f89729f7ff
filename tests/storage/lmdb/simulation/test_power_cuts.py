"""Power is lost at random moments; the seeds are those of `power_cuts.py`."""

from __future__ import annotations

import pytest
from pytest_twisted import ensureDeferred

from tests.storage.lmdb.simulation.power_cuts import run_seeds

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("seeds", "cuts"), [(12, 80), pytest.param(1250, 10_000, marks=pytest.mark.slow)]
)
@ensureDeferred
async def test_power_cut_loses_nothing_acknowledged(seeds: int, cuts: int) -> None:
    assert await run_seeds(1, seeds) >= cuts
