"""Every test here runs with the compiled road for the plain case and without it: they differ in nothing."""

from __future__ import annotations

import pytest

from tests.gateway.protocol.wire.roads import ROADS, take


@pytest.fixture(params=ROADS, autouse=True)
def road(request, monkeypatch):
    take(request.param, monkeypatch)
    return request.param
