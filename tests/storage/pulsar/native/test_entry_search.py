"""Searches for entries on a real broker. The expected indexes are counted from what was sent."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pytest_twisted import ensureDeferred
from twisted.internet import reactor

from storage.pulsar.admin.admin_api import NotFound, PulsarAdmin
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.entry_search import EntryFinder
from tests.storage.pulsar.native_application import NativeApplication
from tests.testkit.settle import settle
from tests.testkit.tenant import Tenant


@pytest.fixture
def sender(pulsar: Tenant) -> Iterator[NativeApplication]:
    made = NativeApplication(pulsar)
    yield made
    made.client.close()


@pytest.fixture
def finder(sender: NativeApplication) -> Iterator[EntryFinder]:
    admin = PulsarAdmin(sender.settings, reactor)
    yield EntryFinder(admin, sender.topic)
    settle(admin.close())


@pytest.mark.peer
@ensureDeferred
async def test_index_counts_messages_and_chunks_across_ledgers(
    sender: NativeApplication, finder: EntryFinder
) -> None:
    sender.send(b"0")
    sender.batch(b"1", b"2", b"3")
    sender.unload()
    sender.send(b"c" * 12_000_000, chunked=True)
    began = time.time() * 1000
    sender.send(b"7")
    entries = await finder.entries()
    peeked = [await finder.peek(entries.position(number)) for number in range(len(entries))]
    assert [(one.index, one.messages) for one in peeked] == [
        (0, 1),
        (3, 3),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
    ]
    assert [(one.chunk, one.chunks) for one in peeked] == [
        (-1, 0),
        (-1, 0),
        (0, 3),
        (1, 3),
        (2, 3),
        (-1, 0),
    ]
    assert began - 1000 <= peeked[-1].publish_time <= time.time() * 1000 + 1000


@pytest.mark.peer
@ensureDeferred
async def test_entry_is_found_by_index(sender: NativeApplication, finder: EntryFinder) -> None:
    for number in range(6):
        sender.batch(*[b"%d" % number] * (number + 1))
        if number == 2:
            sender.unload()
    entries = await finder.entries()
    found = [
        await finder.first(entries, lambda one, wanted=wanted: one.index >= wanted)
        for wanted in (0, 1, 2, 3, 20, 21)
    ]
    assert [one and one[1].index for one in found] == [0, 2, 2, 5, 20, None]
    assert [one and entries.number(one[0]) for one in found] == [0, 1, 1, 2, 5, None]


@pytest.mark.peer
@ensureDeferred
async def test_peek_at_trimmed_entry_raises_not_found(
    sender: NativeApplication, finder: EntryFinder
) -> None:
    sender.send(b"0")
    with pytest.raises(NotFound):
        await finder.peek(Position(0, 0))
