"""Every test of the contract runs once for every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.log import PartitionLog, Store
from tests.contract.benches import BENCHES, Bench
from tests.contract.entries import topic
from tests.contract.waiting import settle


@pytest.fixture(params=sorted(BENCHES))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    made: Bench = BENCHES[request.param](tmp_path)
    return made


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
