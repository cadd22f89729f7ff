"""Two gateways on the same Pulsar: only one can write, and the other logs it and exits."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin.groups import DescribeGroupsRequest, DescribeGroupsResponse
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from storage.pulsar.client.process_stalls import STALL_SECONDS

from gateway.protocol.errors import ErrorCode
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.chaos.observers import committed_offsets, read_whole_log
from tests.peers.chaos.servers import GatewayDied, RestartableGateway
from tests.peers.on_pulsar.writers import (
    GROUP,
    Writers,
    assert_written_in_turn,
    commit,
    paused_with_queue,
)
from tests.testkit.gateway import Peer, encode_request, one_record
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Until the fenced gateway has noticed and exited.
END_SECONDS = 240.0
#: Some requests here are not retried, and Pulsar on a busy machine stalls for seconds.
OPENING_MS = 20_000


@pytest.fixture
def starts(tmp_path: Path, pulsar: Tenant) -> Iterator[Callable[..., RestartableGateway]]:
    """Start another gateway on the same namespaces with each call."""
    store = in_pulsar(pulsar)
    with ExitStack() as stack:

        def started(name: str, *arguments: str) -> RestartableGateway:
            gateway = RestartableGateway(
                tmp_path,
                store,
                {"num_partitions": 1, "partition_open_timeout_ms": OPENING_MS},
                name,
            )
            stack.callback(gateway.kill)
            gateway.launch(*arguments)
            return gateway

        yield started


def wait_for_exit(gateway: RestartableGateway) -> None:
    """Wait until the gateway has exited because another took over."""
    assert gateway.process.wait(END_SECONDS) == 1, gateway.log()


def test_second_gateway_is_refused_naming_the_holder_and_the_takeover_option(
    starts: Callable[..., RestartableGateway],
) -> None:
    first = starts("first")
    with first.peer() as peer:
        peer.create_topic(TOPIC)
    with pytest.raises(GatewayDied, match="exit code 1\n") as refused:
        starts("second")
    said = str(refused.value)
    assert {
        word
        for word in (socket.gethostname(), str(first.process.pid), "--pulsar-takeover")
        if word not in said
    } == set(), said
    with first.peer() as peer:
        assert peer.produce(TOPIC, one_record(b"still here")).error_code == 0


def test_after_takeover_only_the_new_gateway_writes(
    starts: Callable[..., RestartableGateway],
) -> None:
    gateway = starts("first")
    with gateway.peer() as peer:
        peer.create_topic(TOPIC)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()

    other = starts("second", "--pulsar-takeover")
    second = Writers(other, "second")
    second.start()
    second.wait_for_answers()

    wait_for_exit(gateway)
    assert gateway.has_logged("taken")
    first.stop()
    second.wait_for_answers()
    second.stop()
    assert_written_in_turn(read_whole_log(other.bootstrap, 1), first, second)
    assert not other.has_logged("partition fenced"), "the fenced gateway reopened a partition"
    assert other.unexpected_errors() == []


def test_requests_queued_in_a_paused_gateway_are_not_stored_after_takeover(
    starts: Callable[..., RestartableGateway],
) -> None:
    gateway = starts("first")
    with gateway.peer() as peer:
        peer.create_topic(TOPIC)
        commit(peer, 5)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()
    with paused_with_queue(gateway, "first"):
        other = starts("second", "--pulsar-takeover")
        second = Writers(other, "second")
        second.start()
        second.wait_for_answers()
        with other.peer() as peer:
            commit(peer, 9)

        gateway.resume()
        wait_for_exit(gateway)
    first.stop()
    second.wait_for_answers()
    second.stop()
    assert_written_in_turn(read_whole_log(other.bootstrap, 1), first, second)
    with other.peer() as peer:
        assert committed_offsets(peer, GROUP, 1) == {0: 9}


#: A group with one member. Commits to GROUP need no member.
MEMBERS = "members"


class GroupRequests:
    """Group requests, each on a separate connection, and their responses."""

    def __init__(self, gateway: RestartableGateway, stack: ExitStack) -> None:
        self._peers = {
            name: stack.enter_context(gateway.peer()) for name in ("heartbeat", "fetch", "describe")
        }
        member = self._peers["heartbeat"]
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
        joining = JoinGroupRequest(
            group_id=MEMBERS,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=600_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = member.request(joining, JoinGroupResponse, 2)
        assert joined.error_code == 0
        self._member = {
            "group_id": MEMBERS,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
        }
        assigned = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=b"all"
        )
        assert (
            member.request(
                SyncGroupRequest(**self._member, assignments=[assigned]), SyncGroupResponse, 1
            ).error_code
            == 0
        )

    def send(self) -> None:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        self._peers["heartbeat"].send(encode_request(HeartbeatRequest(**self._member), 1))
        self._peers["fetch"].send(
            encode_request(OffsetFetchRequest(group_id=GROUP, topics=[topic]), 2)
        )
        self._peers["describe"].send(encode_request(DescribeGroupsRequest(groups=[MEMBERS]), 1))

    def replies(self) -> dict[str, tuple[int, Any] | None]:
        """Return each error code with its data; None for a connection that was closed instead."""
        heartbeat = self._reply("heartbeat", HeartbeatResponse, 1)
        fetch = self._reply("fetch", OffsetFetchResponse, 2)
        describe = self._reply("describe", DescribeGroupsResponse, 1)
        offsets = fetch and [
            row.committed_offset for topic in fetch.topics for row in topic.partitions
        ]
        return {
            "heartbeat": heartbeat and (heartbeat.error_code, None),
            "fetch": fetch and (fetch.error_code, offsets),
            "describe": describe
            and (describe.groups[0].error_code, len(describe.groups[0].members)),
        }

    def _reply(self, name: str, response: Any, version: int) -> Any:
        frame = self._peers[name].receive()
        return None if frame is None else response.decode(frame[4:], version=version)


def resume_after_stall(gateway: RestartableGateway, since: float) -> None:
    """Resume the gateway once it has been suspended for longer than the lock is trusted.

    `since` is the time of the suspension.
    """
    time.sleep(max(0.0, since + 1.5 * STALL_SECONDS - time.monotonic()))
    gateway.resume()


def test_resumed_gateway_does_not_serve_groups_after_takeover(
    starts: Callable[..., RestartableGateway],
) -> None:
    gateway = starts("first")
    with ExitStack() as stack:
        peer: Peer = stack.enter_context(gateway.peer())
        peer.create_topic(TOPIC)
        commit(peer, 5)
        asked = GroupRequests(gateway, stack)
        began = time.monotonic()
        gateway.pause()
        asked.send()
        other = starts("second", "--pulsar-takeover")
        with other.peer() as successor:
            commit(successor, 9)
        resume_after_stall(gateway, began)
        refused: dict[str, Any] = {"heartbeat": None, "fetch": [], "describe": 0}
        for name, reply in asked.replies().items():
            assert reply in (None, (ErrorCode.NOT_COORDINATOR, refused[name])), name
    wait_for_exit(gateway)
    assert gateway.unexpected_errors() == []


def test_resumed_gateway_serves_groups_without_takeover(
    starts: Callable[..., RestartableGateway],
) -> None:
    gateway = starts("first")
    with ExitStack() as stack:
        peer: Peer = stack.enter_context(gateway.peer())
        peer.create_topic(TOPIC)
        commit(peer, 5)
        asked = GroupRequests(gateway, stack)
        began = time.monotonic()
        gateway.pause()
        asked.send()
        resume_after_stall(gateway, began)
        assert asked.replies() == {"heartbeat": (0, None), "fetch": (0, [5]), "describe": (0, 1)}
    gateway.assert_running()
    assert gateway.unexpected_errors() == []
