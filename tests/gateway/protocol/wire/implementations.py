"""The compiled and the pure Python implementation of the hot codec functions.

Tests run with each of them: both must give the same results.
"""

from __future__ import annotations

import importlib

import pytest

from gateway.protocol.wire import compiled

IMPLEMENTATIONS = ("python", "cython")
NAMES = (
    "batch",
    "fetch_reply",
    "fetch_request",
    "frames",
    "header",
    "in_flight_append",
    "plain_produce",
    "reply",
    "request",
    "stamp",
)


def unavailable(*_):
    return None


def use(implementation, monkeypatch):
    """Use this implementation until the end of the test. Skips the test if it is not compiled."""
    extension = None
    if implementation == "cython":
        if compiled.KERNEL != "cython":
            pytest.skip("the classes of this process are those of pure Python")
        try:
            extension = importlib.import_module("gateway.protocol.wire._plain")
        except ImportError as error:
            pytest.skip(
                f"not compiled (pip install -e . or python setup.py build_ext --inplace): {error}"
            )
    for name in NAMES:
        monkeypatch.setattr(
            compiled, name, unavailable if extension is None else getattr(extension, name)
        )
    monkeypatch.setattr(
        compiled, "plain_context", unavailable if extension is None else extension.PlainContext
    )
