"""Produce at a gateway that does not lead the partition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cluster.calls import CallRefused
from gateway.cluster.view import UNKNOWN
from gateway.coroutines import PENDING
from gateway.handlers.produce import LARGE_BATCH_BYTES
from gateway.protocol.errors import ErrorCode, Refused
from gateway.protocol.session import LoginSession
from gateway.protocol.wire.produce_codec import PartitionProduced
from gateway.topics import remote_appends
from gateway.topics.append_server import MAX_CLIENTS, AppendServer
from gateway.topics.remote_appends import (
    APPEND,
    APPEND_SECONDS,
    MAX_CALL_RECORD_BYTES,
    MAX_CALLS_TO_LEADER,
    RemoteAppends,
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
        for env in (self.follower, self.controller):
            view, calls = env.broker.cluster, self.calls[env.broker.cluster.node_id]
            server = AppendServer(
                env.broker.topics, lambda: LIMIT, env.threads.run, env.now, self.clock
            )
            appends = RemoteAppends(calls, view, self.clock, server)
            object.__setattr__(env.broker, "remote_appends", appends)

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


def test_records_are_appended_here_if_this_gateway_becomes_the_leader(pair):
    pair.controller.broker.leadership.resign(0)
    sent = pair.send(2, set_for(2))
    pair.run(0.5)
    pair.view.set_leader(0, FOLLOWER, 3)
    pair.follower.broker.leadership.lead(0, 3)
    pair.run()
    assert row(sent).error_code == 0
    assert len(stored(pair.follower)) == 2


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
    pair.replay()
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


@pytest.mark.parametrize("version", [2, 9])
def test_client_that_finds_the_leader_does_not_overtake_its_earlier_records(pair, version):
    def one(text: str) -> memoryview:
        records = [(None, text.encode())]
        return batch(records) if version >= 3 else old_set(records, magic=1)

    first = pair.send(version, one("first"))
    pair.clock.advance(0.015)
    second = pair.send(version, one("second"))
    # The first one has arrived at the leader; the second one waits for its reply.
    third = start(pair.controller, request(version, (0, one("third"))))
    assert not third.is_done
    pair.run()
    assert [row(sent).base_offset for sent in (first, second, third)] == [0, 1, 2]
    assert pair.values() == [b"first", b"second", b"third"]
    # Later requests do not wait.
    fourth = start(pair.controller, request(version, (0, one("fourth"))))
    assert row(fourth).base_offset == 3
    assert pair.controller.partition().plain_bytes > 0


def test_other_clients_of_the_partition_do_not_wait(pair):
    pair.send(9, value("passed on"))
    pair.clock.advance(0.015)
    other = replace(pair.controller, session=LoginSession(None, "192.0.2.9"))
    assert row(start(other, request(9, (0, value("direct"))))).error_code == 0


def test_client_waits_no_longer_than_the_other_gateway_can_answer(pair):
    pair.send(9, value("first"))
    pair.clock.advance(0.015)
    pair.inboxes.loses = lambda *_: True
    second = start(pair.controller, request(9, (0, value("second"))))
    pair.run(APPEND_SECONDS + 1)
    assert row(second).error_code == 0


def test_remembered_clients_are_limited(pair):
    server = AppendServer(
        pair.controller.broker.topics,
        lambda: LIMIT,
        pair.controller.threads.run,
        pair.controller.now,
        pair.clock,
    )
    key = pair.topic.topic.topic_id, 0
    for number in range(MAX_CLIENTS + 1):
        server._note_client(key, str(number), FOLLOWER)
    partition = pair.controller.partition()
    assert server.forget_client(partition, "0") is None
    assert server.forget_client(partition, "1") == FOLLOWER
    assert server.forget_client(partition, "1") is None
    assert len(server._clients) == server._clients_of[key] == MAX_CLIENTS - 1


def test_records_wait_for_the_topic_at_a_leader_that_has_not_replayed_it(pair):
    asked = remote_appends._ENCODER.encode((FOLLOWER, bytes(16), 0, 5.0, [], [set_for(2)]))
    appending = Started(pair.controller.broker.remote_appends._server.append(asked))
    assert isinstance(appending.failure, CallRefused)


def test_append_whose_time_has_passed_is_not_executed(pair):
    leadership = pair.controller.broker.leadership
    leadership.resign(0)
    leadership.expect({0})
    key = pair.topic.topic.topic_id, 0
    asked = remote_appends._ENCODER.encode((FOLLOWER, *key, 1.0, [], [set_for(2)]))
    appending = Started(pair.controller.broker.remote_appends._server.append(asked))
    pair.run(1)
    leadership.lead(0, 2)
    pair.run()
    assert isinstance(appending.failure, CallRefused)
    assert stored(pair.controller) == []


def test_leader_checks_records_again(pair):
    corrupt = set_for(3)
    corrupt[-1] ^= 1
    key = pair.topic.topic.topic_id, 0
    asked = remote_appends._ENCODER.encode((FOLLOWER, *key, 5.0, [], [corrupt, set_for(3)]))
    appending = Started(pair.controller.broker.remote_appends._server.append(asked))
    first, second = remote_appends._REPLY_DECODER.decode(appending.result)
    assert (first.code, second.code, second.base_offset) == (ErrorCode.CORRUPT_MESSAGE, 0, 0)


def test_gateway_of_an_earlier_version_is_not_asked_again(pair):
    del pair.calls[CONTROLLER]._handlers[APPEND]
    sent = pair.send(2, set_for(2))
    pair.run()
    assert row(sent).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(pair.sent) == 1


def test_outcome_is_unknown_if_the_leader_has_ended(pair):
    pair.controller.broker.leadership.resign(0)
    pair.controller.broker.leadership.expect({0})
    sent = pair.send(2, set_for(2))
    pair.run(0.5)
    pair.calls[FOLLOWER].node_gone(CONTROLLER, 1)
    pair.run(0.5)
    assert row(sent).error_code == ErrorCode.REQUEST_TIMED_OUT


def test_silent_leader_does_not_delay_the_appends_of_others(pair):
    silent = CONTROLLER + 1
    pair.controller.topic("many", MAX_CALLS_TO_LEADER + 1)
    pair.replay()
    state = pair.follower.broker.topics.get("many")
    appends = pair.follower.broker.remote_appends
    pair.view.set_leader(0, silent, 2)
    waiting = [
        appends.queue(state, index, "client", set_for(2))
        for index in range(MAX_CALLS_TO_LEADER + 1)
    ]
    pair.view.set_leader(0, CONTROLLER, 3)
    sent = pair.send(2, set_for(2))
    pair.run(1)
    assert row(sent).error_code == 0
    assert all(one.outcome(PENDING) is PENDING for one in waiting)
    pair.run(APPEND_SECONDS)
    assert not appends._queues
    assert not appends._ready
    assert appends._waiting_bytes == 0


def test_record_without_a_key_is_refused_for_a_compacted_topic() -> None:
    pair = LeaderElsewhere(cleanup_policy="compact")
    refused = pair.send(9, value("no key"))
    assert row(refused).error_code == ErrorCode.INVALID_RECORD
    assert pair.sent == []


def test_records_that_exceed_the_topics_limit_are_refused() -> None:
    pair = LeaderElsewhere(max_message_bytes="100")
    assert row(pair.send(9, batch(9))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert pair.sent == []


def test_shutdown_waits_for_records_that_are_passed_on(pair):
    pair.send(2, set_for(2), acks=0)
    finishing = Started(pair.follower.broker.remote_appends.finish())
    assert not finishing.is_done
    pair.run()
    assert finishing.is_done
    assert len(stored(pair.controller)) == 2


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
