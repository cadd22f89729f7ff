"""A fixture that runs every test with both implementations of the inner loops."""

from __future__ import annotations

import importlib

import pytest

from records import kernel

LOOPS = (
    "tally",
    "conversions",
    "scan",
    "plain_run",
    "cut",
    "stamp",
    "down_batch",
    "down_all",
    "down_run",
    "down_messages",
    "up_messages",
)


@pytest.fixture(params=("_pure", "_kernel"), autouse=True)
def implementation(request, monkeypatch):
    try:
        module = importlib.import_module(f"records.{request.param}")
    except ImportError as error:
        pytest.skip(
            "the kernel is not compiled (pip install -e . or python setup.py build_ext "
            f"--inplace): {error}"
        )
    for name in LOOPS:
        monkeypatch.setattr(kernel, name, getattr(module, name))
    return module


kernel_only = pytest.mark.parametrize("implementation", ["_kernel"], indirect=True)
"""For tests of what only the compiled kernel does."""
