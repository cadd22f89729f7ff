"""A client of the library's C API: many messages or responses in one call, without the GIL.

The binding takes one message per call and copies its payload twice, and calls back with the GIL for
each message that was sent. The C API needs a client, and so a connection, beside the binding's: the
two share no objects (decision 050). It has no setting for the connection timeout, which is the
library's default there, 10 s. Its readers begin behind their start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import pulsar
from twisted.python.failure import Failure

from storage.bridge import ReactorCallQueue, WatchingReactor
from storage.pulsar.client.bulk_readers import BulkReader
from storage.pulsar.client.partition_producers import PartitionProducer
from storage.pulsar.log.offset_index import Position

log = logging.getLogger(__name__)

_INTERFACE = 3
"""Expected INTERFACE of the compiled module; incremented when one of its functions changes."""

compiled: Any = None
"""The compiled module; None if it is not built, or the library lacks a function."""

BINDING_REASON = ""
"""Why `compiled` is None."""

if os.environ.get("KOPGATE_PURE_PYTHON", "") not in ("", "0"):
    BINDING_REASON = "KOPGATE_PURE_PYTHON is set"
else:
    try:
        import storage.pulsar.client._library as _library
    except ImportError as error:
        BINDING_REASON = str(error)
    else:
        if _library.INTERFACE == _INTERFACE:
            compiled = _library
        else:
            BINDING_REASON = "the compiled module has another version"


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
        return ResponseDispatcher(self._client, reactor, reactor_calls)

    def close(self) -> None:
        self._client.close()


class ResponseDispatcher:
    """Passes each burst of responses to the producers; in the reactor's thread.

    The library's thread wakes the reactor once per burst, without the GIL.
    """

    def __init__(
        self, client: Any, reactor: WatchingReactor, reactor_calls: ReactorCallQueue
    ) -> None:
        self._client = client
        self._reactor = reactor
        self._reactor_calls = reactor_calls
        self.fileno: Callable[[], int] = client.fileno
        reactor.addReader(self)

    def doRead(self) -> None:
        """Raises nothing: the reactor would not watch it any longer."""
        self._reactor_calls.run(self._dispatch)

    def _dispatch(self) -> None:
        for producer, responses in self._client.take_responses().items():
            try:
                producer.on_responses(responses)
            except Exception:
                log.exception("bug: responses from Pulsar could not be handled")

    def close(self) -> None:
        """Dispatch the last responses. Call it after the client was closed."""
        self._reactor.removeReader(self)
        self.doRead()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has ended."""

    def logPrefix(self) -> str:
        return "pulsar"
