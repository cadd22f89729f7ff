"""Compiled modules that were built are used: a fallback to Python code is silent for its users."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from records import kernel

ROOT = Path(__file__).parent.parent

USERS = {
    "records._kernel": ("records.kernel", "KERNEL", "cython"),
    "gateway._reactor": ("gateway.reactor", "loop", None),
    "gateway.protocol.wire._plain": ("gateway.protocol.wire.compiled", "plain_produce", None),
    "gateway.fetch._entry_loops": ("gateway.fetch.entry_loops", "loops", None),
    "gateway.fetch._reading": ("gateway.handlers.fetch", "compiled", None),
    "storage._bridge": ("storage.bridge", "Completion", None),
    "storage._files": ("storage.files", "_new_flusher", None),
    "storage._log": ("storage.log", "compiled", None),
    "storage.lmdb._frames": ("storage.lmdb.frames", "compiled", None),
    "storage.pulsar.client._library": ("storage.pulsar.client.compiled_client", "compiled", None),
}
"""Compiled module -> the module that chooses it, an attribute, and its value if it is not the
compiled module or from there.
"""


@pytest.mark.skipif(
    os.environ.get("KOPGATE_PURE_PYTHON", "") not in ("", "0"), reason="KOPGATE_PURE_PYTHON is set"
)
@pytest.mark.parametrize("name", USERS)
def test_module_that_was_built_is_used(name):
    *folder, file = name.split(".")
    if not list(ROOT.joinpath(*folder).glob(f"{file}.*.so")):
        pytest.skip(f"{name} is not built")
    user, attribute, value = USERS[name]
    found = getattr(importlib.import_module(user), attribute)
    if value is None:
        found = getattr(found, "__module__", None) or found.__name__
        value = name
    assert found == value, kernel.KERNEL_REASON
