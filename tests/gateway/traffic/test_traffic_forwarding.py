"""Rows of the traffic topic that another gateway leads."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from compat.message_sets import read_records
from gateway.cluster.calls import Calls
from gateway.cluster.view import UNKNOWN, ClusterView
from gateway.topics.topic_names import TRAFFIC_TOPIC
from gateway.traffic.dropped_lines import DroppedLines
from gateway.traffic.traffic_forwarding import TrafficForwarding, serve_traffic_rows
from gateway.traffic.traffic_topic import MOVE_SECONDS, TopicSink
from tests.fakes.broker import Started, ended, open_environment
from tests.gateway.cluster.fake_inboxes import FakeInboxes

HERE, LEADER = 1, 2


class TwoGateways:
    """One writes rows, the other leads the traffic topic. Both know the topic."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inboxes = FakeInboxes(self.clock)
        self.view = ClusterView(HERE, "C" * 22, 1)
        self.view.set_leader(0, LEADER, 0)
        calls = {
            node_id: Calls(
                self.inboxes.sender(node_id), self.clock, node_id, 1, {HERE: 1, LEADER: 1}.get
            )
            for node_id in (HERE, LEADER)
        }
        for node_id, one in calls.items():
            self.inboxes.receivers[node_id] = one.on_message
        self.leader = open_environment(clock=self.clock)
        self.writer = open_environment(clock=self.clock)
        for env in (self.leader, self.writer):
            env.topic(TRAFFIC_TOPIC, 1)
        serve_traffic_rows(calls[LEADER], self.leader.broker.topics, self.leader.now)
        self.losses = DroppedLines(self.clock.seconds)
        self.sink = TopicSink(
            self.writer.broker.topics,
            {},
            self.losses,
            max_bytes=2 << 20,
            now=self.writer.now,
            clock=self.clock,
            run=self.writer.threads.run,
            start=self.writer.background,
            forwarding=TrafficForwarding(calls[HERE], self.view),
        )

    def write(self, rows: bytes, seconds: float = 1) -> None:
        self.sink.put(rows, rows.count(b"\n"))
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        self.clock.pump([0.1] * int(seconds * 10))


def rows_of(env):
    entries = ended(env.partition(TRAFFIC_TOPIC).read(0, 64 << 20))
    return [bytes(one.value) for entry in entries for one in read_records(entry.payload)]


@pytest.fixture
def pair():
    made = TwoGateways()
    yield made
    assert made.leader.bugs == made.writer.bugs == []


def test_rows_are_appended_at_the_leader(pair):
    pair.write(b'{"a":1}\n{"a":2}\n')
    pair.write(b'{"a":3}\n')
    assert rows_of(pair.leader) == [b'{"a":1}', b'{"a":2}', b'{"a":3}']
    assert (rows_of(pair.writer), pair.losses.total) == ([], 0)


def test_rows_are_appended_here_once_the_partition_has_moved_here(pair):
    pair.view.set_leader(0, UNKNOWN, 0)
    pair.write(b'{"a":1}\n')
    assert rows_of(pair.writer) == []
    pair.view.set_leader(0, HERE, 1)
    pair.wait(1)
    assert (rows_of(pair.writer), rows_of(pair.leader)) == ([b'{"a":1}'], [])


def test_rows_are_repeated_until_the_leader_answers(pair):
    pair.inboxes.loses = lambda sender, target: target == HERE
    pair.write(b'{"a":1}\n', 15)
    pair.inboxes.loses = lambda sender, target: False
    pair.wait(15)
    assert set(rows_of(pair.leader)) == {b'{"a":1}'}
    assert pair.losses.total == 0


def test_rows_are_dropped_if_nothing_leads_the_partition(pair):
    pair.view.set_leader(0, UNKNOWN, 0)
    pair.write(b'{"a":1}\n{"a":2}\n', MOVE_SECONDS - 1)
    assert pair.losses.total == 0
    pair.wait(2)
    assert pair.losses.total == 2


def test_rows_that_the_leader_refuses_are_dropped(pair):
    pair.leader.store.refuse_writes = True
    pair.write(b'{"a":1}\n')
    assert pair.losses.total == 1
    pair.leader.store.refuse_writes = False
    pair.write(b'{"a":2}\n')
    assert rows_of(pair.leader) == [b'{"a":2}']


@pytest.mark.parametrize("content", [b"", b"short"])
def test_call_without_a_batch_fails(pair, content):
    calls = pair.sink._forwarding._calls
    call = Started(calls.call(LEADER, "append-traffic-rows", content, 5))
    pair.wait(1)
    assert "not a batch" in str(call.failure)
