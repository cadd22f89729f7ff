"""Message ids and indexes.

The ids are from pulsar-client 3.13 with a 4.0.8 broker; the indexes are what the broker reported.
"""

from __future__ import annotations

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log import StorageFailed
from storage.pulsar.log.offset_index import Position
from storage.pulsar.native.message_offsets import (
    START,
    EntryAssembler,
    IndexCounter,
    MessageIdParser,
    MessageLocation,
    parse_message_id,
)


def at(ledger, entry, number=0, messages=1, first_chunk=None):
    return MessageLocation(Position(ledger, entry), number, messages, first_chunk)


@pytest.mark.parametrize(
    ("serialized", "location"),
    [
        (b"\x08#\x10\x00 \x000\x03", at(35, 0, 0, 3)),
        (b"\x08#\x10\x00 \x020\x03", at(35, 0, 2, 3)),
        (b"\x08#\x10\x01", at(35, 1)),
        (pulsar.MessageId(-1, 7, 300, -1).serialize(), at(7, 300)),
        (pulsar.MessageId(2, 1 << 40, 5, -1).serialize(), at(1 << 40, 5)),
    ],
)
def test_message_id_has_entry_number_and_batch_size(serialized, location):
    assert parse_message_id(serialized) == location


def test_chunked_message_id_has_first_chunk():
    assert parse_message_id(b"\x08\x1d\x10\x04:\x04\x08\x1d\x10\x02") == at(
        29, 4, first_chunk=Position(29, 2)
    )


def test_locations_in_entry_follow_from_first_message():
    first, second, third = (
        pulsar.MessageId.deserialize(b"\x08#\x10\x00 %c0\x03" % number) for number in range(3)
    )
    other = pulsar.MessageId(-1, 36, 0, -1)
    parser = MessageIdParser()
    assert [parser.parse(one) for one in (first, second, third, other, second)] == [
        at(35, 0, 0, 3),
        at(35, 0, 1, 3),
        at(35, 0, 2, 3),
        at(36, 0),
        at(35, 0, 1, 3),
    ]


@given(st.binary(max_size=30))
def test_any_bytes_parse_to_location_or_are_refused(junk):
    try:
        location = parse_message_id(junk)
    except StorageFailed:
        return
    assert 0 <= location.number < location.messages


def test_index_is_counted_from_anchor():
    counter = IndexCounter()
    counter.anchor(Position(29, 0), 0)
    assert [counter.next(at(29, 1, 4, 5)), counter.next(at(29, 2))] == [5, 6]


@pytest.mark.parametrize("location", [at(29, 3), at(30, 0), at(29, 2, first_chunk=Position(29, 2))])
def test_index_of_nonadjacent_entry_must_be_read(location):
    counter = IndexCounter()
    counter.anchor(Position(29, 1), 5)
    assert counter.next(location) is None


def test_index_continues_from_anchor_after_chunks():
    counter = IndexCounter()
    counter.anchor(Position(29, 1), 5)
    assert counter.next(at(29, 4, first_chunk=Position(29, 2))) is None
    counter.anchor(Position(29, 4), 8)
    assert counter.next(at(29, 5)) == 9


def assembled(locations, after=START):
    assembler = EntryAssembler(after)
    return [
        found
        for number, location in enumerate(locations)
        if (found := assembler.add(location, lambda number=number: number)) is not None
    ]


def test_messages_of_batch_form_one_entry():
    assert assembled([at(1, 0), at(1, 1, 0, 2), at(1, 1, 1, 2), at(2, 0)]) == [[0], [1, 2], [3]]


def test_redelivered_messages_are_ignored():
    first, second = at(1, 1, 0, 2), at(1, 1, 1, 2)
    assert assembled([at(1, 0), first, at(1, 0), first, second, second, first, at(1, 2)]) == [
        [0],
        [1, 4],
        [7],
    ]


def test_messages_before_start_are_ignored():
    assert assembled([at(1, 0), at(1, 1), at(1, 2)], after=Position(1, 1)) == [[2]]


@pytest.mark.parametrize("locations", [[at(1, 0, 0, 2), at(1, 1)], [at(1, 0, 1, 2)]])
def test_incomplete_entry_is_refused(locations):
    with pytest.raises(StorageFailed):
        assembled(locations)
