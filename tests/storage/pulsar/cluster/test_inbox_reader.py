"""Received messages that the reactor has not handled yet are limited."""

from __future__ import annotations

from typing import Any, cast

import pytest

from storage.cluster import MAX_CALL_BYTES
from storage.pulsar.cluster.inbox import RECEIVED_BYTES, InboxReader
from tests.storage.pulsar.fake_client import FakeClient


class ReceivedMessage:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def data(self) -> bytes:
        return self._data


class InboxTopic:
    """It is both the reader of pulsar-client and that of its binding. After the last of `messages`
    it stops `inbox`.
    """

    def __init__(self, inbox: InboxReader, messages: list[bytes]) -> None:
        self._reader = self
        self._inbox = inbox
        self._messages = messages

    def read_next(self, _: int) -> ReceivedMessage:
        message = self._messages.pop(0)
        if not self._messages:
            self._inbox._ended.set()
        return ReceivedMessage(message)


class BusyInbox:
    """An inbox that received `messages` while the reactor was busy."""

    def __init__(self) -> None:
        self.client = FakeClient()
        self.handled: list[bytes] = []
        self._reader = InboxReader(cast(Any, self.client), "inbox", self.handled.append)

    def receive(self, messages: list[bytes]) -> None:
        self._reader._read(InboxTopic(self._reader, messages))
        self._reader._ended.clear()

    def run_reactor(self) -> list[bytes]:
        self.client.reactor_calls.run()
        handled = self.handled[:]
        self.handled.clear()
        return handled


def test_messages_above_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    inbox = BusyInbox()
    inbox.receive([bytes([number]) * MAX_CALL_BYTES for number in range(6)])
    handled = inbox.run_reactor()
    assert [message[0] for message in handled] == [0, 1, 2]
    assert sum(map(len, handled)) <= RECEIVED_BYTES
    assert caplog.text.count("dropping messages of the inbox") == 1


def test_messages_after_the_reactor_has_continued_are_passed_on() -> None:
    inbox = BusyInbox()
    for number in range(6):
        inbox.receive([bytes([number]) * MAX_CALL_BYTES])
        assert [message[0] for message in inbox.run_reactor()] == [number]


def test_number_of_small_messages_is_limited() -> None:
    inbox = BusyInbox()
    inbox.receive([b"x"] * 100_000)
    assert len(inbox.run_reactor()) < 70_000
