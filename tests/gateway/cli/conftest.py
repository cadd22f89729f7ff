"""Commands with a fake server."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gateway.cli import connect


@pytest.fixture
def connect_to(monkeypatch):
    """A function that lets the commands connect to a fake server, and returns that.

    `module` is the one that imports `connected`.
    """

    def use(server, module=connect):
        monkeypatch.setattr(module, "connected", lambda _: nullcontext(server))
        return server

    return use
