"""The search of the first message that begins before the last one is known."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from storage.log import StorageFailed
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import PartitionReader
from storage.pulsar.settings import PulsarSettings
from tests.fakes.broker import Started


def message(base: int, epoch: int) -> StoredMessage:
    return StoredMessage(Header(base, base, 0, 0, epoch, 0), Position(1, base), b"x")


class Searches:
    """Stands for `MessageSearch`; each search waits for its result."""

    def __init__(self) -> None:
        self.begun: list[Deferred[Any]] = []

    async def first(self) -> Any:
        self.begun.append(Deferred())
        return await self.begun[-1]


@pytest.fixture
def reader() -> PartitionReader:
    settings = PulsarSettings("pulsar://nowhere", "http://nowhere")
    nothing: Any = type("Client", (), {"settings": settings})()
    made = PartitionReader(nothing, nothing, nothing, "t", settings)
    made._message_search = Searches()  # type: ignore[assignment]
    return made


def searches(reader: PartitionReader) -> list[Deferred[Any]]:
    found: Any = reader._message_search
    return found.begun


def test_search_that_has_begun_gives_the_next_first_message(reader):
    reader.search_first()
    searches(reader)[0].callback(message(4, 1))
    assert Started(reader.first()).result.header.base_offset == 4
    assert len(searches(reader)) == 1
    again = Started(reader.first())
    searches(reader)[1].callback(message(5, 1))
    assert again.result.header.base_offset == 5


def test_message_of_a_leader_that_turned_out_to_be_fenced_is_searched_again(reader):
    reader.search_first()
    searches(reader)[0].callback(message(0, 1))
    reader.add_epoch(2, 0)
    first = Started(reader.first())
    searches(reader)[1].callback(message(0, 2))
    assert first.result.header.leader_epoch == 2


def test_failed_search_fails_the_call_that_uses_it(reader):
    reader.search_first()
    searches(reader)[0].errback(StorageFailed("no answer"))
    assert isinstance(Started(reader.first()).failure, StorageFailed)
