from __future__ import annotations

import os

import pytest

from compat.message_sets import read_records
from gateway.topics.topic_names import TRAFFIC_TOPIC
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.traffic_topic import BATCH_BYTES, TopicSink
from tests.fakes.broker import NOW, Started, ended, open_environment


@pytest.fixture
def env():
    return open_environment()


@pytest.fixture
def losses(env):
    return DroppedLines(env.clock.seconds)


@pytest.fixture
def sink(env, losses):
    return TopicSink(
        env.broker.topics,
        {"retention.ms": "1000"},
        losses,
        max_bytes=2 << 20,
        now=env.now,
        clock=env.clock,
        run=env.threads.run,
        start=env.background,
    )


def stored(env):
    """Return the values of all records of the topic."""
    entries = ended(env.partition(TRAFFIC_TOPIC).read(0, 64 << 20))
    return [
        (one.key, bytes(one.value), one.timestamp)
        for entry in entries
        for one in read_records(entry.payload)
    ]


def test_each_line_is_a_record_in_order(env, sink):
    sink.put(b'{"a":1}\n{"a":2}\n', 2)
    sink.put(b'{"a":3}\n', 1)
    assert stored(env) == [(None, b'{"a":%d}' % number, NOW) for number in (1, 2, 3)]
    assert env.bugs == []


def test_traffic_topic_has_one_partition_and_log_retention(env, sink):
    sink.put(b"{}\n", 1)
    topic = env.broker.topics.get(TRAFFIC_TOPIC).topic
    assert (topic.partitions, topic.configs["retention.ms"]) == (1, "1000")


def test_existing_traffic_topic_is_used_unchanged(env, sink):
    env.topic(TRAFFIC_TOPIC, 1, retention_ms="5")
    sink.put(b"{}\n", 1)
    assert env.broker.topics.get(TRAFFIC_TOPIC).topic.configs["retention.ms"] == "5"
    assert len(stored(env)) == 1


def test_lines_are_split_into_bounded_batches(env, sink):
    lines = [os.urandom(500).hex().encode() for _ in range(1000)]
    sink.put(b"".join(line + b"\n" for line in lines), len(lines))
    assert [value for _, value, _ in stored(env)] == lines
    entries = ended(env.partition(TRAFFIC_TOPIC).read(0, 64 << 20))
    assert len(entries) == -(-1000 * 1000 // BATCH_BYTES)
    assert all(len(entry.payload) <= BATCH_BYTES for entry in entries)


def test_queue_to_store_is_bounded(env, sink, losses):
    env.threads.hold()
    line = b"x" * ((1 << 20) - 1) + b"\n"
    for _ in range(4):
        sink.put(line, 1)
    assert losses.total == 2
    env.threads.release()
    assert len(stored(env)) == 2
    # Stored rows no longer count as waiting.
    for _ in range(4):
        sink.put(line, 1)
    assert (losses.total, len(stored(env))) == (2, 6)


def test_lines_rejected_by_store_are_dropped_and_later_ones_stored(env, sink, losses):
    sink.put(b"{}\n", 1)
    env.store.refuse_writes = True
    sink.put(b"{}\n{}\n", 2)
    assert losses.total == 2
    env.store.refuse_writes = False
    sink.put(b"{}\n", 1)
    assert len(stored(env)) == 2
    assert env.bugs == []


def test_stop_waits_for_appends_up_to_timeout(env, sink, losses):
    ended(sink.stop(5))
    env.threads.hold()
    sink.put(b"{}\n", 1)
    waiting = Started(sink.stop(5))
    assert not waiting.is_done
    env.threads.release()
    assert waiting.is_done
    env.threads.hold()
    sink.put(b"{}\n", 1)
    sink.put(b"{}\n", 1)
    waiting = Started(sink.stop(5))
    env.clock.advance(5)
    assert waiting.is_done
    assert losses.total == 1
