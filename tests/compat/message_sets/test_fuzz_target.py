"""Short form of tests/fuzz/records.py; its other target is in `test_compiled_kernel.py`."""

import pytest

from tests.fuzz.records import main

pytestmark = pytest.mark.long


def test_mutated_sets_raise_only_records_errors_for_two_seconds(monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["records", "--plain", "--seconds", "2", "--target", "entry_points"]
    )
    assert main() == 0
