"""The stores under contract test, with the operations tests need: reopen, break the medium, kill.

A store joins the suite with a bench in `BENCHES`, or in the fixture `new_bench` if it needs a
server. Contract tests do not know which store they test.
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
from tests.testkit.pulsar_relay import SEND, PulsarRelays


class Bench(Protocol):
    """An empty medium and the stores on it.

    `spec` lets another process open the same medium; None if none can. `refusal` is the error of an
    append to a medium that refuses writes. After Fenced, a test continues with a new log from
    `Store.log`; after StorageFailed, with the same log. `examples` is the number of examples of a
    property test: a remote medium is slow.
    """

    spec: str | None
    examples: int
    refusal: type[StorageError] | tuple[type[StorageError], ...]

    def store(self) -> Store:
        """A new store on the medium, not opened."""
        ...

    @contextmanager
    def refusing_writes(self) -> Iterator[None]:
        """While active, every write to the medium fails."""
        ...

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        """While active, an append to `store` fails at once if another one is in flight."""
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
    settings = LmdbSettings(held_bytes=0)
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
    """Limits so low that reads go to disk, the map grows, bursts and deletions take many steps, and
    segments of the journal are cleaned.
    """

    settings = LmdbSettings(
        map_bytes=1,
        held_bytes=50_000,
        tail_bytes=0,
        burst_bytes=20_000,
        burst_operations=3,
        freeing_entries=2,
        readers=1,
        segment_bytes=30_000,
        index_entries=5,
        cleaned_bytes=4000,
    )


class PulsarBench:
    """Namespaces of a real Pulsar, reached through relays.

    Refused writes are dropped by the relay, so that senders time out.
    """

    examples = 4
    #: The first append of a log fails before it is sent if offsets cannot be reserved; the outcome
    #: of all others is unknown.
    refusal = (StorageFailed, Fenced)

    def __init__(self, settings: PulsarSettings) -> None:
        self._between = PulsarRelays(settings)
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
        with self._between.dropping(SEND):
            yield

    @contextmanager
    def full_queue(self, store: Store) -> Iterator[None]:
        from storage.pulsar.store import PulsarStore

        assert isinstance(store, PulsarStore)
        limit = store._in_flight_limit
        usual, limit.limit_operations = limit.limit_operations, 1
        try:
            yield
        finally:
            limit.limit_operations = usual

    def close(self) -> None:
        self._between.close()


BENCHES = {"lmdb": LmdbBench, "lmdb-narrow": NarrowLmdbBench, "memory": MemoryBench}


def store_from(spec: str) -> Store:
    """The store of a bench's `spec`, for another process; it uses this process's reactor."""
    kind, _, where = spec.partition(":")
    match kind:
        case "lmdb":
            return LmdbStore(Path(where), reactor=reactor)
        case "pulsar":
            return in_pulsar(PulsarSettings(**json.loads(where)))
    raise ValueError(f"no store {spec}")


def in_pulsar(settings: PulsarSettings) -> Store:
    """Imports the client library only for tests that need it."""
    from storage.pulsar.store import PulsarStore

    return PulsarStore(settings, reactor=reactor)


@contextmanager
def no_file_may_grow(size: int = 0) -> Iterator[None]:
    """While active, file writes of this process beyond `size` fail as on a full disk (EFBIG; Python
    ignores SIGXFSZ).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
