"""Runs every contract test for every store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from storage.log import PartitionLog, Store
from tests.contract.benches import BENCHES, Bench, PulsarBench
from tests.storage.entries import topic
from tests.testkit.settle import settle

#: How long senders wait on a medium that refuses; a busy broker answers much sooner.
PATIENCE_SECONDS = 5.0


@pytest.fixture(params=[*sorted(BENCHES), pytest.param("pulsar", marks=pytest.mark.peer)])
def new_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Bench]]:
    """Creates benches of one kind, each with a separate medium."""
    if request.param == "pulsar":
        tenant = request.getfixturevalue("pulsar")
        with ExitStack() as held:
            yield lambda: held.enter_context(
                closing(PulsarBench(tenant.settings(send_timeout_seconds=PATIENCE_SECONDS)))
            )
    else:
        numbers = itertools.count()
        yield lambda: BENCHES[request.param](_made(tmp_path / str(next(numbers))))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def bench(new_bench: Callable[[], Bench]) -> Bench:
    return new_bench()


@pytest.fixture
def store(bench: Bench) -> Iterator[Store]:
    """An open store on an empty medium."""
    opened = bench.store()
    settle(opened.open())
    yield opened
    settle(opened.close())


@pytest.fixture
def log(store: Store) -> PartitionLog:
    """The log of the only partition of the only topic, `orders`."""
    settle(store.create_topic(topic()))
    return settle(store.log("orders", 0))
