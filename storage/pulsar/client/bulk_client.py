"""A client of the library's C API: many messages or responses in one call, without the GIL.

The binding takes one message per call and copies its payload twice, and calls back with the GIL for
each message that was sent. The C API needs a client, and so a connection, beside the binding's: the
two share no objects (decision 050). It has no setting for the connection timeout, which is the
library's default there, 10 s. Its readers begin behind their start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import pulsar

from storage.bridge import ReactorCallQueue, WatchingReactor
from storage.pulsar.client.bulk_readers import BulkReader
from storage.pulsar.client.compiled_client import BINDING_REASON, compiled
from storage.pulsar.client.partition_producers import PartitionProducer
from storage.pulsar.log.offset_index import Position

__all__ = ["BINDING_REASON", "BulkClient", "ResponseDispatcher", "compiled"]


class ResponseDispatcher(Protocol):
    """Passes each burst of responses to the producers; in the reactor's thread."""

    def close(self) -> None:
        """Dispatch the last responses. Call it after the client was closed."""
        ...


class BulkClient:
    """It connects on first use. Its readers and producers block, and raise the library's errors."""

    def __init__(
        self,
        service_url: str,
        operation_timeout_seconds: int,
        token: Callable[[], str] | None,
        trust_file: str | None,
        certificate_file: str | None,
        key_file: str | None,
    ) -> None:
        if trust_file is None:
            # The binding's default, on which it depends.
            import certifi

            trust_file = certifi.where()
        self._client = compiled.Client(
            service_url.encode(),
            operation_timeout_seconds,
            token,
            os.fsencode(trust_file),
            None if certificate_file is None else os.fsencode(certificate_file),
            None if key_file is None else os.fsencode(key_file),
        )

    def reader(self, topic: str, start: Position | None, queue: int) -> BulkReader:
        """A reader that starts at the position, or at the beginning.

        Messages of a batch that precede the position may be delivered, too; callers filter by
        offset. Blocks. Raises the library's errors.
        """
        id = (
            pulsar.MessageId(-1, start.ledger_id, start.entry_id - 1, -1)
            if start
            else pulsar.MessageId.earliest
        )
        # The message before the start uses one place of the queue, because the broker sends it.
        made: BulkReader = self._client.create_reader(topic.encode(), id.serialize(), queue + 1)
        return made

    def producer(
        self, topic: str, send_timeout_ms: int, pending_messages: int
    ) -> PartitionProducer:
        """The exclusive producer of `topic`, which fences others.

        Without a `ResponseDispatcher` no response arrives. Blocks. Raises the library's errors.
        """
        made: PartitionProducer = self._client.create_producer(
            topic.encode(), send_timeout_ms, pending_messages
        )
        return made

    def dispatch_responses(
        self, reactor: WatchingReactor, reactor_calls: ReactorCallQueue
    ) -> ResponseDispatcher:
        """Dispatch responses to the producers, in the thread of `reactor`."""
        made: ResponseDispatcher = compiled.ResponseDispatcher(self._client, reactor, reactor_calls)
        return made

    def close(self) -> None:
        self._client.close()
