"""Puts of the metadata log end whatever happens while they are stored; no broker is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from storage.log import Fenced
from storage.pulsar.cluster.metadata_log import PulsarMetadataLog, WriterTerm
from tests.fakes.broker import Started
from tests.storage.pulsar.fake_client import FakeClient


@pytest.fixture
def puts() -> list[Deferred[None]]:
    """The outcomes of the writer's puts."""
    return []


@pytest.fixture
def log(puts: list[Deferred[None]]) -> PulsarMetadataLog:
    """The log of a gateway that is the writer."""
    client: Any = FakeClient()
    made = PulsarMetadataLog(client, cast(Any, None), client.settings, cast(Any, Clock()))

    def put(rows: object) -> Deferred[None]:
        puts.append(Deferred())
        return puts[-1]

    async def close() -> None:
        pass

    made._term = WriterTerm(
        cast(Any, SimpleNamespace(stop=lambda: None)),
        cast(Any, SimpleNamespace(put=put, close=close)),
    )
    return made


@pytest.mark.parametrize("error", [Fenced("taken"), ZeroDivisionError()])
def test_puts_fail_if_the_loss_of_the_role_is_not_handled(
    log: PulsarMetadataLog,
    puts: list[Deferred[None]],
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log.when_lost(lambda reason: 1 // 0)  # type: ignore[arg-type,return-value]
    waiting = [Started(cast(Any, _await(log.put({b"%d" % number: b"x"})))) for number in range(2)]
    puts[0].errback(error)
    assert [type(one.failure) for one in waiting] == [Fenced, Fenced]
    assert not log.is_writer
    assert "bug: the loss of the metadata log was not handled" in caplog.text


async def _await(result: Any) -> None:
    await result
