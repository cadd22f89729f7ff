"""Readers of a topic that is deleted: none is opened once the topic was disconnected."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage.log import LogClosed, StorageFailed
from storage.pulsar.client.topic_readers import OpenReader, ReaderSource
from storage.pulsar.settings import PulsarSettings

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")


class ReaderClient:
    """Opens readers, unless `failure` is set. Calls of the reactor wait for `run_reactor`."""

    settings = SETTINGS

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.posted: list[Callable[[], object]] = []
        self.reactor_calls = SimpleNamespace(post=self.posted.append)
        self.closed = 0

    def reader(self, topic: str, start: Any, **_: object) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(close=self.close)

    def bulk_reader(self, topic: str, start: Any, queue: int) -> Any:
        return self.reader(topic, start)

    def close(self) -> None:
        self.closed += 1

    def run_reactor(self) -> None:
        while self.posted:
            self.posted.pop(0)()


@pytest.fixture
def client() -> ReaderClient:
    return ReaderClient()


@pytest.fixture
def source(client: ReaderClient) -> ReaderSource:
    return ReaderSource(cast(Any, client), "persistent://a/b/c")


def test_topic_without_readers_is_disconnected_at_once(source: ReaderSource) -> None:
    assert source.disconnect().called


def test_topic_is_disconnected_when_the_last_reader_is_closed(
    source: ReaderSource, client: ReaderClient
) -> None:
    first, second = source.open(None, 1), source.open(None, 1)
    done = [source.disconnect(), source.disconnect()]
    source.close(first)
    client.run_reactor()
    assert not done[0].called
    source.close(second)
    client.run_reactor()
    assert [one.called for one in done] == [True, True]
    assert client.closed == 2
    assert source.disconnect().called


def test_no_reader_of_a_disconnected_topic_is_opened(source: ReaderSource) -> None:
    source.disconnect()
    with pytest.raises(LogClosed):
        source.open(None, 1)


def test_reader_that_could_not_be_opened_is_not_waited_for(
    source: ReaderSource, client: ReaderClient
) -> None:
    client.failure = StorageFailed("no broker")
    with pytest.raises(StorageFailed):
        source.open(None, 1)
    assert source.disconnect().called


def test_reader_that_cannot_be_closed_is_not_waited_for(
    source: ReaderSource, client: ReaderClient
) -> None:
    """Too many calls are queued, for example."""
    reader = OpenReader(source, None)
    reader._opened()
    done = source.disconnect()
    assert not done.called
    reader.drop()
    reader.drop()
    client.run_reactor()
    assert done.called
