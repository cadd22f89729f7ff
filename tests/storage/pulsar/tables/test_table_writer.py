"""A table's producer that the client library does not reconnect; no broker is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock

from storage.log import Fenced, StorageFailed
from storage.pulsar.client.reconnection import GIVE_UP_SECONDS
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.tables.table_writer import TableWriter


class StuckProducer:
    """`is_stored` is the outcome of each flush."""

    def __init__(self) -> None:
        self.is_stored = False
        self.is_attached = False
        self.is_closed = False
        self._sent = self._stored = 0
        self._producer = self

    def send_async(self, message: Any, callback: Any) -> None:
        self._sent += 1

    def flush(self) -> None:
        if not self.is_stored:
            raise pulsar.Timeout
        self._stored = self._sent

    def last_sequence_id(self) -> int:
        return self._stored

    def is_connected(self) -> bool:
        return self.is_attached

    def close(self) -> None:
        self.is_closed = True


class ClientOfOneProducer:
    def __init__(self, producer: StuckProducer) -> None:
        self._made = producer

    def producer(self, *arguments: Any, **options: Any) -> StuckProducer:
        return self._made

    def run(self, call: Callable[[], Any]) -> Deferred[Any]:
        return execute(call)

    run_flush = run


@pytest.fixture
def producer() -> StuckProducer:
    return StuckProducer()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def writer(producer: StuckProducer, clock: Clock, reasons: list[str]) -> TableWriter:
    settings = PulsarSettings("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
    client: Any = ClientOfOneProducer(producer)
    return TableWriter(client, settings, clock, "topic", lambda size: None, reasons.append)


async def put_fails(writer: TableWriter, error: type[Exception]) -> None:
    with pytest.raises(error):
        await writer.put({b"a": b"1"})


@ensureDeferred
async def test_table_is_given_up_when_its_producer_stays_disconnected(
    writer: TableWriter, producer: StuckProducer, clock: Clock, reasons: list[str]
) -> None:
    await writer.open()
    await put_fails(writer, StorageFailed)
    clock.advance(GIVE_UP_SECONDS - 1)
    await put_fails(writer, StorageFailed)
    assert (reasons, producer.is_closed) == ([], False)
    clock.advance(1)
    await put_fails(writer, Fenced)
    assert len(reasons) == 1
    assert "disconnected" in reasons[0]
    assert producer.is_closed
    await put_fails(writer, Fenced)


@ensureDeferred
async def test_table_with_a_connected_producer_is_not_given_up(
    writer: TableWriter, producer: StuckProducer, clock: Clock, reasons: list[str]
) -> None:
    producer.is_attached = True
    await writer.open()
    await put_fails(writer, StorageFailed)
    clock.advance(GIVE_UP_SECONDS)
    await put_fails(writer, StorageFailed)
    assert reasons == []


@ensureDeferred
async def test_connection_ends_the_time_in_which_a_producer_was_disconnected(
    writer: TableWriter, producer: StuckProducer, clock: Clock, reasons: list[str]
) -> None:
    await writer.open()
    await put_fails(writer, StorageFailed)
    clock.advance(GIVE_UP_SECONDS - 1)
    producer.is_attached = True
    await put_fails(writer, StorageFailed)
    producer.is_attached = False
    clock.advance(1)
    await put_fails(writer, StorageFailed)
    clock.advance(GIVE_UP_SECONDS - 1)
    await put_fails(writer, StorageFailed)
    assert reasons == []
    clock.advance(1)
    await put_fails(writer, Fenced)


@ensureDeferred
async def test_stored_put_ends_the_time_of_failures(
    writer: TableWriter, producer: StuckProducer, clock: Clock, reasons: list[str]
) -> None:
    await writer.open()
    await put_fails(writer, StorageFailed)
    clock.advance(GIVE_UP_SECONDS - 1)
    producer.is_stored = True
    await writer.put({b"a": b"2"})
    producer.is_stored = False
    clock.advance(1)
    await put_fails(writer, StorageFailed)
    assert reasons == []
