"""Runs every contract test for every store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from storage.log import PartitionLog, Store
from tests.contract.benches import BENCHES, Bench, PulsarBench
from tests.storage.entries import topic
from tests.storage.open_shards import open_with_shards
from tests.testkit.settle import settle

#: How long senders wait on a medium that refuses; a busy broker answers much sooner.
PATIENCE_SECONDS = 5.0


_numbers = itertools.count()


@pytest.fixture(
    scope="module", params=[*sorted(BENCHES), pytest.param("pulsar", marks=pytest.mark.peer)]
)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    return str(request.param)


@pytest.fixture
def new_bench(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], Bench]]:
    """Creates benches of one kind, each with a separate medium."""
    with _benches(kind, request, tmp_path) as made:
        yield made


@contextmanager
def _benches(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> Iterator[Callable[[], Bench]]:
    if kind == "pulsar":
        tenant = request.getfixturevalue("pulsar")
        with ExitStack() as held:
            yield lambda: held.enter_context(
                closing(PulsarBench(tenant.settings(send_timeout_seconds=PATIENCE_SECONDS)))
            )
    else:
        yield lambda: BENCHES[kind](_made(folder / str(next(_numbers))))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture
def bench(new_bench: Callable[[], Bench]) -> Bench:
    return new_bench()


@pytest.fixture
def store(bench: Bench) -> Iterator[Store]:
    """An open store on an empty medium."""
    with _opened(bench) as made:
        yield made


@pytest.fixture(scope="module")
def shared_store(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """An open store for tests that need no more of it than a new topic."""
    with (
        _benches(kind, request, tmp_path_factory.mktemp("shared")) as new_bench,
        _opened(new_bench()) as made,
    ):
        yield made


@contextmanager
def _opened(bench: Bench) -> Iterator[Store]:
    made = bench.store()
    settle(open_with_shards(made))
    yield made
    settle(made.close())


@pytest.fixture
def log(request: pytest.FixtureRequest, kind: str) -> PartitionLog:
    """An empty log: of the only topic of `store`, `orders`, if the test uses `store` or `bench`;
    otherwise of a new topic of `shared_store`.
    """
    is_alone = {"store", "bench"} & {*request.fixturenames}
    store = request.getfixturevalue("store" if is_alone else "shared_store")
    name = "orders" if is_alone else f"orders-{next(_numbers)}"
    settle(store.create_topic(topic(name)))
    return settle(store.log(name, 0))
