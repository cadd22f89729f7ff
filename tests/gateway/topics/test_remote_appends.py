"""Produce at a gateway that does not lead the partition."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cluster.view import UNKNOWN
from gateway.handlers.produce import LARGE_BATCH_BYTES
from gateway.protocol.errors import ErrorCode, Refused
from gateway.protocol.wire.produce_codec import PartitionProduced
from gateway.topics import remote_appends
from gateway.topics.remote_appends import (
    APPEND_SECONDS,
    MAX_CALL_RECORD_BYTES,
    RemoteAppends,
    serve_appends,
)
from tests.fakes.broker import Started, ended
from tests.gateway.cluster.gateway_pair import CONTROLLER, FOLLOWER, GatewayPair
from tests.gateway.handlers.test_produce import request, set_for, start, stored
from tests.records.record_sets import batch, old_set

LIMIT = 1 << 20

#: Produce versions that have no field for the present leader.
PASSED_ON = range(10)


class LeaderElsewhere(GatewayPair):
    """The controller leads all partitions. The clients of the follower send it records."""

    def __init__(self, **configs: str) -> None:
        super().__init__()
        self.sent: list[int] = []
        receive = self.inboxes.receivers[CONTROLLER]
        self.inboxes.receivers[CONTROLLER] = lambda message: receive(self._noted(message))
        self.topic = self.controller.topic(
            "orders", 2, **{"max_message_bytes": str(8 << 20), **configs}
        )
        self.replay()
        broker = self.follower.broker
        self.view = broker.membership.view
        addresses = {"PLAINTEXT": ("127.0.0.1", 9092)}
        self.view.set_nodes({FOLLOWER: addresses, CONTROLLER: addresses})
        self.view.set_leader(0, CONTROLLER, 1)
        broker.leadership.resign(0)
        appends = RemoteAppends(self.calls[FOLLOWER], self.view, self.clock)
        object.__setattr__(broker, "remote_appends", appends)
        leader = self.controller
        serve_appends(
            self.calls[CONTROLLER],
            leader.broker.topics,
            lambda: LIMIT,
            leader.threads.run,
            leader.now,
        )

    def send(self, version: int, *records: memoryview, index: int = 0, **more: Any) -> Started:
        return start(self.follower, request(version, *[(index, one) for one in records], **more))

    def values(self, index: int = 0) -> list[bytes]:
        return [found[4] for found in stored(self.controller, index)]

    def _noted(self, message: bytes) -> bytes:
        self.sent.append(len(message))
        return message


def row(started: Started) -> PartitionProduced:
    ((_, (found,)),) = started.result.topics
    return found


def value(text: str) -> memoryview:
    """A batch with one record."""
    return batch([(None, text.encode())])


@pytest.fixture
def pair() -> LeaderElsewhere:
    return LeaderElsewhere()


@pytest.mark.parametrize("version", PASSED_ON)
def test_gateway_passes_records_on_to_the_leader(pair, version):
    for base_offset in (0, 2):
        sent = pair.send(version, set_for(version), index=1)
        pair.run()
        found = row(sent)
        assert (found.error_code, found.base_offset, found.log_append_time) == (0, base_offset, -1)
        assert found.log_start_offset == 0
    assert len(stored(pair.controller, 1)) == 4
    assert pair.follower.threads.calls == 0


@pytest.mark.parametrize("version", [10, 11, 12])
def test_versions_that_name_the_leader_are_not_passed_on(pair, version):
    found = row(pair.send(version, set_for(version)))
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert found.current_leader == (CONTROLLER, 1)
    assert pair.sent == []


def test_batches_of_idempotent_producers_are_not_passed_on(pair):
    sent = pair.send(9, batch(1, producer=(7, 0, 0)))
    assert row(sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.sent == []


def test_several_requests_keep_their_order_in_calls_one_after_the_other(pair):
    names = [f"record {number}" for number in range(20)]
    sent = [pair.send(9, value(one)) for one in names]
    assert pair.inboxes.sent == [(FOLLOWER, CONTROLLER)]
    pair.run()
    assert [row(one).base_offset for one in sent] == list(range(20))
    assert pair.values() == [one.encode() for one in names]
    # The first record, and all that arrived meanwhile.
    assert len(pair.sent) == 2


def test_call_has_a_limited_size(pair):
    large = [batch([(None, bytes([number]) * (MAX_CALL_RECORD_BYTES // 2))]) for number in range(5)]
    sent = [pair.send(9, one) for one in large]
    pair.run()
    assert [row(one).base_offset for one in sent] == list(range(5))
    assert max(pair.sent) < MAX_CALL_RECORD_BYTES
    assert [one[0] for one in pair.values()] == list(range(5))


def test_lost_reply_does_not_append_twice(pair):
    lost: list[int] = []

    def loses(sender: int, _: int) -> bool:
        if sender == CONTROLLER and not lost:
            lost.append(sender)
            return True
        return False

    pair.inboxes.loses = loses
    sent = pair.send(2, set_for(2))
    pair.run(3)
    assert lost
    assert row(sent).base_offset == 0
    assert len(stored(pair.controller)) == 2


def test_records_wait_until_the_leader_knows_that_it_leads(pair):
    leadership = pair.controller.broker.leadership
    leadership.resign(0)
    sent = pair.send(2, set_for(2))
    pair.run()
    assert not sent.is_done
    leadership.lead(0, 2)
    pair.run()
    assert row(sent).error_code == 0


def test_records_that_no_leader_accepts_in_time_are_refused(pair):
    pair.controller.broker.leadership.resign(0)
    sent = pair.send(2, set_for(2))
    pair.run(APPEND_SECONDS + 1)
    assert row(sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_appends_continue_after_a_refused_one(pair):
    pair.controller.broker.leadership.resign(0)
    refused = pair.send(2, set_for(2))
    pair.run(APPEND_SECONDS + 1)
    pair.controller.broker.leadership.lead(0, 2)
    sent = pair.send(2, set_for(2))
    pair.run()
    assert (row(refused).error_code, row(sent).error_code) == (6, 0)


def test_outcome_is_unknown_if_the_leader_does_not_answer(pair):
    pair.inboxes.loses = lambda sender, _: sender == CONTROLLER
    sent = pair.send(2, set_for(2))
    pair.run(APPEND_SECONDS + 1)
    assert row(sent).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert len(stored(pair.controller)) == 2


@pytest.mark.parametrize("leader", [UNKNOWN, FOLLOWER])
def test_nothing_is_passed_on_without_another_leader(pair, leader):
    pair.view.set_leader(0, leader, 2)
    assert row(pair.send(2, set_for(2))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.sent == []


def test_gateway_that_is_cut_off_passes_nothing_on(pair):
    pair.view.set_cut_off(True)
    assert row(pair.send(2, set_for(2))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.sent == []


def test_invalid_records_are_refused_by_the_asked_gateway(pair):
    corrupt = old_set(1, magic=1)
    corrupt[-1] ^= 1
    assert row(pair.send(2, corrupt)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert pair.sent == []


def test_records_for_a_topic_that_was_deleted_meanwhile(pair):
    sent = pair.send(2, set_for(2))
    ended(pair.controller.broker.topics.delete(pair.topic))
    pair.run()
    assert row(sent).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_large_batch_is_checked_on_a_thread_of_the_leader(pair):
    before = pair.controller.threads.calls
    sent = pair.send(9, batch([(None, bytes(LARGE_BATCH_BYTES))]))
    pair.run()
    assert row(sent).error_code == 0
    assert pair.controller.threads.calls == before + 1


def test_batch_that_exceeds_a_call_is_refused(pair):
    sent = pair.send(9, batch([(None, bytes(5 << 20))]))
    pair.run()
    assert row(sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert pair.sent == []


def test_waiting_records_are_limited(pair, monkeypatch):
    one = set_for(2)
    monkeypatch.setattr(remote_appends, "MAX_WAITING_BYTES", 2 * len(one))
    sent = [pair.send(2, set_for(2)) for _ in range(3)]
    assert row(sent[2]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    pair.run()
    assert [row(one).error_code for one in sent[:2]] == [0, 0]
    later = pair.send(2, set_for(2))
    pair.run()
    assert row(later).error_code == 0


def test_empty_message_set_is_answered_at_once(pair):
    found = row(pair.send(2, memoryview(bytearray())))
    assert (found.error_code, found.base_offset) == (0, -1)
    assert pair.sent == []


def test_partition_that_is_handed_over_while_its_records_are_checked(pair):
    broker = pair.follower.broker
    broker.leadership.lead(0, 2)
    pair.view.set_leader(0, FOLLOWER, 2)
    pair.run()
    pair.follower.partition("orders", 0)
    pair.follower.threads.hold()
    sent = pair.send(2, old_set([(None, bytes(100 << 10))], magic=1))
    pair.view.set_leader(0, CONTROLLER, 3)
    broker.leadership.resign(0)
    pair.follower.threads.release()
    pair.run()
    assert row(sent).error_code == 0
    assert len(stored(pair.controller)) == 1


def test_records_with_acks_0_are_passed_on(pair):
    sent = pair.send(2, set_for(2), acks=0)
    pair.run()
    assert sent.result is None
    assert len(stored(pair.controller)) == 2


def test_connection_is_closed_if_records_with_acks_0_are_refused(pair):
    pair.view.set_leader(0, UNKNOWN, 2)
    assert isinstance(pair.send(2, set_for(2), acks=0).failure, Refused)


def test_append_time_is_that_of_the_leader() -> None:
    pair = LeaderElsewhere(message_timestamp_type="LogAppendTime")
    sent = pair.send(2, set_for(2))
    pair.controller.step_ms = 5000
    pair.run()
    assert row(sent).log_append_time >= 1_700_000_005_000
