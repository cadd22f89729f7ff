"""The steps of `make bench-pulsar`: their order, and all of them on a real broker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import clients
from bench.pulsar import FETCH, NATIVE, PRODUCE, NativeRunner, PulsarGateway, plan
from bench.servers import running
from tests.legacy_clients.brokers import are_required
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall
from tests.testkit.tenant import Tenant

CHECKOUT = Path(__file__).parents[2]


def sides(row: str, rounds: int, *names: str) -> list[str]:
    """The sides of one row, in the order of the steps."""
    gateways: Any = [SimpleNamespace(name=name) for name in names]
    native: Any = SimpleNamespace()
    return [
        step.name.removeprefix(f"{row}, ")
        for step in plan(gateways, native, rounds, 1)
        if step.name in {f"{row}, {side}" for side in (*names, NATIVE)}
    ]


@pytest.mark.parametrize("row", [PRODUCE, FETCH])
def test_gateways_and_native_application_take_turns(row: str) -> None:
    assert sides(row, 2, "kopgate") == ["kopgate", NATIVE, NATIVE, "kopgate"]
    assert sides(row, 2, "kopgate", "kopgate in older") == [
        *("kopgate", "kopgate in older", NATIVE),
        *("kopgate in older", NATIVE, "kopgate"),
    ]


@pytest.mark.peer
@pytest.mark.slow
def test_all_steps_run_on_two_gateways_and_one_broker(
    pulsar: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PACE_WARM_UP_SECONDS", 1)
    monkeypatch.setattr(clients, "PACE_SECONDS", 2)
    monkeypatch.setattr(clients, "JVM_FLAGS", jvm.CLIENT)
    starts = [partial(PulsarGateway, pulsar, checkout) for checkout in (None, CHECKOUT)]
    try:
        with running(starts) as gateways:
            figures = [step.run() for step in plan(gateways, NativeRunner(pulsar), 1, 1)]
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    assert [figure.server for figure in figures] == 7 * [
        "kopgate",
        f"kopgate in {CHECKOUT.name}",
        NATIVE,
    ]
    assert all(figure.cpu_per_gib > 0 and figure.rate > 0 for figure in figures)
