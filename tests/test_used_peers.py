"""The list of real peers at the end of a run, in separate test sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.used_peers import summary

ROOT = Path(__file__).parent.parent

TESTS = """
import pytest
from tests.used_peers import uses

@pytest.fixture(scope="module")
def broker():
    uses("Apache Kafka", "3.9.2")

def test_broker(broker):
    pass

def test_same_broker(broker):
    uses("sarama", "1.19.0")

def test_other_version():
    uses("Apache Kafka", "4.3.1")

def test_without_peers():
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
def test_run_lists_peers_with_number_of_tests(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.used_peers"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    plugins = ("-p", "xdist", "-p", "no:cacheprovider", "-n", workers, "--dist", "loadfile")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins],
        cwd=tmp_path,
        env={**outside, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Apache Kafka 3.9.2, 4.3.1: 3 tests\nsarama 1.19.0: 1 test\n" in done.stdout


def test_many_versions_are_a_range() -> None:
    versions = ("0.8.2.2", "0.11.0.3", "3.9.2", "4.4.0", "1.0.0")
    tests = {("kafka-clients", version): {"test_produce"} for version in versions}
    assert summary(tests) == ["kafka-clients 0.8.2.2 to 4.4.0 (5 versions): 1 test"]
