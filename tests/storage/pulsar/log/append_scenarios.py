"""Random appends to a log whose producer is a fake, and what they have changed after each step.

As a program it prints the states of some scenarios, for a comparison with another process.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any, cast

import pulsar

from storage.log import Entry, StorageFailed
from storage.pulsar.client.exclusive_producer import IN_FLIGHT_OVERHEAD, InFlightLimit, LogEnd
from storage.pulsar.client.partition_producers import SingleProducer
from storage.pulsar.log import offset_index
from storage.pulsar.log.append_queue import OpenedPartition
from storage.pulsar.log.entry_messages import MAX_MESSAGE_OVERHEAD
from storage.pulsar.log.partition_log import PulsarLog
from storage.pulsar.log.partition_reader import PartitionReader
from storage.pulsar.log.partition_rows import PartitionRow, PartitionState
from storage.tail import TailCache
from tests.storage.pulsar.fake_client import FakeClient, FakeProducer, FakeTable, Ok, Timeout

STEPS = 100
SPACING = 150
"""Initial distance of index entries, so that a scenario has several."""

FAILURES = (Timeout, pulsar.Result.ProducerFenced, pulsar.Result.TopicTerminated)


class NoCache:
    """A reader cache without readers."""

    def forget(self, source: object) -> None: ...


class Scenario:
    """A partition with a random start; steps append, store and fail."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        is_empty = random.random() < 0.2
        self.told: list[object] = []
        self.client = FakeClient(
            reserve_offsets=random.choice([6, 60, 1000]),
            message_bytes=MAX_MESSAGE_OVERHEAD + 80,
            index_marks=4,
        )
        self.producer = FakeProducer()
        self.table = FakeTable()
        self.room = InFlightLimit(5 * (IN_FLIGHT_OVERHEAD + 40), 8)
        self.tail = TailCache(2000)
        partition = PartitionState(self.table, b"k" * 20, PartitionRow())
        client = cast(Any, self.client)
        self.reader = PartitionReader(
            client, cast(Any, None), cast(Any, NoCache()), "t", self.client.settings
        )
        self.log = PulsarLog(
            OpenedPartition(
                client,
                "t",
                "kafka",
                SingleProducer(self.producer, cast(Any, self.client.reactor_calls)),
                3,
                partition,
                self.reader,
                (0, 0),
                LogEnd(0, 0, -1) if is_empty else LogEnd(10, 1000, 4),
                is_empty,
                random.choice([0, 0, 2]),
            ),
            self.room,
            self.tail,
            cast(Any, None),
            cast(Any, None),
            lambda _, error: self.told.append(("end", repr(error))),
        )
        if random.random() < 0.5:
            self.log.watch(lambda: self.told.append(("changed", self.log.end_offset)))

    def step(self, name: int) -> None:
        kind = self.random.choice(["append"] * 6 + ["answer"] * 5 + ["land"] * 3 + ["rare"])
        if kind == "append":
            self._append(name)
        elif kind == "answer":
            self._answer([Ok] * self.random.randrange(1, 6))
        elif kind == "land" and self.table.puts:
            error = StorageFailed("no answer") if self.random.random() < 0.05 else None
            self.table.land(error)
        elif self.random.random() < 0.03:
            self._answer([Ok] * self.random.randrange(2) + [self.random.choice(FAILURES), Ok])
        elif self.random.random() < 0.02:
            self.log.close()
        elif self.random.random() < 0.02:
            self.producer.refuses = pulsar.AlreadyClosed()

    def _append(self, name: int) -> None:
        def stored(result: object) -> None:
            self.told.append((name, result, self.log.end_offset))
            if name % 10 == 3:
                raise ZeroDivisionError
            if name % 10 == 5 and self.log.status.end_reason is None:
                self._append(name + 1000)

        self.log.append(self._entries()).when_ended(  # type: ignore[attr-defined]
            stored, lambda failure: self.told.append((name, repr(failure)))
        )

    def _entries(self) -> Any:
        """Mostly one entry at the end of the log, in a tuple."""
        random, entries = self.random, []
        offset = self.log.next_offset + random.choice([0] * 20 + [1])
        for _ in range(random.choice([1] * 20 + [0, 2])):
            last = offset + random.choice([0] * 12 + [3] * 6 + [-1])
            size = random.choice([random.randrange(80)] * 15 + [81])
            payload = random.choice([bytes, bytes, bytearray, memoryview])(bytes(size))
            entries.append(Entry(offset, last, random.randrange(-1, 9), payload))
            offset = last + 1
        return random.choice([tuple, tuple, list])(entries)

    def _answer(self, results: list[Any]) -> None:
        self.producer.answer(*results[: len(self.producer.waiting)])
        if self.random.random() < 0.8:
            self.client.reactor_calls.run()

    def state(self) -> object:
        queue, index = cast(Any, self.log)._append_queue, cast(Any, self.reader)._index
        resident = cast(Any, self.log)._resident
        return (
            list(self.told),
            (queue.next, queue._sent_end, queue.has_stored_epoch, len(queue._pending)),
            (len(queue._producer._in_flight), queue._producer.is_closed),
            (self.room.reserved_bytes, self.room.reserved_operations),
            (self.producer.sent[-3:], self.producer.properties[-3:]),
            (self.log.start_offset, self.log.end_offset, self.log.next_offset, self.log.size),
            [list(column) for column in index._columns()],
            (index._known_until, index._spacing, cast(Any, self.reader)._newest),
            [(one.base_offset, one.max_timestamp, bytes(one.payload)) for one in resident.entries],
            (resident.begin, cast(Any, self.tail)._held),
        )


def states(seed: int) -> list[str]:
    """The states after each step of the scenario with this number."""
    spacing, offset_index.INITIAL_SPACING = offset_index.INITIAL_SPACING, SPACING
    try:
        scenario, found = Scenario(seed), []
    finally:
        offset_index.INITIAL_SPACING = spacing
    for name in range(STEPS):
        scenario.step(name)
        found.append(repr(scenario.state()))
    return found


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        print("\n".join(states(number)))
