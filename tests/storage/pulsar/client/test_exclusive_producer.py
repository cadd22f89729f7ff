"""The exclusive producer: messages in flight, and how it closes."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

from storage.log import Entry, Fenced, LogClosed, StorageError, StorageFailed
from storage.pulsar.client.exclusive_producer import (
    ExclusiveProducer,
    InFlightLimit,
    InFlightMessage,
    LogEnd,
)
from storage.pulsar.client.partition_producers import IN_FLIGHT_OVERHEAD, SingleProducer
from storage.pulsar.log.entry_messages import Header
from tests.storage.pulsar.fake_client import FakeClient, FakeMessageId, FakeProducer, Ok, Timeout


class Scene:
    def __init__(self, limit_bytes: int = 1 << 20, limit_operations: int = 100) -> None:
        self.client = FakeClient()
        self.producer = FakeProducer()
        self.room = InFlightLimit(limit_bytes, limit_operations)
        self.stored: list[list[int]] = []
        self.ends: list[tuple[StorageError, list[int]]] = []
        self.sent: list[InFlightMessage] = []
        single = SingleProducer(self.producer, self.client.reactor_calls)
        self.exclusive = ExclusiveProducer(
            self.client,
            single,
            self.room,
            self._stored,
            self._ended,
        )
        self.on_responses = single.on_responses

    def _stored(self, messages: list[InFlightMessage]) -> None:
        self.stored.append([one.header.base_offset for one in messages])

    def _ended(self, error: StorageError, left: list[InFlightMessage]) -> None:
        self.ends.append((error, [one.header.base_offset for one in left]))

    def send(self, *offsets: int) -> None:
        for offset in offsets:
            sent = InFlightMessage(
                Header(offset, offset, -1, 0, 0),
                [Entry(offset, offset, -1, b"x")],
                b"x",
                {},
                LogEnd(offset + 1, 1, -1),
            )
            self.room.reserve(sent.cost)
            self.sent.append(sent)
            self.exclusive.send(sent)

    def answer(self, *results: Any) -> None:
        self.producer.answer(*results)
        self.client.reactor_calls.run()


def test_queued_responses_share_one_wake_up_and_one_burst():
    scene = Scene()
    scene.send(0, 1, 2)
    scene.producer.answer(Ok, Ok)
    assert len(scene.client.reactor_calls.posted) == 1
    scene.client.reactor_calls.run()
    scene.answer(Ok)
    assert scene.stored == [[0, 1], [2]]
    assert (scene.room.reserved_bytes, scene.room.reserved_operations) == (0, 0)


def test_failed_send_closes_producer_and_leaves_rest_unknown():
    scene = Scene()
    scene.send(0, 1, 2, 3)
    scene.answer(Ok, Timeout, Ok)
    assert scene.stored == [[0]]
    ((error, left),) = scene.ends
    assert isinstance(error, Fenced)
    assert left == [1, 2, 3]
    assert scene.producer.closed == 1
    scene.client.reactor_calls.run()
    assert (scene.room.reserved_bytes, scene.room.reserved_operations) == (0, 0)


def test_messages_before_an_invalid_response_are_stored_and_released():
    scene = Scene()
    scene.send(0, 1, 2)
    # The binding accepts only results of one byte.
    responses = [
        (sent, result, 1, 0)
        for sent, result in zip(scene.sent, (Ok.value, 300, Ok.value), strict=True)
    ]
    with pytest.raises(TypeError):
        scene.on_responses(responses)
    assert scene.stored == [[0]]
    assert scene.room.reserved_operations == 1
    scene.exclusive.close(Fenced("a bug"))
    scene.client.reactor_calls.run()
    assert (scene.room.reserved_bytes, scene.room.reserved_operations) == (0, 0)


def test_send_refused_by_library_closes_producer():
    scene = Scene()
    scene.send(0)
    scene.producer.refuses = pulsar.AlreadyClosed()
    scene.send(1)
    ((error, left),) = scene.ends
    assert isinstance(error, Fenced)
    assert left == [0, 1]
    assert scene.room.reserved_operations == 0


def test_response_within_send_is_handled_in_order():
    """A fenced producer calls back in the caller's thread, before the responses to earlier
    messages.
    """
    scene = Scene()
    scene.send(0)
    callback = scene.producer.waiting[0]
    scene.send(1)
    scene.producer.waiting.pop(1)(pulsar.Result.ProducerFenced, None)
    assert scene.ends == []
    scene.client.reactor_calls.run()
    assert [left for _, left in scene.ends] == [[0, 1]]
    callback(Ok, FakeMessageId(0))
    scene.client.reactor_calls.run()
    assert scene.stored == []
    assert scene.room.reserved_operations == 0


def test_terminated_topic_is_closed_not_fenced():
    scene = Scene()
    scene.send(0)
    scene.answer(pulsar.Result.TopicTerminated)
    assert isinstance(scene.ends[0][0], LogClosed)


def test_close_is_idempotent():
    scene = Scene()
    scene.send(0)
    scene.exclusive.close(LogClosed("deleted"))
    scene.exclusive.close(LogClosed("closed"))
    scene.client.reactor_calls.run()
    assert [(str(error), left) for error, left in scene.ends] == [("deleted", [0])]
    assert scene.producer.closed == 1


def test_producer_is_idle_with_nothing_in_flight():
    scene = Scene()
    assert scene.exclusive.wait_idle().called
    scene.send(0, 1)
    idle = scene.exclusive.wait_idle()
    scene.answer(Ok)
    assert not idle.called
    scene.answer(Ok)
    assert idle.called


def test_producer_is_idle_after_failure():
    scene = Scene()
    scene.send(0)
    idle = scene.exclusive.wait_idle()
    scene.answer(Timeout)
    assert idle.called


@pytest.mark.parametrize(
    ("limit_bytes", "limit_operations"), [(2 * (IN_FLIGHT_OVERHEAD + 1), 100), (1 << 20, 2)]
)
def test_messages_in_flight_are_limited(limit_bytes, limit_operations):
    scene = Scene(limit_bytes, limit_operations)
    scene.send(0, 1)
    with pytest.raises(StorageFailed, match="queue_bytes"):
        scene.send(2)
    scene.answer(Ok)
    scene.send(2)


def test_single_message_is_always_accepted():
    room = InFlightLimit(10, 1)
    room.reserve(1000)
    with pytest.raises(StorageFailed):
        room.reserve(1)
    room.release(1000)
    room.reserve(1000)
