"""The stores under contract, each with what the suite must be able to do to it: open it again, break its medium, kill its process.

A store joins the suite by a bench in `BENCHES`, one that needs a peer by the fixture `new_bench`; no test of the contract knows which store it runs on.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from twisted.internet import reactor

from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import Fenced, StorageError, StorageFailed, Store
from storage.pulsar.settings import PulsarSettings
from tests.fakes.memory_store import Medium, MemoryStore
from tests.peers.relay import SEND, Between


class Bench(Protocol):
    """One empty medium and the stores on it. `spec` lets another process open the same medium; None where no process can.

    `refusal` is what an append to a medium that refuses writes fails with. Where that is Fenced the log is finished, and a test goes on with what
    `Store.log` gives; after StorageFailed that is the same log. `examples` is how many sequences of calls a property may try: a medium that is far away takes its time.
    """

    spec: str | None
    examples: int
    refusal: type[StorageError] | tuple[type[StorageError], ...]

    def store(self) -> Store:
        """A new store on the medium, not open yet."""
        ...

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        """Within it every write to the medium fails."""
        ...

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        """Within it an append to `store` is refused at once while another one is in flight."""
        ...


class MemoryBench:
    spec: str | None = None
    examples = 25
    refusal = StorageFailed

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

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        assert isinstance(store, MemoryStore)
        store.is_full = True
        try:
            yield
        finally:
            store.is_full = False


class LmdbBench:
    settings = LmdbSettings()
    examples = 25
    refusal = StorageFailed

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "store"
        self.spec: str | None = f"lmdb:{self._directory}"

    def store(self) -> Store:
        return LmdbStore(self._directory, reactor=reactor, settings=self.settings)

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        with no_file_may_grow():
            yield

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        assert isinstance(store, LmdbStore)
        usual = store.settings
        store.settings = replace(usual, queue_operations=1)
        try:
            yield
        finally:
            store.settings = usual


class NarrowLmdbBench(LmdbBench):
    """Limits so low that every read goes to the file, the map grows, and bursts and deletions go in many steps."""

    settings = LmdbSettings(
        map_bytes=1,
        tail_bytes=0,
        burst_bytes=20_000,
        burst_operations=3,
        freeing_entries=2,
        readers=1,
    )


class PulsarBench:
    """Namespaces of a real Pulsar, reached through relays. What it refuses is lost on the way, so that its senders wait in vain."""

    examples = 4
    #: The first append of a log fails before it is sent, where it cannot be noted; of all others nobody knows what became of them.
    refusal = (StorageFailed, Fenced)

    def __init__(self, settings: PulsarSettings) -> None:
        self._between = Between(settings)
        names = (
            "service_url",
            "admin_url",
            "tenant",
            "namespace",
            "metadata_tenant",
            "metadata_namespace",
        )
        self.spec: str | None = "pulsar:" + json.dumps(
            {name: getattr(settings, name) for name in names}
        )

    def store(self) -> Store:
        return in_pulsar(self._between.settings)

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        with self._between.losing(SEND):
            yield

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        from storage.pulsar.store import PulsarStore

        assert isinstance(store, PulsarStore)
        usual = store._room._limits
        store._room._limits = usual[0], 1
        try:
            yield
        finally:
            store._room._limits = usual

    def close(self) -> None:
        self._between.close()


BENCHES = {"lmdb": LmdbBench, "lmdb-narrow": NarrowLmdbBench, "memory": MemoryBench}


def store_from(spec: str) -> Store:
    """The store that a bench's `spec` names, for another process; it runs on this process's reactor."""
    kind, _, where = spec.partition(":")
    match kind:
        case "lmdb":
            return LmdbStore(Path(where), reactor=reactor)
        case "pulsar":
            return in_pulsar(PulsarSettings(**json.loads(where)))
    raise ValueError(f"no store {spec}")


def in_pulsar(settings: PulsarSettings) -> Store:
    """Its client is loaded by those tests alone that want it."""
    from storage.pulsar.store import PulsarStore

    return PulsarStore(settings, reactor=reactor)


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Every write to a file by this process fails as on a full disk (EFBIG; Python ignores the signal that comes with it)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
