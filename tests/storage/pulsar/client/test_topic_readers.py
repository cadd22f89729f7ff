"""Readers of a topic: when a read ends, and that none is opened once the topic was disconnected."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pulsar
import pytest

from storage.log import LogClosed, StorageFailed
from storage.pulsar.client.bulk_readers import SingleReader
from storage.pulsar.client.topic_readers import OpenReader, ReaderSource
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.fake_client import FakeMessageId

SETTINGS = PulsarSettings("pulsar://nowhere", "http://nowhere")


class ReaderClient:
    """Opens readers, unless `failure` is set. Calls of the reactor wait for `run_reactor`."""

    settings = SETTINGS

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.posted: list[Callable[[], object]] = []
        self.reactor_calls = SimpleNamespace(post=self.posted.append)
        self.closed = 0
        self.bulk: Any = None

    def reader(self, topic: str, start: Any, **_: object) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(close=self.close)

    def bulk_reader(self, topic: str, start: Any, queue: int) -> Any:
        return self.bulk or self.reader(topic, start)

    def close(self) -> None:
        self.closed += 1

    def run_reactor(self) -> None:
        while self.posted:
            self.posted.pop(0)()


class ScriptedReader:
    """Answers calls from a list, and records them: a number is the offset of a message, an
    exception is raised, a bool tells whether a message is available.

    It is a `BulkReader`, a reader of pulsar-client and that of its binding.
    """

    def __init__(self, *answers: int | bool | Exception) -> None:
        self._reader = self
        self._answers = list(answers)
        self.calls: list[str] = []

    def _answer(self, call: str) -> Any:
        self.calls.append(call)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def topic(self) -> str:
        return "t"

    def read(self, *_: int) -> Any:
        offset = self._answer("read")
        return [(Header(offset, offset, -1, 0, 0), 1, offset, b"a payload")]

    def read_next(self, wait_ms: int) -> Any:
        offset = self._answer("read")
        return SimpleNamespace(
            message_id=lambda: FakeMessageId(offset),
            properties=lambda: Header(offset, offset, -1, 0, 0).properties("kafka"),
            data=lambda: b"a payload",
        )

    def has_message_available(self) -> Any:
        return self._answer("is available")

    def close(self) -> None: ...


@pytest.fixture(params=["bulk", "single"])
def read(
    request: pytest.FixtureRequest, client: ReaderClient, source: ReaderSource
) -> Callable[[ScriptedReader], tuple[list[int], bool]]:
    """Reads the topic until its end; returns offsets and whether the end was reached."""

    def read_all(scripted: ScriptedReader) -> tuple[list[int], bool]:
        client.bulk = scripted if request.param == "bulk" else SingleReader(scripted)
        reader = OpenReader(source, None)
        found = reader.read(0, 1 << 30, 1 << 30)
        return [one.header.base_offset for one in found], reader.has_reached_end

    return read_all


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


def test_read_asks_once_for_the_end_of_the_topic(read):
    scripted = ScriptedReader(0, 1, pulsar.Timeout(), False)
    assert read(scripted) == ([0, 1], True)
    assert scripted.calls == ["read", "read", "read", "is available"]


def test_read_continues_while_a_message_is_available(read):
    assert read(ScriptedReader(0, pulsar.Timeout(), True, 1, pulsar.Timeout(), False)) == (
        [0, 1],
        True,
    )


def test_messages_read_before_the_end_cannot_be_determined_are_returned(read):
    scripted = ScriptedReader(0, 1, pulsar.Timeout(), pulsar.Timeout())
    assert read(scripted) == ([0, 1], False)


def test_read_times_out_if_the_end_cannot_be_determined(read):
    with pytest.raises(StorageFailed, match="read_timeout_seconds"):
        read(ScriptedReader(pulsar.Timeout(), pulsar.Timeout()))


def test_other_error_of_the_request_for_the_end_is_raised(read):
    with pytest.raises(pulsar.AlreadyClosed):
        read(ScriptedReader(0, pulsar.Timeout(), pulsar.AlreadyClosed()))
