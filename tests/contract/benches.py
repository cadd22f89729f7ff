"""The stores under contract, each with what the suite must be able to do to it: open it again, break its medium, kill its process.

A store joins the suite by a bench in `BENCHES`; no test of the contract knows which store it runs on.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from twisted.internet import reactor

from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Store
from tests.fakes.memory_store import Medium, MemoryStore


class Bench(Protocol):
    """One empty medium and the stores on it. `spec` lets another process open the same medium; None where no process can."""

    spec: str | None

    def store(self) -> Store:
        """A new store on the medium, not open yet."""
        ...

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        """Within it every write to the medium fails."""
        ...


class MemoryBench:
    spec: str | None = None

    def __init__(self, directory: Path) -> None:
        self._medium = Medium()

    def store(self) -> Store:
        return MemoryStore(self._medium)

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        store = self._medium.held_by
        assert store
        store.refuse_writes = True
        try:
            yield
        finally:
            store.refuse_writes = False


class LmdbBench:
    settings = LmdbSettings()

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "store"
        self.spec: str | None = f"lmdb:{self._directory}"

    def store(self) -> Store:
        return LmdbStore(self._directory, reactor=reactor, settings=self.settings)

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        with no_file_may_grow():
            yield


class NarrowLmdbBench(LmdbBench):
    """Limits so low that every read goes to the file, the map grows, and bursts and deletions go in many steps."""

    settings = LmdbSettings(map_bytes=1, tail_bytes=0, burst_bytes=20_000, burst_operations=3, freeing_entries=2, readers=1)


BENCHES = {"lmdb": LmdbBench, "lmdb-narrow": NarrowLmdbBench, "memory": MemoryBench}


def store_from(spec: str) -> Store:
    """The store that a bench's `spec` names, for another process; it runs on this process's reactor."""
    kind, _, directory = spec.partition(":")
    if kind != "lmdb":
        raise ValueError(f"no store {spec}")
    return LmdbStore(Path(directory), reactor=reactor)


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Every write to a file by this process fails as on a full disk (EFBIG; Python ignores the signal that comes with it)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
