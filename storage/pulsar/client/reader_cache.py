"""Cache of open readers: a consumer that reads a topic sequentially uses one reader."""

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
    """At most `limit` readers, including those in use; the least recently used one is closed.

    For the reactor thread.
    """

    def __init__(self, client: PulsarClient, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._idle: OrderedDict[OpenReader, None] = OrderedDict()
        self._in_use: set[OpenReader] = set()
        self._closing: set[Deferred[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._idle) + len(self._in_use)

    def take(self, source: ReaderSource, offset: int) -> OpenReader | None:
        """Remove and return the most recently used reader of `source` positioned at `offset`, or
        None.
        """
        for reader in reversed(self._idle):
            if reader.source is source and reader.is_positioned_at(offset):
                del self._idle[reader]
                return reader
        return None

    def retake(self, reader: OpenReader) -> bool:
        """Remove a reader again that `use` has returned; False if it was closed or taken."""
        if reader not in self._idle:
            return False
        del self._idle[reader]
        return True

    def use(self, reader: OpenReader, call: Callable[[], T]) -> Deferred[T]:
        """Run `call`, which uses `reader`, in a thread. Then the reader is cached, or closed if
        unusable.

        The Deferred may be cancelled: the reader is returned to the cache anyway, and a call that
        has not started is not started.
        """
        done: Deferred[T] = Deferred()
        running = self._client.run(lambda: None if done.called else call())
        self._in_use.add(reader)
        self._evict()
        running.addBoth(partial(self._returned, reader, done))
        return done

    def forget(self, source: ReaderSource) -> None:
        """Close the readers of `source`, which is no longer read."""
        source.is_closed = True
        for reader in [reader for reader in self._idle if reader.source is source]:
            self._close(reader)

    async def close(self) -> None:
        """Close all readers; those in use are closed when they are returned."""
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
        """Close a reader in a thread; only `close` waits for it."""
        del self._idle[reader]
        try:
            closing = self._client.run(reader.close)
        except StorageError:
            # The client is closed, and all its readers with it.
            return
        self._closing.add(closing)

        def failed(failure: Failure) -> None:
            # Too many calls are queued: the reader is closed with its last reference.
            reader.drop()
            log.warning("closing a reader of %s failed: %s", reader.source.topic, failure.value)

        closing.addErrback(failed)
        closing.addBoth(lambda _: self._closing.discard(closing))
