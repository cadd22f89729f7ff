"""The files that run in one worker."""

from __future__ import annotations

from pathlib import Path

from tests.distribution import TOGETHER

ROOT = Path(__file__).parent.parent
#: They use the broker in `make slow` only, which has no workers.
ONLY_SLOW = {
    "tests/testkit/test_pulsar.py",
    "tests/storage/pulsar/cluster/test_metadata_log.py",
    "tests/storage/pulsar/test_store.py",
}


def test_files_with_the_restartable_broker_run_in_one_worker() -> None:
    """Each further worker would start another one. The last file leaves it killed."""
    found = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "tests").rglob("test_*.py")
        if "restartable_pulsar" in file.read_text("utf-8") and file != Path(__file__)
    }
    together = TOGETHER["Pulsar that is killed and paused"]
    assert set(together) == found - ONLY_SLOW
    assert together[-1] == "tests/peers/on_pulsar/test_pulsar_outages.py"


def test_each_file_exists_and_is_in_one_unit() -> None:
    files = [file for unit in TOGETHER.values() for file in unit]
    assert len(set(files)) == len(files)
    assert [file for file in files if not (ROOT / file).exists()] == []
