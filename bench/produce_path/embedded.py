"""The embedded store behind the measured requests, without Twisted's reactor.

The main thread runs what the store's threads post, as the reactor's thread does. Timers fire only
if nothing else happens, so bursts are always complete. Rows are committed when the store closes.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway.coroutines import start
from storage.bridge import Readable
from storage.lmdb import LmdbSettings, LmdbStore
from storage.log import PartitionLog, Topic

#: How long the main thread waits for the store's threads before a timer fires.
_IDLE_SECONDS = 0.5


class _Timer:
    """A scheduled call, like Twisted's IDelayedCall."""

    def __init__(self, timers: list[_Timer], call: Callable[[], object]) -> None:
        self._timers = timers
        self.call = call
        timers.append(self)

    def active(self) -> bool:
        return self in self._timers

    def cancel(self) -> None:
        self._timers.remove(self)


class _Calls:
    """The part of a reactor that the store uses."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], object]] = deque()
        self._timers: list[_Timer] = []
        self._readers: dict[int, Readable] = {}
        self._woken, self._wake = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    def seconds(self) -> float:
        return 0.0

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> _Timer:
        return _Timer(self._timers, lambda: call(*arguments))

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        self._posted.append(lambda: call(*arguments))
        os.write(self._wake, b".")

    def addReader(self, reader: Readable) -> None:
        self._readers[reader.fileno()] = reader
        self._poll.register(reader, select.POLLIN)

    def removeReader(self, reader: Readable) -> None:
        self._poll.unregister(reader)
        del self._readers[reader.fileno()]

    def run_next(self) -> None:
        """Run the next calls from threads, or a timer."""
        events = self._poll.poll(_IDLE_SECONDS * 1000)
        for descriptor, _ in events:
            if descriptor == self._woken:
                os.read(descriptor, 1)
                self._posted.popleft()()
            else:
                self._readers[descriptor].doRead()
        if not events and self._timers:
            self._timers.pop(0).call()


class EmbeddedStore:
    """A store in a temporary directory with one topic; `logs` are those of its partitions."""

    def __init__(self, name: str, partitions: int) -> None:
        self._calls = _Calls()
        self._directory = Path(tempfile.mkdtemp(prefix="kopgate-bench-"))
        self._store = LmdbStore(
            self._directory, reactor=self._calls, settings=LmdbSettings(index_seconds=3600)
        )
        self._wait(self._store.open())
        self._wait(self._store.create_topic(Topic(name, bytes(16), partitions)))
        self.logs: list[PartitionLog] = [
            self._wait(self._store.log(name, index)) for index in range(partitions)
        ]

    def expect(self, appends: int) -> None:
        """Gather this many appends, as after a burst of as many."""
        writer: Any = self._store._writer
        writer.queue._expected_operations = appends

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._calls.run_next()

    def close(self) -> None:
        self._wait(self._store.close())
        shutil.rmtree(self._directory)

    def _wait(self, work: Awaitable[Any]) -> Any:
        ended: list[Any] = []
        start(_awaited(work), ended.append, ended.append)
        self.run_until(lambda: bool(ended))
        if isinstance(ended[0], BaseException):
            raise ended[0]
        return ended[0]


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work
