"""The open readers of a store, kept for whoever reads on where one of them stands: a consumer that reads a topic through opens one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from storage.log import StorageError
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.topic_readers import OpenReader, ReaderSource

T = TypeVar("T")
log = logging.getLogger(__name__)


class ReaderCache:
    """At most `limit` readers, those that are at work included; the one longest unused is closed for a new one. For the reactor's thread."""

    def __init__(self, session: PulsarClient, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._idle: OrderedDict[OpenReader, None] = OrderedDict()
        self._in_use: set[OpenReader] = set()
        self._closing: set[Deferred[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._in_use)

    def take(self, source: ReaderSource, offset: int) -> OpenReader | None:
        """The reader of `source` that stands at `offset`, the one last used where there are several."""
        for reader in reversed(self._idle):
            if reader.source is source and reader.is_positioned_at(offset):
                del self._idle[reader]
                return reader
        return None

    def use(self, reader: OpenReader, call: Callable[[], T]) -> Deferred[T]:
        """What `call` gives, which works with `reader` in a thread. Afterwards the reader is kept here, or closed where it is of no use any more.

        Whoever waits may give up: the reader comes back all the same, and what has not begun is not begun.
        """
        done: Deferred[T] = Deferred()
        running = self._session.run(lambda: None if done.called else call())
        self._in_use.add(reader)
        self._evict()
        running.addBoth(partial(self._returned, reader, done))
        return done

    def forget(self, source: ReaderSource) -> None:
        """Nobody reads `source` any more."""
        source.is_closed = True
        for reader in [reader for reader in self._idle if reader.source is source]:
            self._close(reader)

    async def close(self) -> None:
        """Close all readers. Those that are at work are closed when they come back."""
        self._is_closed = True
        for reader in list(self._idle):
            self._close(reader)
        await DeferredList(list(self._closing))

    def _returned(self, reader: OpenReader, done: Deferred[T], result: Any) -> None:
        self._in_use.discard(reader)
        self._idle[reader] = None
        if (
            isinstance(result, Failure)
            or self._is_closed
            or reader.source.is_closed
            or not reader.has_received_messages()
        ):
            self._close(reader)
        self._evict()
        done.callback(result)

    def _evict(self) -> None:
        while self._idle and len(self) > self._limit:
            self._close(next(iter(self._idle)))

    def _close(self, reader: OpenReader) -> None:
        """In a thread; nobody waits for it but the store's end."""
        del self._idle[reader]
        try:
            closing = self._session.run(reader.close)
        except StorageError:
            # The session is closed, and with it all of its readers.
            return
        self._closing.add(closing)
        # Too many calls wait already: it is closed with its last reference.
        closing.addErrback(
            lambda failure: log.warning(
                "a reader of %s is not closed: %s", reader.source.topic, failure.value
            )
        )
        closing.addBoth(lambda _: self._closing.discard(closing))
