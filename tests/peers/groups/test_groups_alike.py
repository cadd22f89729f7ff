"""Classic groups: the gateway's responses equal those of Apache Kafka 3.9.2, field by field."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from tests.peers.comparison import ComparedBrokers
from tests.peers.groups.group_comparison import wait_for_coordinator
from tests.testkit.gateway import Peer, encode_request

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("groups alike")]

SECONDS = 60.0
MEMBER_ID_REQUIRED = 79
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Answer = dict[str, Any]


class Side:
    """One of the two brokers and all its responses.

    Random parts of ids are replaced by numbers in the order of appearance.
    """

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._numbers: dict[str, str] = {}
        self.answers: list[tuple[str, Any]] = []
        self.peer = self.connect()

    def connect(self) -> Peer:
        host, _, port = self._address.partition(":")
        return self._stack.enter_context(Peer((host, int(port)), seconds=SECONDS))

    def request(self, request: Any, response: Any, version: int, peer: Peer | None = None) -> Any:
        reply = (peer or self.peer).request(request, response, version)
        self.note(f"{type(request).__name__} v{version}", reply)
        return reply

    def receive(self, peer: Peer, request: Any, response: Any, version: int) -> Any:
        """Read the response to a request sent earlier on this connection."""
        frame = peer.receive()
        assert frame is not None, "the other side closed the connection"
        reply = response.decode(
            frame[5 if request.flexible_version_q(version) else 4 :], version=version
        )
        self.note(f"{type(request).__name__} v{version}", reply)
        return reply

    def note(self, what: str, reply: Any) -> None:
        self.answers.append((what, self._plain(reply.to_dict())))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._plain(one) for key, one in value.items()}
        if isinstance(value, list):
            # Kafka does not order members.
            return sorted((self._plain(one) for one in value), key=repr)
        if isinstance(value, str):
            return UUID.sub(
                lambda found: self._numbers.setdefault(found[0], f"#{len(self._numbers) + 1}"),
                value,
            )
        return value


def join(member_id: str = "", *, group: str, instance: str | None = None, **fields: Any) -> Any:
    kind = JoinGroupRequest.JoinGroupRequestProtocol
    values: dict[str, Any] = {
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [
            kind(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff"),
            kind(name="sticky", metadata=b"two"),
        ],
        "reason": None,
    }
    return JoinGroupRequest(
        group_id=group, member_id=member_id, group_instance_id=instance, **values | fields
    )


def sync(
    member_id: str,
    generation: int,
    *,
    group: str,
    instance: str | None = None,
    words: dict[str, bytes] | None = None,
    **fields: Any,
) -> Any:
    rows = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=word)
        for name, word in (words or {}).items()
    ]
    values = {"protocol_type": "consumer", "protocol_name": "range"} | fields
    return SyncGroupRequest(
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance,
        assignments=rows,
        **values,
    )


def beat(member_id: str, generation: int, *, group: str, instance: str | None = None) -> Any:
    return HeartbeatRequest(
        group_id=group, member_id=member_id, generation_id=generation, group_instance_id=instance
    )


def leave(*members: tuple[str, str | None], group: str) -> Any:
    rows = [
        LeaveGroupRequest.MemberIdentity(member_id=name, group_instance_id=instance, reason="over")
        for name, instance in members
    ]
    return LeaveGroupRequest(group_id=group, members=rows, member_id=members[0][0])


def joins(side: Side, version: int, group: str, **fields: Any) -> Any:
    """Join as a new member, in one or two steps (KIP-394); return the last response."""
    reply = side.request(join(group=group, **fields), JoinGroupResponse, version)
    if reply.error_code == MEMBER_ID_REQUIRED:
        reply = side.request(
            join(reply.member_id, group=group, **fields), JoinGroupResponse, version
        )
    return reply


def describe_groups(side: Side, *groups: str) -> None:
    """Describe these groups with every version of DescribeGroups."""
    for version in range(6):
        side.request(
            DescribeGroupsRequest(
                groups=list(groups), include_authorized_operations=version % 2 == 1
            ),
            DescribeGroupsResponse,
            version,
        )


@pytest.fixture(scope="module")
def addresses(compared_brokers: ComparedBrokers) -> tuple[str, str]:
    return compared_brokers.gateway, compared_brokers.kafka


def play(addresses: tuple[str, str], scene: Callable[[Side], None]) -> None:
    """Run the scene on both brokers and compare all responses."""
    with ExitStack() as stack:
        ours, theirs = (Side(address, stack) for address in addresses)
        for side in (ours, theirs):
            wait_for_coordinator(side.peer)
            scene(side)
        for our, their in zip(ours.answers, theirs.answers, strict=True):
            assert our == their


def test_unknown_groups_and_members_get_the_errors_of_kafka(addresses: tuple[str, str]) -> None:
    def scene(side: Side) -> None:
        for group in ("missing", ""):
            for version in range(10):
                side.request(join("m", group=group), JoinGroupResponse, version)
            for version in range(6):
                side.request(sync("m", 1, group=group), SyncGroupResponse, version)
                side.request(leave(("m", None), group=group), LeaveGroupResponse, version)
            for version in range(5):
                side.request(beat("m", 1, group=group), HeartbeatResponse, version)
            for version in range(3):
                side.request(
                    DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, version
                )
            describe_groups(side, group)

    play(addresses, scene)


def test_invalid_joins_get_the_errors_of_kafka(addresses: tuple[str, str]) -> None:
    def scene(side: Side) -> None:
        for version in range(10):
            for fields in (
                {"session_timeout_ms": 1},
                {"session_timeout_ms": 1_800_001},
                {"protocols": []},
                {"protocol_type": ""},
                {"group": ""},
            ):
                side.request(join(**{"group": "refused"} | fields), JoinGroupResponse, version)

    play(addresses, scene)


@pytest.mark.parametrize("version", range(10))
def test_group_of_one_member_matches_kafka(addresses: tuple[str, str], version: int) -> None:
    def scene(side: Side) -> None:
        group = f"one-{version}"
        member = joins(side, version, group)
        name = member.member_id
        describe_groups(side, group)
        for generation in (member.generation_id, 0, -1):
            side.request(beat(name, generation, group=group), HeartbeatResponse, min(version, 4))
        side.request(sync(name, 7, group=group), SyncGroupResponse, min(version, 5))
        side.request(
            sync(name, 1, group=group, protocol_name="sticky"), SyncGroupResponse, min(version, 5)
        )
        for fields in ({"protocol_type": None}, {"protocol_name": None}):
            side.request(sync(name, 1, group=group, **fields), SyncGroupResponse, 5)
        side.request(
            sync(name, 1, group=group, words={name: b"mine", "unknown": b"lost"}),
            SyncGroupResponse,
            min(version, 5),
        )
        describe_groups(side, group)
        side.request(
            sync(name, 1, group=group, words={name: b"another"}), SyncGroupResponse, min(version, 5)
        )
        side.request(join(group=group, protocol_type="connect"), JoinGroupResponse, version)
        side.request(DeleteGroupsRequest(groups_names=[group, "missing"]), DeleteGroupsResponse, 2)
        side.request(join(name, group=group), JoinGroupResponse, version)
        side.request(sync(name, 2, group=group, words={}), SyncGroupResponse, min(version, 5))
        side.request(
            leave((name, None), ("unknown", None), group=group), LeaveGroupResponse, min(version, 5)
        )
        side.request(leave((name, None), group=group), LeaveGroupResponse, min(version, 5))
        side.request(beat(name, 2, group=group), HeartbeatResponse, min(version, 4))
        describe_groups(side, group)
        side.request(
            DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, min(version, 2)
        )
        describe_groups(side, group)

    play(addresses, scene)


@pytest.mark.parametrize("version", [0, 3, 4, 9])
def test_rebalance_of_two_members_matches_kafka(addresses: tuple[str, str], version: int) -> None:
    def scene(side: Side) -> None:
        group, syncs, beats = f"two-{version}", min(version, 5), min(version, 4)
        first = joins(side, version, group).member_id
        side.request(sync(first, 1, group=group, words={first: b"all"}), SyncGroupResponse, syncs)
        other = side.connect()
        coming = join(group=group)
        if version >= 4:
            coming = join(side.request(coming, JoinGroupResponse, version).member_id, group=group)
        other.send(encode_request(coming, version))
        # The first member's heartbeat fails once the second join has arrived.
        while (
            side.peer.request(beat(first, 1, group=group), HeartbeatResponse, beats).error_code == 0
        ):
            time.sleep(0.05)
        list_by_state_and_type(side, group)
        side.request(sync(first, 1, group=group), SyncGroupResponse, syncs)
        side.request(join(first, group=group), JoinGroupResponse, version)
        second = side.receive(other, coming, JoinGroupResponse, version).member_id
        for name in (first, second):
            side.request(beat(name, 2, group=group), HeartbeatResponse, beats)
        # A follower that lost its response sends the request again.
        side.request(join(second, group=group), JoinGroupResponse, version, other)
        waiting = sync(second, 2, group=group)
        other.send(encode_request(waiting, syncs))
        side.request(
            sync(first, 2, group=group, words={first: b"half", second: b"rest"}),
            SyncGroupResponse,
            syncs,
        )
        side.receive(other, waiting, SyncGroupResponse, syncs)
        describe_groups(side, group)
        side.request(join(second, group=group), JoinGroupResponse, version, other)
        side.request(leave((first, None), group=group), LeaveGroupResponse, syncs)
        side.request(beat(second, 2, group=group), HeartbeatResponse, beats)
        side.request(join(second, group=group), JoinGroupResponse, version)
        side.request(leave((second, None), group=group), LeaveGroupResponse, syncs)

    play(addresses, scene)


def list_by_state_and_type(side: Side, group: str) -> None:
    for state in ("PreparingRebalance", "stable", "nonsense"):
        reply = side.peer.request(
            ListGroupsRequest(states_filter=[state], types_filter=[]), ListGroupsResponse, 5
        )
        reply.groups = [one for one in reply.groups if one.group_id == group]
        side.note(f"in state {state}", reply)
    for kind in ("classic", "Classic", "consumer"):
        reply = side.peer.request(
            ListGroupsRequest(states_filter=[], types_filter=[kind]), ListGroupsResponse, 5
        )
        reply.groups = [one for one in reply.groups if one.group_id == group]
        side.note(f"of type {kind}", reply)


@pytest.mark.parametrize("version", range(5, 10))
def test_static_member_rejoin_and_fencing_match_kafka(
    addresses: tuple[str, str], version: int
) -> None:
    def scene(side: Side) -> None:
        group, instance = f"static-{version}", "one"
        old = joins(side, version, group, instance=instance).member_id
        side.request(
            sync(old, 1, group=group, instance=instance, words={old: b"mine"}), SyncGroupResponse, 5
        )
        new = joins(side, version, group, instance=instance).member_id
        for name in (old, new):
            side.request(beat(name, 1, group=group, instance=instance), HeartbeatResponse, 4)
            side.request(sync(name, 1, group=group, instance=instance), SyncGroupResponse, 5)
            side.request(beat(name, 1, group=group, instance="another"), HeartbeatResponse, 4)
        side.request(join(old, group=group, instance=instance), JoinGroupResponse, version)
        side.request(join(new, group=group, instance="another"), JoinGroupResponse, version)
        describe_groups(side, group)
        side.request(join(new, group=group, instance=instance), JoinGroupResponse, version)
        side.request(leave((old, instance), ("", "another"), group=group), LeaveGroupResponse, 5)
        side.request(leave(("", instance), ("", instance), group=group), LeaveGroupResponse, 4)
        describe_groups(side, group)

    play(addresses, scene)
