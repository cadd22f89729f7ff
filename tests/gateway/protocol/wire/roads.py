"""The two roads that a plain request may take, for the tests that hold them to each other."""

from __future__ import annotations

import importlib

import pytest

from gateway.protocol.wire import compiled

ROADS = ("python", "cython")
NAMES = ("batch", "header", "reply", "request")


def never(*_):
    return None


def take(road, monkeypatch):
    """From here on this road is taken; the test is skipped where it was not compiled."""
    extension = None
    if road == "cython":
        try:
            extension = importlib.import_module("gateway.protocol.wire._plain")
        except ImportError as error:
            pytest.skip(
                f"it is not compiled (pip install -e . or python setup.py build_ext --inplace): {error}"
            )
    for name in NAMES:
        monkeypatch.setattr(
            compiled, name, never if extension is None else getattr(extension, name)
        )
