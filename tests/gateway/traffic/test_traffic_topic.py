"""The same rows in a topic: whole, in order, and dropped where the store does not take them."""

from __future__ import annotations

import os

import pytest

from compat.records import records
from gateway.topics.topic_names import TRAFFIC_TOPIC
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.traffic_topic import BATCH_BYTES, TopicSink
from tests.fakes.broker import NOW, Started, ended, open_house


@pytest.fixture
def house():
    return open_house()


@pytest.fixture
def losses(house):
    return DroppedLines(house.clock.seconds)


@pytest.fixture
def sink(house, losses):
    return TopicSink(
        house.broker.topics,
        {"retention.ms": "1000"},
        losses,
        max_bytes=2 << 20,
        now=house.now,
        clock=house.clock,
        run=house.threads.run,
        start=house.background,
    )


def stored(house):
    """The values of all records of the topic."""
    entries = ended(house.partition(TRAFFIC_TOPIC).read(0, 64 << 20))
    return [
        (one.key, bytes(one.value), one.timestamp)
        for entry in entries
        for one in records(entry.payload)
    ]


def test_each_line_is_a_record_in_its_order(house, sink):
    sink.put(b'{"a":1}\n{"a":2}\n', 2)
    sink.put(b'{"a":3}\n', 1)
    assert stored(house) == [(None, b'{"a":%d}' % number, NOW) for number in (1, 2, 3)]
    assert house.bugs == []


def test_the_topic_has_one_partition_and_the_retention_of_the_log(house, sink):
    sink.put(b"{}\n", 1)
    topic = house.broker.topics.get(TRAFFIC_TOPIC).topic
    assert (topic.partitions, topic.configs["retention.ms"]) == (1, "1000")


def test_a_topic_that_is_there_is_used_as_it_is(house, sink):
    house.topic(TRAFFIC_TOPIC, 1, retention_ms="5")
    sink.put(b"{}\n", 1)
    assert house.broker.topics.get(TRAFFIC_TOPIC).topic.configs["retention.ms"] == "5"
    assert len(stored(house)) == 1


def test_many_lines_become_batches_of_bounded_size(house, sink):
    lines = [os.urandom(500).hex().encode() for _ in range(1000)]
    sink.put(b"".join(line + b"\n" for line in lines), len(lines))
    assert [value for _, value, _ in stored(house)] == lines
    entries = ended(house.partition(TRAFFIC_TOPIC).read(0, 64 << 20))
    assert len(entries) == -(-1000 * 1000 // BATCH_BYTES)
    assert all(len(entry.payload) <= BATCH_BYTES for entry in entries)


def test_what_waits_for_the_store_is_bounded(house, sink, losses):
    house.threads.hold()
    line = b"x" * ((1 << 20) - 1) + b"\n"
    for _ in range(4):
        sink.put(line, 1)
    assert losses.total == 2
    house.threads.release()
    assert len(stored(house)) == 2
    # What is stored waits no more.
    for _ in range(4):
        sink.put(line, 1)
    assert (losses.total, len(stored(house))) == (2, 6)


def test_what_the_store_refuses_is_dropped_and_what_comes_after_it_is_stored(house, sink, losses):
    sink.put(b"{}\n", 1)
    house.store.refuse_writes = True
    sink.put(b"{}\n{}\n", 2)
    assert losses.total == 2
    house.store.refuse_writes = False
    sink.put(b"{}\n", 1)
    assert len(stored(house)) == 2
    assert house.bugs == []


def test_the_end_waits_for_what_is_under_way_but_not_for_ever(house, sink, losses):
    ended(sink.stop(5))
    house.threads.hold()
    sink.put(b"{}\n", 1)
    waiting = Started(sink.stop(5))
    assert not waiting.is_done
    house.threads.release()
    assert waiting.is_done
    house.threads.hold()
    sink.put(b"{}\n", 1)
    sink.put(b"{}\n", 1)
    waiting = Started(sink.stop(5))
    house.clock.advance(5)
    assert waiting.is_done
    assert losses.total == 1
