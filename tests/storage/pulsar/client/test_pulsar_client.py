"""The client never blocks the reactor, and its errors are StorageErrors."""

from __future__ import annotations

import socket
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pulsar
import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from storage.log import (
    EntryTooLarge,
    Fenced,
    LogClosed,
    NotAllowed,
    StorageError,
    StorageFailed,
    UnknownTopic,
)
from storage.pulsar.client import bulk_client
from storage.pulsar.client.pulsar_client import PulsarClient, to_storage_error
from storage.pulsar.settings import PulsarSettings


@pytest.fixture
def silent_address() -> Iterator[str]:
    """An address that accepts connections and never sends anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def impatient(address: str) -> PulsarSettings:
    return PulsarSettings(
        f"pulsar://{address}",
        f"http://{address}",
        operation_timeout_seconds=1,
        close_timeout_seconds=2,
    )


def patient(address: str) -> PulsarSettings:
    """Every timeout is an hour."""
    return replace(
        impatient(address), operation_timeout_seconds=3600, connection_timeout_seconds=3600
    )


def soon(coroutine: Coroutine[Any, Any, None]) -> Deferred[None]:
    """Fails if the call waits for a broker; a busy machine needs far less."""
    return Deferred.fromCoroutine(coroutine).addTimeout(60, reactor)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (pulsar.ProducerFenced(), Fenced),
        (pulsar.TopicNotFound(), UnknownTopic),
        (pulsar.TopicTerminated(), LogClosed),
        (pulsar.MessageTooBig(), EntryTooLarge),
        (pulsar.Timeout(), StorageFailed),
        (pulsar.AuthorizationError(), NotAllowed),
        (pulsar.ConnectError(), StorageFailed),
        (RuntimeError("anything else"), StorageFailed),
        (Fenced("as it was"), Fenced),
    ],
)
def test_library_errors_become_storage_errors(error, meaning):
    assert type(to_storage_error(error)) is meaning
    assert str(to_storage_error(error))


@ensureDeferred
async def test_open_does_not_wait_for_a_broker(silent_address):
    client = PulsarClient(patient(silent_address), reactor)
    await soon(client.open())
    await soon(client.close())


@ensureDeferred
async def test_request_to_silent_broker_times_out(silent_address):
    client = PulsarClient(impatient(silent_address), reactor)
    await client.open()
    with pytest.raises(StorageFailed):
        await client.run(
            lambda: client.producer(
                "persistent://public/default/t", pulsar.ProducerAccessMode.Shared
            )
        )
    await client.close()


@ensureDeferred
async def test_close_does_not_wait_for_running_calls(silent_address):
    client = PulsarClient(patient(silent_address), reactor)
    await client.open()
    begun: Deferred[None] = Deferred()

    def ask() -> pulsar.Producer:
        client.reactor_calls.post(lambda: begun.callback(None))
        return client.producer("persistent://public/default/t", pulsar.ProducerAccessMode.Shared)

    asked = client.run(ask)
    asked.addErrback(lambda failure: failure.trap(StorageError))
    await begun
    await soon(client.close())
    await asked.addTimeout(60, reactor)


@ensureDeferred
async def test_closed_client_refuses_calls(silent_address):
    client = PulsarClient(impatient(silent_address), reactor)
    await client.open()
    await client.close()
    await client.close()
    with pytest.raises(LogClosed):
        client.run(lambda: None)


@ensureDeferred
async def test_invalid_address_fails_at_open():
    client = PulsarClient(PulsarSettings("nonsense://", "http://127.0.0.1:1"), reactor)
    with pytest.raises(StorageFailed, match="nonsense"):
        await client.open()


@ensureDeferred
async def test_reason_for_reading_with_the_binding_is_logged(silent_address, monkeypatch, caplog):
    monkeypatch.setattr(bulk_client, "compiled", None)
    monkeypatch.setattr(bulk_client, "BINDING_REASON", "no such module")
    client = PulsarClient(impatient(silent_address), reactor)
    with caplog.at_level("INFO"):
        await client.open()
    await client.close()
    assert "no such module" in caplog.text
