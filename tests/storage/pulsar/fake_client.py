"""Fakes of the client library's producer, of a client and of a table; tests give the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pulsar
from twisted.internet.defer import Deferred, maybeDeferred

from storage.pulsar.settings import PulsarSettings

Ok = pulsar.Result.Ok
Timeout = pulsar.Result.Timeout


class FakeMessageId:
    def __init__(self, entry: int) -> None:
        self._entry = entry

    def ledger_id(self) -> int:
        return 1

    def entry_id(self) -> int:
        return self._entry


class FakeProducer:
    """Sent messages wait in `waiting` for `answer`. The next send raises `refuses`.

    It is both the producer of pulsar-client and that of its binding, to which messages are passed.
    """

    def __init__(self) -> None:
        self._producer = self
        self.sent: list[bytes] = []
        self.properties: list[dict[str, str]] = []
        self.waiting: list[Callable[[Any, Any], None]] = []
        self.refuses: Exception | None = None
        self.closed = 0

    def send_async(self, message: Any, callback: Callable[[Any, Any], None]) -> None:
        if self.refuses:
            raise self.refuses
        self.sent.append(message.data())
        self.properties.append(message.properties())
        self.waiting.append(callback)

    def answer(self, *results: Any) -> None:
        """Answer the oldest waiting messages, in order."""
        for result in results:
            self.waiting.pop(0)(result, FakeMessageId(len(self.sent) - len(self.waiting)))

    def close(self) -> None:
        self.closed += 1
        self.answer(*[pulsar.Result.AlreadyClosed] * len(self.waiting))


class FakeWake:
    """Posted calls run in `run`, the reactor's turn."""

    def __init__(self) -> None:
        self.posted: list[Callable[[], None]] = []

    def post(self, call: Callable[[], None]) -> None:
        self.posted.append(call)

    def run(self) -> None:
        posted, self.posted = self.posted, []
        for call in posted:
            call()


class FakeClient:
    """Runs calls at once."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PulsarSettings("pulsar://nowhere", "http://nowhere", **settings)
        self.message_bytes = self.settings.message_bytes
        self.reactor_calls = FakeWake()

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return maybeDeferred(call)


class FakeTable:
    """Puts complete when a test calls `land`."""

    def __init__(self) -> None:
        self.puts: list[tuple[Mapping[bytes, bytes | None], Deferred[None]]] = []

    async def items(self) -> list[tuple[bytes, bytes]]:
        return []

    def put(self, rows: Mapping[bytes, bytes | None]) -> Deferred[None]:
        result: Deferred[None] = Deferred()
        self.puts.append((rows, result))
        return result

    def land(self, error: Exception | None = None) -> None:
        _, result = self.puts.pop(0)
        if error:
            result.errback(error)
        else:
            result.callback(None)
