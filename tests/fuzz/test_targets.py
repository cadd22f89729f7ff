"""Short form of `make fuzz`, without atheris."""

from __future__ import annotations

import importlib.util

import pytest

from tests.fuzz.fuzzer import TARGETS, main

pytestmark = pytest.mark.long


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_input_is_parsed_or_refused_alike_for_a_second(monkeypatch, target):
    module = TARGETS[target].compiled
    if module is not None and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not compiled")
    monkeypatch.setattr("sys.argv", ["fuzzer", "--plain", "--seconds", "1", "--target", target])
    assert main() == 0
