"""OffsetFetch 0 and 1 at a gateway that does not coordinate the group."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer.group import OffsetFetchRequest

from gateway.cluster.view import UNKNOWN
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.groups.offsets.remote_offsets import (
    MAX_PARTITIONS,
    AskedOffsets,
    RemoteOffsets,
    serve_offsets,
)
from gateway.handlers.old.old_versions import COORDINATOR_SECONDS
from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import Started, ended
from tests.fakes.connection import MemoryClient
from tests.gateway.cluster.gateway_pair import CONTROLLER, FOLLOWER, GatewayPair, frame_of
from tests.gateway.handlers.handler_calls import decode_response


class CoordinatorElsewhere(GatewayPair):
    """The controller coordinates all groups. The clients of the follower send it OffsetFetch."""

    def __init__(self) -> None:
        super().__init__()
        self.controller.topic("orders")
        self.replay()
        offset = CommittedOffset(5, -1, "note", 0)
        ended(self.controller.broker.offsets.commit("g", {("orders", 0): offset}))
        broker = self.follower.broker
        self.view = broker.membership.view
        self.view.set_leader(0, CONTROLLER, 1)
        broker.leadership.resign(0)
        self.remote = RemoteOffsets(self.calls[FOLLOWER], self.view)
        object.__setattr__(broker, "remote_offsets", self.remote)
        coordinator = self.controller.broker
        serve_offsets(self.calls[CONTROLLER], coordinator.confirm_coordinator, coordinator.offsets)

    def send(self, version: int) -> MemoryClient:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 0])
        client = self.client()
        client.send(frame_of(OffsetFetchRequest(group_id="g", topics=[topic]), version))
        return client


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


def test_coordinator_is_not_asked_for_too_many_partitions(pair):
    for count, is_asked in ((MAX_PARTITIONS, True), (MAX_PARTITIONS + 1, False)):
        asking = Started(pair.remote.fetch(AskedOffsets("g", [("orders", list(range(count)))])))
        pair.run()
        assert (asking.result is not None) is is_asked
