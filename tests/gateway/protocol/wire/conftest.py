"""Runs each test here with the compiled codec functions and without them."""

from __future__ import annotations

import pytest

from tests.gateway.protocol.wire.implementations import IMPLEMENTATIONS, use


@pytest.fixture(params=IMPLEMENTATIONS, autouse=True)
def implementation(request, monkeypatch):
    use(request.param, monkeypatch)
    return request.param
