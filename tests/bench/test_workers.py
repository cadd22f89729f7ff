"""Limits of CPU time by control groups, and the table of workers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.cluster.cpu_limits import each_limited
from bench.cluster.workers import WorkersResult, table


@pytest.fixture
def removable_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group can be removed although it contains files."""
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)


@pytest.mark.usefixtures("removable_groups")
def test_each_process_gets_its_own_group_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    with each_limited([41, 42], 0.25, tmp_path):
        groups = sorted(one for one in tmp_path.iterdir() if one.is_dir())
        assert [(one / "cgroup.procs").read_text() for one in groups] == ["41", "42"]
        assert [(one / "cpu.max").read_text() for one in groups] == ["2500 10000"] * 2


@pytest.mark.usefixtures("removable_groups")
def test_control_groups_of_version_1_have_a_controller_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with each_limited([41], 0.5, tmp_path):
        (group,) = (tmp_path / "cpu").iterdir()
        assert (group / "cgroup.procs").read_text() == "41"
        assert (group / "cpu.cfs_period_us").read_text() == "10000"
        assert (group / "cpu.cfs_quota_us").read_text() == "5000"


@pytest.mark.usefixtures("removable_groups")
def test_processes_have_no_limit_afterwards(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    with pytest.raises(ZeroDivisionError), each_limited([41], 0.5, tmp_path):
        raise ZeroDivisionError
    assert [one.name for one in (tmp_path / "cpu").iterdir()] == ["cgroup.procs"]
    assert (tmp_path / "cpu" / "cgroup.procs").read_text() == "41"


def test_rates_are_compared_with_the_smallest_number_of_workers() -> None:
    # 4 MiB/s with 0.25 cores are 64 CPU seconds per GiB.
    runs = [
        WorkersResult(2, 7.0, 0.5, 0.3, 0.2, 0.04),
        WorkersResult(1, 4.0, 0.25, 0.2, 0.1, 0.01),
        WorkersResult(2, 8.0, 0.5, 0.3, 0.2, 0.04),
        WorkersResult(1, 4.0, 0.25, 0.2, 0.1, 0.01),
    ]
    assert table(runs, 0.25).splitlines()[2:] == [
        "| 1 | 0.25 cores | 4.0 (4.0-4.0) | **1.00** | 64.0 | 0.25 | 0.01 | 0.20 | 0.10 |",
        "| 2 | 0.25 cores | 7.5 (7.0-8.0) | **1.88** | 68.6 | 0.50 | 0.04 | 0.30 | 0.20 |",
    ]
