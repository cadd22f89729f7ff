"""Two gateways on the same Pulsar: node ids are unique, and only the leader serves."""

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

from gateway.protocol.errors import ErrorCode
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.chaos.observers import read_whole_log
from tests.peers.chaos.servers import GatewayDied, RestartableGateway
from tests.peers.on_pulsar.writers import (
    GROUP,
    Writers,
    assert_queue_not_stale,
    assert_written_once,
    commit,
    commit_once_coordinated,
    paused_with_queue,
)
from tests.testkit.gateway import Peer, encode_request, one_record
from tests.testkit.pulsar_relay import PulsarRelays
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Longer than the session timeout of a node, 3 s.
SUSPENDED_SECONDS = 5.0
OTHER_NODE = ("--node-id", "1")
#: Some requests here are not retried, and Pulsar on a busy machine stalls for seconds.
OPENING_MS = 20_000


@pytest.fixture
def relays(pulsar: Tenant) -> Iterator[PulsarRelays]:
    with PulsarRelays(pulsar.settings()) as between:
        yield between


@pytest.fixture
def starts(tmp_path: Path, pulsar: Tenant) -> Iterator[Callable[..., RestartableGateway]]:
    """Start another gateway on the same namespaces with each call."""
    store = in_pulsar(pulsar)
    with ExitStack() as stack:

        def started(
            name: str, *arguments: str, between: PulsarRelays | None = None
        ) -> RestartableGateway:
            gateway = RestartableGateway(
                tmp_path,
                [relayed(word, pulsar, between) for word in store] if between else store,
                {"num_partitions": 1, "partition_open_timeout_ms": OPENING_MS},
                name,
            )
            stack.callback(gateway.kill)
            gateway.launch(*arguments)
            return gateway

        yield started


def relayed(word: str, pulsar: Tenant, between: PulsarRelays) -> str:
    """An argument with the addresses of the relays instead of the broker's."""
    settings = between.settings
    return word.replace(pulsar.service_url, settings.service_url).replace(
        pulsar.admin_url, settings.admin_url
    )


def test_second_gateway_with_a_used_node_id_is_refused_naming_the_holder(
    starts: Callable[..., RestartableGateway],
) -> None:
    first = starts("first")
    with first.peer() as peer:
        peer.create_topic(TOPIC)
    with pytest.raises(GatewayDied, match="exit code 1\n") as refused:
        starts("second", "--node-id", "0")
    said = str(refused.value)
    assert {
        word
        for word in (socket.gethostname(), f"process {first.process.pid}", "--node-id")
        if word not in said
    } == set(), said
    with first.peer() as peer:
        assert peer.produce(TOPIC, one_record(b"still here")).error_code == 0
    assert first.unexpected_errors() == []


def test_requests_queued_in_a_suspended_gateway_are_not_executed_in_the_past(
    starts: Callable[..., RestartableGateway],
) -> None:
    gateway = starts("first")
    with gateway.peer() as peer:
        peer.create_topic(TOPIC)
        commit(peer, 5)
    first = Writers(gateway, "first")
    first.start()
    first.wait_for_answers()
    with paused_with_queue(gateway, "first") as (writer, committer):
        other = starts("second", *OTHER_NODE)
        second = Writers(other, "second")
        second.start()
        second.wait_for_answers()
        commit_once_coordinated(other, 9)
        second.stop()

        gateway.resume()
        assert_queue_not_stale(writer, committer, second, gateway, other)
    # The shards are divided between the two again.
    first.stop()
    assert_written_once(read_whole_log(f"{gateway.bootstrap},{other.bootstrap}", 1), first, second)
    for one in (gateway, other):
        one.assert_running()
        assert one.unexpected_errors() == []


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


def resume_after(gateway: RestartableGateway, since: float) -> None:
    """Resume the gateway `SUSPENDED_SECONDS` after the time `since` of its suspension."""
    time.sleep(max(0.0, since + SUSPENDED_SECONDS - time.monotonic()))
    gateway.resume()


def test_gateway_cut_off_from_pulsar_does_not_serve_groups_that_another_coordinates(
    starts: Callable[..., RestartableGateway], relays: PulsarRelays
) -> None:
    """It cannot know of the other gateway, so only its lease keeps it from serving."""
    gateway = starts("first", between=relays)
    with ExitStack() as stack:
        peer: Peer = stack.enter_context(gateway.peer())
        peer.create_topic(TOPIC)
        commit(peer, 5)
        asked = GroupRequests(gateway, stack)
        stack.enter_context(relays.cut())
        other = starts("second", *OTHER_NODE)
        commit_once_coordinated(other, 9)
        asked.send()
        refused = ErrorCode.NOT_COORDINATOR
        assert asked.replies() == {
            "heartbeat": (refused, None),
            "fetch": (refused, []),
            "describe": (refused, 0),
        }
    gateway.assert_running()
    assert gateway.unexpected_errors() == []


def test_resumed_gateway_without_a_successor_serves_groups(
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
        resume_after(gateway, began)
        assert asked.replies() == {"heartbeat": (0, None), "fetch": (0, [5]), "describe": (0, 1)}
    gateway.assert_running()
    assert gateway.unexpected_errors() == []
