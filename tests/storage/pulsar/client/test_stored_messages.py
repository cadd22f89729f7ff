"""Many messages at once: what a read takes, and their entries; compiled and in Python."""

from __future__ import annotations

from types import ModuleType

import pytest

from storage.log import Entry
from storage.pulsar.client import bulk_client, stored_messages
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position

ALL = 1 << 63


@pytest.fixture(params=["python", "compiled"])
def functions(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return stored_messages
    if bulk_client.compiled is None:
        pytest.skip("the compiled module is not used")
    return bulk_client.compiled


def message(offset: int, size: int = 10, *, entries: int = 1) -> StoredMessage:
    header = Header(offset, offset, 5, 100 * offset, 1, 7, entries)
    return StoredMessage(header, Position(1, offset), bytes(size))


def offsets(messages: list[StoredMessage]) -> list[int]:
    return [one.header.base_offset for one in messages]


@pytest.mark.parametrize(
    ("had", "waiting", "end", "room", "most", "taken", "room_left", "is_full"),
    [
        pytest.param(0, 3, 100, 1000, ALL, 3, 970, False, id="all fit"),
        pytest.param(0, 3, 100, 20, ALL, 2, 0, False, id="no room is left"),
        pytest.param(0, 3, 100, 25, ALL, 2, 5, True, id="the next one is too large"),
        pytest.param(0, 3, 100, 5, ALL, 1, -5, False, id="at least one"),
        pytest.param(0, 3, 100, 0, ALL, 1, -10, False, id="one without room"),
        pytest.param(1, 3, 100, 5, ALL, 0, 5, True, id="none after another one"),
        pytest.param(0, 3, 2, 1000, ALL, 2, 980, True, id="the end is reached"),
        pytest.param(0, 3, 0, 1000, ALL, 0, 1000, True, id="all begin at the end or after"),
        pytest.param(0, 3, 100, 1000, 2, 2, 980, False, id="most messages"),
        pytest.param(2, 3, 100, 1000, 3, 1, 990, False, id="most messages with earlier ones"),
        pytest.param(0, 0, 100, 1000, ALL, 0, 1000, False, id="none is waiting"),
    ],
)
def test_read_takes_messages_that_fit(
    functions, had, waiting, end, room, most, taken, room_left, is_full
):
    found = [message(1000 + number) for number in range(had)]
    some = [message(number) for number in range(waiting)]
    assert functions.take(some, found, end, room, most) == (room_left, is_full)
    assert offsets(found[had:]) == list(range(taken))
    assert offsets(some) == list(range(taken, waiting))


def test_messages_with_several_entries_are_unpacked_elsewhere(functions):
    assert functions.entries_of([message(0), message(1, entries=2)]) is None


def test_entries_have_offsets_time_and_payload_of_their_messages():
    assert stored_messages.entries_of([message(3), message(4, 2)]) == [
        Entry(3, 3, 5, bytes(10)),
        Entry(4, 4, 5, bytes(2)),
    ]


def test_no_messages_have_no_entries(functions):
    assert functions.entries_of([]) == []
