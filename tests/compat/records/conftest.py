"""Every test here runs on both implementations of the inner loops."""

from __future__ import annotations

import importlib

import pytest

from compat.records import loops

LOOPS = ("scan", "plain_run", "cut", "stamp", "down_batch", "down_all", "down_messages", "up_messages")


@pytest.fixture(params=("_pure", "_kernel"), autouse=True)
def implementation(request, monkeypatch):
    try:
        module = importlib.import_module(f"compat.records.{request.param}")
    except ImportError as error:
        pytest.skip(f"the kernel is not compiled (pip install -e . or python setup.py build_ext --inplace): {error}")
    for name in LOOPS:
        monkeypatch.setattr(loops, name, getattr(module, name))
    return module


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """pytest-twisted wraps a property's inner test anew for each parameter, the wrapped one too, and then refuses to run it: unwrap in between."""
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    inner = handle.inner_test if handle else None
    try:
        return (yield)
    finally:
        if handle:
            handle.inner_test = inner
