"""JoinGroup that is sent to a gateway that does not coordinate the group, again and again."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.group import JoinGroupRequest

from gateway.groups.offsets.remote_offsets import RemoteOffsets
from gateway.handlers.groups.join_group import MAX_REFUSED_JOINS, REFUSED_JOINS_SECONDS
from gateway.protocol.errors import ErrorCode
from tests.fakes.connection import MemoryClient
from tests.gateway.cluster.gateway_pair import CONTROLLER, FOLLOWER, GatewayPair, frame_of
from tests.gateway.handlers.handler_calls import decode_response

VERSION = 2


class Joins:
    """Connections to a gateway that coordinates no group, in a cluster unless `is_alone`."""

    def __init__(self, *, is_alone: bool = False) -> None:
        self.pair = GatewayPair(group_initial_rebalance_delay_ms=0)
        self.pair.replay()
        broker = self.pair.follower.broker
        broker.membership.view.set_leader(0, CONTROLLER, 1)
        broker.leadership.resign(0)
        if not is_alone:
            remote = RemoteOffsets(
                self.pair.calls[FOLLOWER], broker.membership.view, self.pair.clock
            )
            object.__setattr__(broker, "remote_offsets", remote)
        self.broker = broker

    def client(self) -> MemoryClient:
        return self.pair.client()

    def send(
        self, client: MemoryClient, group: str = "g", seconds: float = REFUSED_JOINS_SECONDS
    ) -> ErrorCode | None:
        """Return the answer, None if the connection is closed instead. Then wait."""
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        client.send(frame_of(join, VERSION))
        self.pair.clock.pump([0.01] * round(100 * seconds))
        if client.is_aborted:
            return None
        (frame,) = client.receive()
        return ErrorCode(decode_response(JoinGroupRequest(), frame[4:], VERSION).error_code)


@pytest.fixture
def joins() -> Joins:
    return Joins()


REFUSED = [ErrorCode.NOT_COORDINATOR] * MAX_REFUSED_JOINS


def test_connection_that_sends_join_group_again_and_again_is_closed(joins: Joins) -> None:
    """Old librdkafka may stay connected to the wrong gateway."""
    client = joins.client()
    assert [joins.send(client) for _ in range(MAX_REFUSED_JOINS + 1)] == [*REFUSED, None]
    # A new connection is answered.
    assert joins.send(joins.client()) == ErrorCode.NOT_COORDINATOR


def test_refusals_are_counted_for_one_group_in_a_row(joins: Joins) -> None:
    client = joins.client()
    codes = [joins.send(client, group) for _ in range(MAX_REFUSED_JOINS + 1) for group in "ab"]
    assert set(codes) == {ErrorCode.NOT_COORDINATOR}


def test_client_that_retries_at_once_is_answered(joins: Joins) -> None:
    """The gateways may not agree yet who coordinates the group."""
    client = joins.client()
    quick = REFUSED_JOINS_SECONDS / 10
    assert {joins.send(client, seconds=quick) for _ in range(9)} == {ErrorCode.NOT_COORDINATOR}


def test_join_that_is_not_refused_ends_the_count(joins: Joins) -> None:
    client = joins.client()
    assert [joins.send(client) for _ in REFUSED] == REFUSED
    joins.broker.leadership.lead(0, 2)
    joins.pair.run()
    assert joins.send(client) == ErrorCode.NONE
    joins.broker.leadership.resign(0)
    assert [joins.send(client) for _ in REFUSED] == REFUSED


def test_lone_gateway_always_answers() -> None:
    joins = Joins(is_alone=True)
    client = joins.client()
    assert {joins.send(client) for _ in range(MAX_REFUSED_JOINS + 3)} == {ErrorCode.NOT_COORDINATOR}
