"""A full disk: writes fail, reads and deletions work, no acknowledged entry is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_twisted import ensureDeferred

from tests.storage.entries import everything
from tests.storage.lmdb.conftest import Opener


def run_on_a_small_disk(directory: Path) -> list[str]:
    """Output of the process on a disk of 4 MiB."""
    command = [sys.executable, "-m", "tests.storage.lmdb.full_disk", str(directory), str(4 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@ensureDeferred
async def test_full_disk_refuses_writes_serves_reads_and_loses_nothing(
    directory: Path, open_store: Opener
) -> None:
    *seen, state = run_on_a_small_disk(directory)
    assert seen == [
        "filled True",
        "reads True",
        "goes on after a deletion True",
        "goes on with more space",
    ]
    start, end, size = (int(word) for word in state.split()[1:])
    store = open_store()
    await store.open()
    log = await store.log("orders", 0)
    assert (log.start_offset, log.end_offset, log.size) == (start, end, size)
    entries = await everything(log)
    assert [one.base_offset for one in entries] == list(range(start, end))
    assert all(bytes(one.payload[:12]) == b"%012d" % one.base_offset for one in entries)
    assert await (await store.table("rows")).items() == [(b"k", b"v")]
