"""OffsetFetch 0 and 1 and OffsetCommit at a gateway that does not coordinate the group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest

from gateway.app import commit_passed_on
from gateway.cluster.calls import CallFailed
from gateway.cluster.view import UNKNOWN
from gateway.coroutines import SLICE_ROWS
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.groups.offsets.remote_offsets import (
    CALLS_SECONDS,
    FETCH_OFFSETS,
    MAX_CALLS,
    MAX_CALLS_OF_REQUEST,
    MAX_PARTITIONS,
    RemoteOffsets,
    serve_offsets,
)
from gateway.handlers.groups.offset_commit import LAST_PASSED_ON
from gateway.handlers.old.offset_fetch import COORDINATOR_SECONDS
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import Started, ended
from tests.fakes.connection import MemoryClient
from tests.gateway.cluster.gateway_pair import CONTROLLER, FOLLOWER, GatewayPair, frame_of
from tests.gateway.handlers.handler_calls import decode_response


class CoordinatorElsewhere(GatewayPair):
    """The controller coordinates all groups. The clients of the follower send it OffsetFetch."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        receive = self.inboxes.receivers[CONTROLLER]
        self.inboxes.receivers[CONTROLLER] = lambda message: receive(self._noted(message))
        self.controller.topic("orders")
        self.replay()
        offset = CommittedOffset(5, -1, "note", 0)
        ended(self.controller.broker.offsets.commit("g", {("orders", 0): offset}))
        broker = self.follower.broker
        self.view = broker.membership.view
        self.view.set_leader(0, CONTROLLER, 1)
        broker.leadership.resign(0)
        self.remote = RemoteOffsets(self.calls[FOLLOWER], self.view, self.clock)
        object.__setattr__(broker, "remote_offsets", self.remote)
        coordinator = self.controller.broker
        serve_offsets(
            self.calls[CONTROLLER],
            coordinator.confirm_coordinator,
            coordinator.offsets,
            partial(commit_passed_on, coordinator),
        )

    def send(self, version: int, *names: str, partitions: Sequence[int] = (0, 0)) -> MemoryClient:
        topics = [
            OffsetFetchRequest.OffsetFetchRequestTopic(
                name=name, partition_indexes=list(partitions)
            )
            for name in names or ["orders"]
        ]
        client = self.client()
        client.send(frame_of(OffsetFetchRequest(group_id="g", topics=topics), version))
        return client

    def commit(self, version: int, offset: int = 7, generation: int = -1) -> MemoryClient:
        """Send OffsetCommit for the partitions 0 and 1; the topic has only the first."""
        rows = [
            OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata="later",
                commit_timestamp=-1,
            )
            for index in range(2)
        ]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=rows)
        asked = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id="" if generation < 0 else "m",
            retention_time_ms=-1,
            topics=[topic],
        )
        client = self.client()
        client.send(frame_of(asked, version))
        return client

    def committed(self) -> CommittedOffset | None:
        found: CommittedOffset | None = self.controller.broker.offsets.get("g", "orders", 0)
        return found

    def _noted(self, message: bytes) -> bytes:
        self.sent.append(message)
        return message


def reply_of(client: MemoryClient, version: int) -> Any:
    (frame,) = client.receive()
    return decode_response(OffsetFetchRequest(), frame[4:], version)


def only_row(reply: Any) -> Any:
    (topic,) = reply.topics
    (row,) = topic.partitions
    return row


@pytest.fixture
def pair() -> CoordinatorElsewhere:
    return CoordinatorElsewhere()


@pytest.mark.parametrize("version", [0, 1])
def test_gateway_asks_the_coordinator(pair, version):
    client = pair.send(version)
    pair.run()
    row = only_row(reply_of(client, version))
    assert (row.committed_offset, row.metadata, row.error_code) == (5, "note", 0)


@pytest.mark.parametrize(
    ("version", "code"), [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (1, ErrorCode.NONE)]
)
def test_offset_that_the_coordinator_does_not_have_is_not_found(pair, version, code):
    ended(pair.controller.broker.offsets.delete("g"))
    client = pair.send(version)
    pair.run()
    row = only_row(reply_of(client, version))
    assert (row.committed_offset, row.error_code) == (-1, code)


def test_request_waits_for_a_coordinator(pair):
    pair.view.set_leader(0, UNKNOWN, 1)
    client = pair.send(1)
    pair.run(COORDINATOR_SECONDS - 2)
    assert client.receive() == []
    pair.view.set_leader(0, CONTROLLER, 2)
    pair.run()
    assert only_row(reply_of(client, 1)).committed_offset == 5


def test_request_waits_until_this_gateway_is_the_coordinator(pair):
    pair.view.set_leader(0, FOLLOWER, 2)
    client = pair.send(1)
    pair.run()
    assert client.receive() == []
    pair.follower.broker.leadership.lead(0, 2)
    pair.run()
    assert only_row(reply_of(client, 1)).committed_offset == -1


def test_connection_is_closed_if_no_coordinator_answers(pair):
    pair.view.set_leader(0, UNKNOWN, 1)
    client = pair.send(1)
    pair.run(COORDINATOR_SECONDS + 1)
    assert client.is_aborted
    assert client.receive() == []


def test_connection_is_closed_at_once_if_the_gateway_is_cut_off(pair):
    pair.follower.broker.leadership.refuse()
    client = pair.send(1)
    assert client.is_aborted


def test_shutdown_ends_the_wait(pair):
    pair.view.set_leader(0, UNKNOWN, 1)
    client = pair.send(1)
    pair.run()
    pair.follower.broker.interruptible_waits.end()
    assert client.is_aborted


def test_later_version_reports_that_this_gateway_is_not_the_coordinator(pair):
    client = pair.send(2)
    assert reply_of(client, 2).error_code == ErrorCode.NOT_COORDINATOR


def test_alias_of_a_topic_finds_its_offset(pair):
    store = pair.follower.store
    names = {"persistent://public/default/orders": "orders"}
    store.canonical = lambda name: names.get(name, name)
    client = pair.send(1, "persistent://public/default/orders")
    pair.run()
    assert only_row(reply_of(client, 1)).committed_offset == 5


def test_coordinator_is_asked_for_existing_partitions_only(pair):
    client = pair.send(1, "unknown", "orders", partitions=range(-5, 5000))
    pair.run()
    assert len(reply_of(client, 1).topics) == 2
    (message,) = pair.sent
    assert len(message) < 200


def test_many_topics_are_looked_up_in_several_reactor_turns(pair, monkeypatch):
    topics, looked_up = pair.follower.broker.topics, []
    get = topics.get
    monkeypatch.setattr(topics, "get", lambda name: looked_up.append(name) or get(name))
    client = pair.send(1, *(f"unknown-{number}" for number in range(3 * SLICE_ROWS)))
    assert 0 < len(looked_up) <= SLICE_ROWS
    pair.run()
    assert len(reply_of(client, 1).topics) == 3 * SLICE_ROWS


def test_many_partitions_are_asked_for_in_several_calls(pair):
    partitions = [("orders", index) for index in range(MAX_PARTITIONS + 1)]
    asking = Started(pair.remote.fetch("g", partitions))
    pair.run()
    assert asking.result("orders", 0).offset == 5
    assert len(pair.sent) == 2


def test_all_calls_of_a_request_share_its_timeout(pair):
    receive = pair.inboxes.receivers[CONTROLLER]

    def slowly(message):
        pair.clock.callLater(0.6 * CALLS_SECONDS, receive, message)

    pair.inboxes.receivers[CONTROLLER] = slowly
    partitions = [("orders", index) for index in range(2 * MAX_PARTITIONS)]
    asking = Started(pair.remote.fetch("g", partitions))
    pair.run(CALLS_SECONDS + 0.1)
    assert asking.result is None
    assert not pair.remote._calls_in_progress


def test_too_many_partitions_are_refused(pair):
    partitions = [("orders", 0)] * (MAX_PARTITIONS * MAX_CALLS_OF_REQUEST + 1)
    assert isinstance(Started(pair.remote.fetch("g", partitions)).failure, CallFailed)


def test_connection_is_closed_at_once_if_the_coordinator_does_not_know_the_call(pair):
    del pair.calls[CONTROLLER]._handlers[FETCH_OFFSETS]
    client = pair.send(1)
    pair.run()
    assert client.is_aborted
    assert len(pair.sent) == 1


def test_calls_in_progress_are_limited(pair):
    pair.inboxes.receivers[CONTROLLER] = lambda _: None
    asking = [Started(pair.remote.fetch("g", [("orders", 0)])) for _ in range(MAX_CALLS + 1)]
    assert [one.is_done for one in asking] == [False] * MAX_CALLS + [True]
    assert asking[-1].result is None
    pair.run(CALLS_SECONDS + 1)
    assert all(one.result is None for one in asking)


def codes_of(client: MemoryClient, version: int) -> list[int]:
    (frame,) = client.receive()
    (topic,) = decode_response(OffsetCommitRequest(), frame[4:], version).topics
    return [row.error_code for row in topic.partitions]


@pytest.mark.parametrize("version", range(LAST_PASSED_ON + 1))
def test_commit_is_passed_on_to_the_coordinator(pair, version):
    client = pair.commit(version)
    pair.run()
    assert codes_of(client, version) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    found = pair.committed()
    assert (found.offset, found.leader_epoch, found.metadata) == (7, -1, "later")


def test_commit_of_a_later_version_is_refused(pair):
    client = pair.commit(LAST_PASSED_ON + 1)
    pair.run()
    (frame,) = client.receive()
    # The header has a byte for tagged fields.
    reply = decode_response(OffsetCommitRequest(), frame[5:], LAST_PASSED_ON + 1)
    assert [one.error_code for one in reply.topics[0].partitions] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert pair.sent == []


def test_commit_that_is_passed_on_does_not_lower_an_offset(pair):
    client = pair.commit(2, offset=4)
    pair.run()
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert pair.committed().offset == 5


def test_commit_that_is_older_than_the_last_one_is_refused(pair):
    offset = CommittedOffset(6, -1, "", pair.controller.broker.now() + 5_000)
    ended(pair.controller.broker.offsets.commit("g", {("orders", 0): offset}))
    client = pair.commit(2, offset=7)
    pair.run()
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert pair.committed().offset == 6


def test_commit_waits_for_another_one_that_is_being_stored(pair):
    store = pair.controller.store
    store.hold()
    newer = CommittedOffset(9, -1, "", pair.controller.broker.now())
    direct = Started(pair.controller.broker.offsets.commit("g", {("orders", 0): newer}))
    client = pair.commit(2, offset=7)
    pair.run(0.5)
    store.release()
    pair.run()
    assert direct.is_done
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert pair.committed().offset == 9


def test_error_of_the_coordinator_is_reported(pair):
    client = pair.commit(2, generation=3)
    pair.run()
    assert codes_of(client, 2)[0] == ErrorCode.UNKNOWN_MEMBER_ID
    assert pair.committed().offset == 5


def test_commit_waits_until_the_coordinator_knows_its_role(pair):
    leadership = pair.controller.broker.leadership
    leadership.resign(0)
    client = pair.commit(2)
    pair.run()
    assert client.receive() == []
    leadership.lead(0, 2)
    pair.run()
    assert codes_of(client, 2)[0] == 0


@pytest.mark.parametrize("is_answering", [True, False])
def test_commit_that_no_coordinator_accepts_is_refused(pair, is_answering):
    if is_answering:
        pair.controller.broker.leadership.resign(0)
    else:
        pair.inboxes.loses = lambda *_: True
    client = pair.commit(2)
    pair.run(CALLS_SECONDS + 1)
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert not pair.remote._calls_in_progress


@pytest.mark.parametrize("leader", [UNKNOWN, FOLLOWER])
def test_commit_is_refused_at_once_without_another_coordinator(pair, leader):
    pair.view.set_leader(0, leader, 1)
    client = pair.commit(2)
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert pair.sent == []


def test_commit_is_refused_at_once_if_the_gateway_is_cut_off(pair):
    pair.view.set_cut_off(True)
    client = pair.commit(2)
    assert codes_of(client, 2)[0] == ErrorCode.NOT_COORDINATOR
    assert pair.sent == []
