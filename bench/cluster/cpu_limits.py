"""Limits the CPU time of processes by control groups. Requires root."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""A group that has used its time waits for the rest of the period."""


@contextmanager
def each_limited(pids: Sequence[int], cores: float, root: Path = ROOT) -> Iterator[None]:
    """Give each process, with all its threads, at most `cores` CPU seconds per second.

    They get this time also if other processes are busy. Both versions of control groups are
    supported. Raises OSError if they cannot be changed.
    """
    is_v2 = (root / "cgroup.controllers").exists()
    parent = root if is_v2 else root / "cpu"
    quota = round(cores * PERIOD_US)
    made: list[Path] = []
    try:
        for pid in pids:
            group = parent / f"kopgate-bench-{os.getpid()}-{pid}"
            group.mkdir()
            made.append(group)
            if is_v2:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
                (group / "cpu.weight").write_text("10000")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
                (group / "cpu.shares").write_text("262144")
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in made:
            _remove(group, parent)


def _remove(group: Path, parent: Path) -> None:
    """Remove a group; its processes, if there are any left, have no limit any more."""
    for pid in (group / "cgroup.procs").read_text().split():
        (parent / "cgroup.procs").write_text(pid)
    group.rmdir()
