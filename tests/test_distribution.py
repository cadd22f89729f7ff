"""The files that run in one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution import TOGETHER

ROOT = Path(__file__).parent.parent
#: They use the broker in `make slow` only, which has no workers.
ONLY_SLOW = {
    "tests/testkit/test_pulsar.py",
    "tests/storage/pulsar/cluster/test_metadata_log.py",
    "tests/storage/pulsar/test_store.py",
}


@pytest.mark.parametrize(
    ("unit", "fixtures"),
    [
        ("Pulsar that is killed and paused", ("restartable_pulsar",)),
        ("Kafka 3.9.2 beside a gateway", ("compared_brokers",)),
        ("servers with users and ACLs", ("authorizing_gateway", "authorizing_kafka")),
        ("Kafka 4", ("modern_kafka",)),
    ],
)
def test_files_that_share_servers_run_in_one_worker(unit: str, fixtures: tuple[str, ...]) -> None:
    """Each further worker would start others."""
    found = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "tests").rglob("test_*.py")
        if file != Path(__file__) and any(name in file.read_text("utf-8") for name in fixtures)
    }
    assert set(TOGETHER[unit]) == found - ONLY_SLOW


def test_file_that_leaves_pulsar_killed_is_the_last_of_its_unit() -> None:
    together = TOGETHER["Pulsar that is killed and paused"]
    assert together[-1] == "tests/peers/on_pulsar/test_pulsar_outages.py"


def test_each_file_exists_and_is_in_one_unit() -> None:
    files = [file for unit in TOGETHER.values() for file in unit]
    assert len(set(files)) == len(files)
    assert [file for file in files if not (ROOT / file).exists()] == []
