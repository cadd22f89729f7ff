"""The short form of tests/fuzz/records.py; `test_compiled_kernel.py` has its other target."""

from tests.fuzz.records import main


def test_two_seconds_of_mutated_sets_find_nothing(monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["records", "--plain", "--seconds", "2", "--target", "entrances"]
    )
    assert main() == 0
