"""Power is lost at random moments; the seeds are those of `power_cuts.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pytest_twisted import ensureDeferred

from tests.storage.lmdb.simulation import power_cuts

pytestmark = pytest.mark.long


@ensureDeferred
async def test_power_cut_loses_nothing_acknowledged() -> None:
    assert await power_cuts.run_seeds(1, 12) >= 80


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_power_cuts_lose_nothing_acknowledged() -> None:
    """In a separate process: pytest keeps all log records, with the stacks of their errors."""
    argv = [sys.executable, "-m", power_cuts.__name__, "1", "1250"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-10_000:]
    assert int(done.stdout.split()[0]) >= 10_000
