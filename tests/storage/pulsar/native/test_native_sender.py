"""Outcome of batches for each answer of the client library; test_native_log uses a real broker."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import _pulsar
import pulsar
import pytest
from twisted.internet.defer import Deferred, succeed

from gateway.partitions.record_format import V2BatchFormat
from storage.log import EntryTooLarge, Fenced, LogClosed, StorageError
from storage.plain_records import PlainBatch, PlainRecord
from storage.pulsar.client.exclusive_producer import FencedByOtherProducer, InFlightLimit
from storage.pulsar.native.native_sender import NativeSender, PendingAppend
from storage.pulsar.settings import PulsarSettings

FORMAT = V2BatchFormat()
Answer = Callable[[Any, Any], None]


class Library:
    """Fake client and producer: calls run at once, and tests answer sent messages."""

    settings = PulsarSettings("pulsar://localhost:6650", "http://localhost:8080")

    def __init__(self) -> None:
        self.sent: list[Answer] = []
        self.is_closed = False
        self.reactor_calls = SimpleNamespace(post=lambda call: call())
        self._producer = SimpleNamespace(
            send_async=lambda message, answer: self.sent.append(answer),
            flush_async=lambda told: None,
        )

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return succeed(call())

    def close(self) -> None:
        self.is_closed = True


class Scene:
    def __init__(self) -> None:
        self.library = Library()
        self.room = InFlightLimit(1 << 20, 1000)
        self.stored: list[PendingAppend] = []
        self.ended: list[StorageError] = []
        library: Any = self.library
        self.sender = NativeSender(
            library, library, FORMAT, self.room, self.stored.append, self.ended.append
        )

    def send(self, records: int = 1) -> PendingAppend:
        pending = PendingAppend(
            FORMAT.pack(PlainBatch([PlainRecord(None, b"v", (), 1)] * records)), records
        )
        pending.result.addErrback(lambda failure: self.failures.append(failure.value))
        self.failures: list[Exception] = getattr(self, "failures", [])
        self.sender.send(pending)
        return pending


@pytest.fixture
def scene() -> Scene:
    return Scene()


def message_id(ledger: int, entry: int) -> Any:
    return pulsar.MessageId(-1, ledger, entry, -1)


OK = pulsar.Result.Ok


def test_acknowledged_batch_is_at_location_of_last_record(scene):
    sent = [scene.send(), scene.send()]
    for number, answer in enumerate(scene.library.sent):
        answer(OK, message_id(7, number))
    assert scene.stored == sent
    assert [one.location.position for one in sent] == [(7, 0), (7, 1)]
    assert scene.room.reserved_operations == 0


@pytest.mark.parametrize(
    ("result", "place", "kind"),
    [
        (pulsar.Result.Timeout, (7, 0), Fenced),
        (pulsar.Result.ProducerFenced, (7, 0), FencedByOtherProducer),
        (pulsar.Result.TopicTerminated, (7, 0), LogClosed),
        # Dropped by Pulsar's deduplication, which does not report the position of the first copy.
        (OK, (-1, -1), Fenced),
    ],
)
def test_unknown_outcome_ends_log_and_fails_in_flight_appends(scene, result, place, kind):
    scene.send()
    scene.send()
    scene.library.sent[0](result, message_id(*place))
    assert [type(error) for error in scene.ended] == [kind]
    assert [type(error) for error in scene.failures] == [kind, kind]
    assert (scene.library.is_closed, scene.room.reserved_operations, scene.stored) == (True, 0, [])


def test_lost_connection_is_named(scene):
    scene.send()
    scene.library.sent[0](_pulsar.Result(46), message_id(-1, -1))
    assert "(Disconnected)" in str(scene.ended[0])


def test_split_batch_ends_log(scene):
    scene.send(2)
    scene.library.sent[-1](OK, message_id(7, 0))
    assert [type(error) for error in scene.ended] == [Fenced]


def test_out_of_order_acknowledgements_end_log(scene):
    scene.send()
    scene.send()
    scene.library.sent[1](OK, message_id(7, 1))
    assert [type(error) for error in scene.ended] == [Fenced]


def test_oversized_batch_fails_alone(scene):
    scene.send()
    last = scene.send()
    scene.library.sent[0](pulsar.Result.MessageTooBig, message_id(-1, -1))
    scene.library.sent[1](OK, message_id(7, 0))
    assert [type(error) for error in scene.failures] == [EntryTooLarge]
    assert (scene.stored, scene.ended) == ([last], [])
