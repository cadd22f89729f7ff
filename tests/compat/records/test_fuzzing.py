"""The short form of tests/fuzz/records.py."""

import pytest

from tests.fuzz.records import main


@pytest.mark.parametrize("target", ["agreement", "entrances"])
def test_two_seconds_of_mutated_sets_find_nothing(target, monkeypatch, implementation):
    if target == "agreement" and implementation.__name__.endswith("_pure"):
        pytest.skip("it takes two")
    monkeypatch.setattr("sys.argv", ["records", "--plain", "--seconds", "2", "--target", target])
    assert main() == 0
