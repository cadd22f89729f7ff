"""Appends: offsets, reservations before and after sending, and which appends fail together."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from storage.log import (
    Entry,
    EntryTooLarge,
    Fenced,
    LogClosed,
    LogStatus,
    OffsetOutOfRange,
    StorageError,
    StorageFailed,
)
from storage.pulsar.client.exclusive_producer import InFlightLimit, InFlightMessage, LogEnd
from storage.pulsar.client.partition_producers import SingleProducer
from storage.pulsar.compaction.replaced_ranges import ReplacedRanges
from storage.pulsar.log.append_queue import AppendQueue, OpenedPartition
from storage.pulsar.log.entry_messages import MAX_MESSAGE_OVERHEAD, parse_header
from storage.pulsar.log.partition_rows import PartitionRow, PartitionState, decode_row
from tests.storage.pulsar.fake_client import FakeClient, FakeProducer, FakeTable, Ok, Timeout

KEY = b"k" * 20


class Scene:
    """A partition that ends at offset 10, or an empty one; `reserve_offsets` is 100."""

    def __init__(self, *, is_empty: bool = False, reserved: int = 0, **settings: Any) -> None:
        self.client = FakeClient(reserve_offsets=100, **settings)
        self.producer = FakeProducer()
        self.table = FakeTable()
        self.partition = PartitionState(
            self.table,
            KEY,
            PartitionRow(reserved=reserved, epochs=((1, 0),) if not is_empty else ()),
            ReplacedRanges(),
        )
        self.room = InFlightLimit(1 << 30, 1000)
        end = LogEnd(reserved, 0, -1) if is_empty else LogEnd(10, 1000, 7)
        opened = OpenedPartition(
            self.client,
            "persistent://a/b/t",
            "mixed_kafka",
            SingleProducer(self.producer, self.client.reactor_calls),
            3,
            self.partition,
            None,
            (0, 0),
            end,
            is_empty,
        )
        self.stored: list[int] = []
        self.appending = AppendQueue(opened, self.room, LogStatus(), self._stored, self._ended)
        self.over: StorageError | None = None

    def _stored(self, messages: list[InFlightMessage]) -> None:
        for sent in messages:
            self.stored.append(sent.header.base_offset)
            sent.callback(None)

    def _ended(self, error: StorageError, left: list[InFlightMessage]) -> None:
        self.over = error
        for sent in left:
            sent.errback(error)

    def append(self, *, records: int = 1, payload: bytes = b"x") -> list[Any]:
        """Append one entry at the end; its outcome is added to the list."""
        outcome: list[Any] = []
        base = self.appending.next.offset
        appended = self.appending.append([Entry(base, base + records - 1, 5, payload)])
        appended.when_ended(outcome.append, outcome.append)
        return outcome

    def answer(self, *results: Any) -> None:
        self.producer.answer(*results)
        self.client.reactor_calls.run()

    def row(self) -> PartitionRow:
        """The row that is being stored."""
        rows, _ = self.table.puts[0]
        return decode_row(rows[KEY] or b"")


def begun() -> Scene:
    """A scene with one message of this epoch, at offset 10."""
    scene = Scene()
    scene.append()
    scene.table.land()
    scene.answer(Ok)
    return scene


def test_first_append_waits_until_epoch_and_offsets_are_stored():
    scene = Scene()
    outcome = scene.append(records=5)
    assert scene.producer.sent == []
    assert scene.row() == PartitionRow(reserved=115, epochs=((1, 0), (3, 10)))
    scene.table.land()
    assert scene.producer.sent == [b"x"]
    scene.answer(Ok)
    assert outcome == [None]


def test_first_append_waits_for_its_epoch_though_its_offsets_are_reserved():
    scene = Scene(reserved=1000)
    scene.append()
    assert scene.producer.sent == []
    assert scene.row().epochs == ((1, 0), (3, 10))
    scene.table.land()
    assert scene.producer.sent == [b"x"]


def test_later_appends_are_sent_at_once():
    scene = begun()
    scene.append()
    scene.append()
    assert len(scene.producer.sent) == 3
    assert scene.table.puts == []


def test_offsets_are_reserved_before_they_are_needed():
    scene = begun()
    scene.append(records=55)
    assert len(scene.producer.sent) == 2
    assert scene.row().reserved == 66 + 100


def test_appends_beyond_reserved_offsets_wait_in_order():
    scene = begun()
    scene.append(records=500)
    scene.append()
    assert len(scene.producer.sent) == 1
    scene.table.land()
    assert len(scene.producer.sent) == 3
    scene.answer(Ok, Ok)
    assert scene.stored == [10, 11, 511]


def test_failed_reservation_fails_pending_appends():
    scene = begun()
    seen = []
    outcomes = [scene.append(records=500), scene.append()]
    scene.table.land(StorageFailed("no answer"))
    for (outcome,) in outcomes:
        assert isinstance(outcome, StorageFailed)
        seen.append(scene.appending.next.offset)
    assert seen == [11, 11]
    assert scene.room.reserved_operations == 0
    again = scene.append(records=500)
    scene.table.land()
    scene.answer(Ok)
    assert again == [None]


def test_failed_reservation_frees_no_offset_of_a_sent_append():
    scene = begun()
    scene.append()
    failed = scene.append(records=500)
    scene.table.land(StorageFailed("no answer"))
    assert isinstance(failed[0], StorageFailed)
    assert scene.appending.next.offset == 12


def test_append_within_reserved_offsets_waits_for_earlier_pending_ones():
    scene = begun()
    scene.append(records=500, payload=b"first")
    # As by another log of this partition, which was opened meanwhile.
    scene.partition.row = PartitionRow(reserved=10_000, epochs=scene.partition.row.epochs)
    scene.append(payload=b"second")
    assert scene.producer.sent == [b"x"]
    scene.table.land()
    assert scene.producer.sent == [b"x", b"first", b"second"]


def test_append_is_refused_while_pending_ones_are_failed():
    scene = begun()
    base = scene.appending.next.offset
    told = [
        scene.appending.append([Entry(base + 500 * n, base + 500 * n + 499, 5, b"x")])
        for n in range(2)
    ]
    during: list[Any] = []

    def append_again(_: BaseException) -> None:
        expected = scene.appending.next.offset
        scene.appending.append([Entry(expected, expected, 5, b"y")]).when_ended(
            during.append, during.append
        )

    told[0].when_ended(during.append, append_again)
    told[1].when_ended(during.append, lambda _: None)
    scene.table.land(StorageFailed("no answer"))
    assert list(map(type, during)) == [StorageFailed]


@pytest.mark.parametrize("is_empty", [True, False])
def test_append_retried_on_failure_is_sent(is_empty):
    scene = Scene(is_empty=is_empty)
    base = scene.appending.next.offset
    again: list[Any] = []
    first = scene.appending.append([Entry(base, base, 5, b"x")])
    first.when_ended(again.append, lambda _: again.append(scene.append(payload=b"again")))
    scene.table.land(StorageFailed("no answer"))
    scene.table.land()
    assert scene.producer.sent == [b"again"]
    scene.answer(Ok)
    if is_empty:
        scene.table.land()
    assert again == [[None]]


def test_fenced_table_ends_log():
    scene = Scene()
    (outcome,) = (scene.append(),)
    scene.table.land(Fenced("taken"))
    assert isinstance(outcome[0], Fenced)
    assert isinstance(scene.over, Fenced)


def test_empty_partition_reserves_offsets_between_first_message_and_its_result():
    scene = Scene(is_empty=True)
    outcome = scene.append()
    assert scene.row() == PartitionRow(reserved=0, epochs=((3, 0),))
    scene.table.land()
    second = scene.append()
    scene.answer(Ok)
    assert scene.row().reserved == 102
    scene.answer(Ok)
    assert (outcome, second, scene.stored) == ([], [], [])
    scene.table.land()
    assert (outcome, second, scene.stored) == ([None], [None], [0, 1])
    assert scene.table.puts == []


def test_empty_partition_continues_at_reserved_offset():
    scene = Scene(is_empty=True, reserved=5000)
    scene.append()
    assert scene.row() == PartitionRow(reserved=5000, epochs=((3, 5000),))


def test_outcome_is_unknown_if_first_reservation_fails():
    scene = Scene(is_empty=True)
    outcome = scene.append()
    scene.table.land()
    scene.answer(Ok)
    scene.table.land(StorageFailed("no answer"))
    assert isinstance(outcome[0], Fenced)
    assert isinstance(scene.over, Fenced)


def test_failed_send_fails_later_appends():
    scene = begun()
    outcomes = [scene.append(), scene.append(), scene.append(records=500)]
    scene.answer(Timeout)
    assert all(isinstance(outcome[0], Fenced) for outcome in outcomes)
    scene.client.reactor_calls.run()
    assert scene.room.reserved_operations == 0
    scene.table.land()
    assert len(scene.producer.sent) == 3


def test_headers_continue_from_each_other():
    scene = Scene()
    scene.appending.append([Entry(10, 14, 5, b"abc"), Entry(15, 15, 9, b"de")])
    scene.appending.append([Entry(16, 16, 2, b"f")])
    scene.table.land()
    headers = [parse_header(properties) for properties in scene.producer.properties]
    assert [
        (
            h.base_offset,
            h.last_offset,
            h.max_timestamp,
            h.bytes_before,
            h.leader_epoch,
            h.greatest_timestamp,
            h.entries,
        )
        for h in headers
    ] == [
        (10, 15, 9, 1000, 3, 9, 2),
        (16, 16, 2, 1005, 3, 9, 1),
    ]


def test_oversized_append_is_refused_without_using_offset():
    scene = Scene(message_bytes=MAX_MESSAGE_OVERHEAD + 10)
    outcome = scene.append(payload=b"x" * 11)
    assert isinstance(outcome[0], EntryTooLarge)
    assert scene.appending.next.offset == 10
    assert scene.append(payload=b"x" * 10) == []


def test_unexpected_offset_is_refused():
    outcome: list[Any] = []
    scene = Scene()
    scene.appending.append([Entry(11, 11, 5, b"x")]).when_ended(outcome.append, outcome.append)
    assert isinstance(outcome[0], OffsetOutOfRange)
    assert scene.room.reserved_operations == 0


def test_append_over_in_flight_limit_is_refused():
    scene = begun()
    scene.room.reserve(1 << 30)
    outcome = scene.append()
    assert isinstance(outcome[0], StorageFailed)
    assert scene.appending.next.offset == 11


def test_idle_fires_when_nothing_is_pending():
    scene = Scene(is_empty=True)
    scene.append()
    idle: list[None] = []
    Deferred.fromCoroutine(scene.appending.idle()).addCallback(idle.append)
    scene.table.land()
    scene.answer(Ok)
    assert idle == []
    scene.table.land()
    assert idle == [None]


def test_end_fails_all_pending_appends():
    scene = Scene()
    outcome = scene.append()
    scene.appending.end(LogClosed("closed"))
    assert isinstance(outcome[0], LogClosed)
    scene.table.land()
    assert scene.producer.sent == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_payload_is_passed_to_library_as_bytes(kind):
    scene = begun()
    scene.append(payload=kind(b"abc"))
    assert scene.producer.sent[-1] == b"abc"
    assert type(scene.producer.sent[-1]) is bytes
