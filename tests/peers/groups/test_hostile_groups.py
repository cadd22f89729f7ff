"""Hostile and faulty group members and administrators, against a gateway in a separate process.

Each request gets Kafka's error or is refused with one log line. The gateway's memory stays below a
limit derived from its settings, and members of other groups are served throughout.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from gateway.protocol.errors import ErrorCode
from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.peers.groups.group_comparison import subscription
from tests.testkit.gateway import (
    MIB,
    BackgroundClient,
    GatewayProcess,
    Peer,
    Stopwatch,
    encode_request,
    gateway,
)

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("hostile groups")]

#: Memory limit of the gateway: groups, offsets, requests in flight and their decoded form, cached
#: batches, and the process itself. The allocator keeps memory that was used, so this also limits
#: the peak.
GROUPS = 24 * MIB
OFFSETS = 8 * MIB
IN_FLIGHT = 32 * MIB
MEMORY = GROUPS + OFFSETS + 3 * IN_FLIGHT + 150 * MIB

#: Limit of the witness's heartbeat, by the stopwatch. The longest observed was 0.5 s, the gateway's
#: work for the attack.
PATIENCE = 5.0

SECONDS = 60.0
PARTITIONS = 3_000
MOST_MEMBERS = 1_000
MOST_PENDING = 5_000


class SteadyMembers(BackgroundClient):
    """A member of a classic group and one of a consumer group that send heartbeats, commit and
    fetch offsets. `slowest` is the longest of these requests.
    """

    def __init__(self, server: GatewayProcess) -> None:
        super().__init__(server, "steady")
        self._epoch = 0
        self._generation = 0
        self._id = ""

    def _round(self, peer: Peer) -> None:
        if not self._id:
            self._joins(peer)
        self._in_time(
            peer,
            HeartbeatRequest(
                group_id="steady-1", generation_id=1, member_id=self._id, group_instance_id=None
            ),
            HeartbeatResponse,
            4,
        )
        reply = self._in_time(
            peer, heartbeat_of("steady-2", "steady", self._epoch), ConsumerGroupHeartbeatResponse, 1
        )
        assert reply.member_epoch == self._epoch
        committed = self._in_time(
            peer, commit("steady-1", [("steady", [0])], self._id, 1), OffsetCommitResponse, 8
        )
        assert codes_of(committed) == {0: 1}
        self._in_time(peer, fetch_of("steady-1"), OffsetFetchResponse, 9)
        self.rounds += 1

    def _joins(self, peer: Peer) -> None:
        joined = peer.request(
            join("steady-1", version=3, metadata=subscription("steady"), session=60_000),
            JoinGroupResponse,
            3,
        )
        assert (joined.error_code, joined.generation_id) == (0, 1)
        self._id = joined.member_id
        assert peer.request(sync("steady-1", self._id, 1), SyncGroupResponse, 5).error_code == 0
        reply = peer.request(
            heartbeat_of("steady-2", "steady", 0, topics=["steady"]),
            ConsumerGroupHeartbeatResponse,
            1,
        )
        assert reply.error_code == 0
        self._epoch = reply.member_epoch

    def _in_time(self, peer: Peer, request: Any, response: Any, version: int) -> Any:
        watch = Stopwatch(self._server)
        reply = peer.request(request, response, version)
        self.slowest = max(self.slowest, watch.seconds())
        assert getattr(reply, "error_code", 0) in (0, None), reply
        return reply


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(
        tmp_path_factory.mktemp("hostile"),
        by_fork=False,
        socket_request_max_bytes=IN_FLIGHT,
        max_in_flight_bytes=IN_FLIGHT,
        lmdb_resident_bytes=8 * MIB,
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=100,
        group_max_size=MOST_MEMBERS,
        group_max_pending_members=MOST_PENDING,
        max_group_bytes=GROUPS,
        max_bytes_per_group=12 * MIB,
        committed_offsets_max_bytes=OFFSETS,
        offsets_retention_check_interval_ms=1_000,
    ) as started:
        yield started
        assert started.stop() == 0


@pytest.fixture(scope="module")
def steady(server: GatewayProcess) -> Iterator[SteadyMembers]:
    with SteadyMembers(server) as witness:
        yield witness


@pytest.fixture
def under_attack(server: GatewayProcess, steady: SteadyMembers) -> Iterator[SteadyMembers]:
    """Serve the witness during the test; afterwards check it, the memory and the log."""
    begun = len(server.lines())
    steady.slowest = 0.0
    yield steady
    goes_on = steady.makes_progress()
    assert steady.failure is None
    assert goes_on
    assert steady.slowest < PATIENCE
    assert server.memory() < MEMORY
    assert server.process.poll() is None
    bugs = [line for line in server.lines()[begun:] if " error " in line or "raceback" in line]
    assert bugs == []


@pytest.fixture
def peer(server: GatewayProcess) -> Iterator[Peer]:
    with Peer(server.address, seconds=SECONDS, lines_before=len(server.lines())) as made:
        yield made


@pytest.fixture(scope="module")
def wide(server: GatewayProcess) -> uuid.UUID:
    """The id of the topic `wide`, which has thousands of partitions."""
    row = CreateTopicsRequest.CreatableTopic(
        name="wide", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[]
    )
    with Peer(server.address, seconds=SECONDS) as made:
        request = CreateTopicsRequest(topics=[row], timeout_ms=30_000, validate_only=False)
        (topic,) = made.request(request, CreateTopicsResponse, 7).topics
        assert topic.error_code == 0
        return topic.topic_id


# Requests


def join(
    group: str,
    member: str = "",
    *,
    version: int = 4,
    metadata: bytes = b"",
    protocols: Sequence[tuple[str, bytes]] | None = None,
    session: int = 30_000,
    rebalance: int = 60_000,
    instance: str | None = None,
    kind: str = "consumer",
) -> Any:
    row = JoinGroupRequest.JoinGroupRequestProtocol
    rows = [
        row(name=name, metadata=words)
        for name, words in ([("range", metadata)] if protocols is None else protocols)
    ]
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session,
        rebalance_timeout_ms=rebalance,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=rows,
        reason=None,
    )


def sync(
    group: str, member: str, generation: int, assignments: Iterable[tuple[str, bytes]] = ()
) -> Any:
    row = SyncGroupRequest.SyncGroupRequestAssignment
    rows = [row(member_id=name, assignment=words) for name, words in assignments]
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=rows,
    )


def leave(group: str, members: Iterable[str]) -> Any:
    rows = [
        LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=None, reason=None)
        for member in members
    ]
    return LeaveGroupRequest(group_id=group, members=rows)


def heartbeat_of(
    group: str, member: str, epoch: int, topics: Sequence[str] | None = None, **fields: Any
) -> Any:
    """A new member (epoch 0) sends all fields."""
    if epoch == 0:
        fields = {"rebalance_timeout_ms": 10_000, "topic_partitions": [], **fields}
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=topics,
        **fields,
    )


def commit(
    group: str,
    rows: Iterable[tuple[str, Iterable[int]]],
    member: str = "",
    generation: int = -1,
    note: str = "",
) -> Any:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    row = kind.OffsetCommitRequestPartition
    topics = [
        kind(
            name=name,
            partitions=[
                row(partition_index=index, committed_offset=1, committed_metadata=note)
                for index in indexes
            ],
        )
        for name, indexes in rows
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        topics=topics,
    )


def fetch_of(*groups: str, topics: Any = None) -> Any:
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    return OffsetFetchRequest(
        groups=[
            kind(group_id=group, member_id=None, member_epoch=-1, topics=topics) for group in groups
        ],
        require_stable=False,
    )


def codes_of(reply: Any) -> Counter[int]:
    """Count the error codes of an OffsetCommit response's partitions."""
    return Counter(row.error_code for topic in reply.topics for row in topic.partitions)


def numbered(request: Any, version: int, count: int) -> list[bytes]:
    """Return the request's bytes `count` times, with a different number for #####."""
    frame = encode_request(request, version)
    return [frame.replace(b"#####", b"%05d" % number) for number in range(count)]


def send_all(
    server: GatewayProcess,
    frames: Sequence[bytes],
    response: Any,
    version: int,
    *,
    peers: int = 20,
    at_once: int = 50,
) -> list[Any]:
    """Send many requests over several connections; return the responses in any order."""
    replies: list[Any] = []
    skip = 5 if response.flexible_version_q(version) else 4
    made = [Peer(server.address, seconds=SECONDS) for _ in range(peers)]
    try:
        for start in range(0, len(frames), peers * at_once):
            for number, one in enumerate(made):
                one.send(
                    *frames[
                        start + number * at_once : min(start + (number + 1) * at_once, len(frames))
                    ]
                )
            for number, one in enumerate(made):
                for _ in frames[
                    start + number * at_once : min(start + (number + 1) * at_once, len(frames))
                ]:
                    frame = one.receive()
                    assert frame is not None
                    replies.append(response.decode(frame[skip:], version=version))
    finally:
        for one in made:
            one.socket.close()
    return replies


def codes(replies: Iterable[Any]) -> Counter[int]:
    return Counter(reply.error_code for reply in replies)


def refused(server: GatewayProcess, peer: Peer) -> list[str]:
    words = f"peer={peer.name} "
    server.wait_for_lines(1, words, peer.lines_before)
    return [line for line in server.lines()[peer.lines_before :] if words in line]


# Unknown members


def test_unknown_members_get_unknown_member_id(under_attack, peer):
    heartbeat = HeartbeatRequest(
        group_id="unknown", generation_id=1, member_id="who", group_instance_id=None
    )
    assert peer.request(heartbeat, HeartbeatResponse, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (
        peer.request(sync("unknown", "who", 1), SyncGroupResponse, 5).error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert (
        peer.request(join("unknown", "who"), JoinGroupResponse, 4).error_code
        == ErrorCode.UNKNOWN_MEMBER_ID
    )
    (left,) = peer.request(leave("unknown", ["who"]), LeaveGroupResponse, 5).members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert codes_of(
        peer.request(commit("unknown", [("steady", [0])], "who", 3), OffsetCommitResponse, 8)
    ) == {ErrorCode.ILLEGAL_GENERATION: 1}
    assert codes_of(
        peer.request(commit("steady-1", [("steady", [0])], "who", 1), OffsetCommitResponse, 8)
    ) == {ErrorCode.UNKNOWN_MEMBER_ID: 1}
    assert codes_of(
        peer.request(commit("steady-2", [("steady", [0])], "who", 1), OffsetCommitResponse, 9)
    ) == {ErrorCode.UNKNOWN_MEMBER_ID: 1}


def test_wrong_generation_is_illegal_generation(under_attack, peer):
    member = peer.request(join("stale", version=3), JoinGroupResponse, 3)
    assert peer.request(sync("stale", member.member_id, 1), SyncGroupResponse, 5).error_code == 0
    for generation in (0, 2, -1, 2**31 - 1, -(2**31)):
        heartbeat = HeartbeatRequest(
            group_id="stale",
            generation_id=generation,
            member_id=member.member_id,
            group_instance_id=None,
        )
        assert (
            peer.request(heartbeat, HeartbeatResponse, 4).error_code == ErrorCode.ILLEGAL_GENERATION
        )
        assert (
            peer.request(
                sync("stale", member.member_id, generation), SyncGroupResponse, 5
            ).error_code
            == ErrorCode.ILLEGAL_GENERATION
        )
        told = codes_of(
            peer.request(
                commit("stale", [("steady", [0])], member.member_id, generation),
                OffsetCommitResponse,
                8,
            )
        )
        assert told == {ErrorCode.ILLEGAL_GENERATION: 1}
    peer.request(leave("stale", [member.member_id]), LeaveGroupResponse, 5)


@pytest.mark.parametrize(
    "name",
    ["", "g" * 461, "g" * 32_767],
    ids=["empty", "a little too long", "as long as a string may be"],
)
def test_empty_and_overlong_group_ids_are_invalid(under_attack, peer, name):
    """Kafka accepts any name but the empty one; here a name must fit into a key of the store
    (`group_id_max_bytes`).
    """
    assert peer.request(join(name), JoinGroupResponse, 9).error_code == ErrorCode.INVALID_GROUP_ID
    assert (
        peer.request(sync(name, "m", 1), SyncGroupResponse, 5).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    assert (
        peer.request(leave(name, ["m"]), LeaveGroupResponse, 5).error_code
        == ErrorCode.INVALID_GROUP_ID
    )
    told = peer.request(
        heartbeat_of(name, "m", 0, ["steady"]), ConsumerGroupHeartbeatResponse, 1
    ).error_code
    assert told == (ErrorCode.INVALID_GROUP_ID if name else ErrorCode.INVALID_REQUEST)
    if name:
        # Kafka allows a simple consumer to commit without a group name.
        assert codes_of(peer.request(commit(name, [("steady", [0])]), OffsetCommitResponse, 8)) == {
            ErrorCode.INVALID_GROUP_ID: 1
        }


def test_group_id_that_is_not_utf_8_is_refused_with_one_log_line(server, under_attack, peer):
    frame = encode_request(join("abcd"), 4)
    peer.send(frame.replace(b"abcd", b"\xff\xfe\xc0\x80"))
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert "api_key=11" in line


@pytest.mark.parametrize(
    "fields",
    [
        {"protocols": []},
        {"protocols": [("range", b"")] * 2},
        {"protocols": [("range", b"")] * 50_000},
        {"kind": ""},
    ],
    ids=["none", "twice", "fifty thousand times", "no type"],
)
def test_join_without_usable_protocols_is_inconsistent_group_protocol(under_attack, peer, fields):
    """As Kafka 3.9.2, except for a repeated protocol, which Kafka does not answer within six
    seconds.
    """
    assert (
        peer.request(join("odd", **fields), JoinGroupResponse, 3).error_code
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )


@pytest.mark.parametrize("session", [-1, 0, 99, 2**31 - 1])
def test_session_timeout_out_of_range_is_invalid_session_timeout(under_attack, peer, session):
    assert (
        peer.request(join("odd", session=session), JoinGroupResponse, 4).error_code
        == ErrorCode.INVALID_SESSION_TIMEOUT
    )


# Large requests


def test_huge_metadata_and_assignments_are_message_too_large(server, under_attack, peer):
    assert (
        peer.request(join("huge", metadata=bytes(16 * MIB)), JoinGroupResponse, 3).error_code
        == ErrorCode.MESSAGE_TOO_LARGE
    )
    member = peer.request(join("huge", version=3), JoinGroupResponse, 3).member_id
    huge = sync("huge", member, 1, [(member, bytes(16 * MIB))])
    assert peer.request(huge, SyncGroupResponse, 5).error_code == ErrorCode.MESSAGE_TOO_LARGE
    strangers = sync("huge", member, 1, [(f"m{number}", b"x") for number in range(40_000)])
    assert peer.request(strangers, SyncGroupResponse, 5).error_code in (
        0,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
    peer.request(leave("huge", [member]), LeaveGroupResponse, 5)


def test_many_short_protocols_and_topics_are_limited(server, under_attack):
    """The protocols of a member are limited in number, and the topics of all members in bytes."""
    before = server.memory()
    protocols = [(f"{number:x}", b"") for number in range(40_000)]
    replies = send_all(
        server,
        numbered(join("words-#####", protocols=protocols), 3, 3),
        JoinGroupResponse,
        3,
        peers=1,
    )
    assert codes(replies) == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL: 3}
    topics = [f"{number:x}" for number in range(40_000)]
    beats = send_all(
        server,
        numbered(heartbeat_of("words-#####", "m", 0, topics), 1, 12),
        ConsumerGroupHeartbeatResponse,
        1,
        peers=1,
    )
    assert codes(beats).keys() == {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    send_all(
        server,
        numbered(heartbeat_of("words-#####", "m", -1), 1, 12),
        ConsumerGroupHeartbeatResponse,
        1,
        peers=1,
    )
    assert server.memory() < before + 3 * GROUPS


def test_subscriptions_to_many_topics_are_not_decoded(server, under_attack):
    names = [struct.pack(">h", 5) + b"%05x" % number for number in range(90_000)]
    words = struct.pack(">hi", 0, len(names)) + b"".join(names) + struct.pack(">i", -1)
    peers = [Peer(server.address, seconds=SECONDS) for _ in range(6)]
    before = server.memory()
    for one in peers:
        one.send(encode_request(join("million", metadata=words, rebalance=5_000), 3))
    for one in peers:
        assert JoinGroupResponse.decode(one.receive()[4:], version=3).error_code in (
            0,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        )
    # The group has classic members, and none has sent SyncGroup yet.
    (reply,) = send_all(
        server,
        [encode_request(heartbeat_of("million", "new", 0, ["steady"]), 1)],
        ConsumerGroupHeartbeatResponse,
        1,
        peers=1,
    )
    # A classic group that is rebalancing, or one that is too large for another member after the
    # rebalance timeout.
    assert reply.error_code in (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    )
    assert server.memory() < before + 4 * GROUPS
    for one in peers:
        one.reset()


# Many members


def test_pending_members_that_never_rejoin_expire(server, under_attack):
    before = server.memory()
    replies = send_all(
        server,
        numbered(join("pending", session=2_000), 4, MOST_PENDING + 1_000),
        JoinGroupResponse,
        4,
    )
    told = codes(replies)
    assert told.keys() <= {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert told[ErrorCode.MEMBER_ID_REQUIRED] >= MOST_PENDING
    assert server.memory() < before + GROUPS
    wait_until_gone(server, "pending")


def test_long_client_ids_of_pending_members_are_limited(server, under_attack):
    # Longer than it takes to reach the limit, so that none expires before.
    request = join("wordy", session=5_000)
    request.API_VERSION = 4
    request.with_header(1, "c" * 30_000)
    frame = bytes(request.encode(version=4, header=True))
    before = server.memory()
    with server.peer() as peer:
        told: Counter[int] = Counter()
        for _ in range(40):
            peer.send(*[frame] * 50)
            told.update(
                JoinGroupResponse.decode(peer.receive()[4:], version=4).error_code
                for _ in range(50)
            )
    assert told.keys() == {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert server.memory() < before + 2 * GROUPS
    wait_until_gone(server, "wordy")


def wait_until_gone(server: GatewayProcess, *groups: str) -> None:
    """Wait until these groups no longer exist."""
    end = time.monotonic() + SECONDS
    with server.peer() as peer:
        while True:
            reply = peer.request(
                DescribeGroupsRequest(groups=list(groups), include_authorized_operations=False),
                DescribeGroupsResponse,
                5,
            )
            states = {
                one.group_id: one.group_state for one in reply.groups if one.group_state != "Dead"
            }
            if not states:
                return
            assert time.monotonic() < end, states
            time.sleep(0.1)


def test_thousands_of_joins_without_sync_in_one_group_are_limited(server, under_attack):
    """A new generation starts whenever all known members have joined."""
    frames = numbered(join("restless", session=1_000, rebalance=0), 3, 4 * MOST_MEMBERS)
    told = codes(send_all(server, frames, JoinGroupResponse, 3, peers=100, at_once=10))
    assert told.keys() <= {
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
    wait_until_gone(server, "restless")


def test_joins_without_sync_to_thousands_of_groups_are_limited(server, under_attack):
    told = codes(
        send_all(
            server,
            numbered(join("many-#####", session=1_000), 3, 2_500),
            JoinGroupResponse,
            3,
            peers=50,
        )
    )
    assert told.keys() <= {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert told[0] > 2_000
    wait_until_gone(server, *(f"many-{number:05}" for number in range(0, 2_500, 100)))


def test_members_that_disconnect_during_join_and_sync_are_removed(server, under_attack):
    files = server.open_files()
    for number in range(14):
        with server.peer() as first, server.peer() as second, server.peer() as third:
            member = first.request(
                join(f"vanish-{number % 7}", version=3, session=500, rebalance=500),
                JoinGroupResponse,
                3,
            )
            second.send(encode_request(join(f"vanish-{number % 7}", session=500), 3))
            first.send(
                encode_request(
                    sync(f"vanish-{number % 7}", member.member_id, member.generation_id), 5
                )
            )
            third.send(
                encode_request(join(f"vanish-{number % 7}", session=500, instance=f"i{number}"), 5)
            )
            for one in (first, second, third):
                one.reset()
    wait_until_gone(server, *(f"vanish-{number}" for number in range(7)))
    end = time.monotonic() + SECONDS
    while server.open_files() > files and time.monotonic() < end:
        time.sleep(0.02)
    assert server.open_files() <= files


# Offsets


def test_commit_to_missing_partition_is_unknown_topic_or_partition(under_attack, peer):
    rows = [("steady", [1, -1, 2**31 - 1]), ("nothing", [0]), ("", [0])]
    assert codes_of(peer.request(commit("offsets", rows), OffsetCommitResponse, 8)) == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 5
    }
    assert peer.request(fetch_of("offsets"), OffsetFetchResponse, 9).groups[0].topics == []


def test_commit_metadata_over_the_limit_is_offset_metadata_too_large(under_attack, peer):
    assert codes_of(
        peer.request(commit("noted", [("steady", [0])], note="n" * 32_000), OffsetCommitResponse, 8)
    ) == {ErrorCode.OFFSET_METADATA_TOO_LARGE: 1}
    assert codes_of(
        peer.request(commit("noted", [("steady", [0])], note="n" * 4_096), OffsetCommitResponse, 8)
    ) == {0: 1}


def test_commit_of_too_many_partitions_closes_the_connection(server, under_attack, peer, wide):
    """Up to the decoder's limit each partition gets its error."""
    with server.peer() as greedy:
        greedy.send(encode_request(commit("wide", [("wide", range(50_001))]), 8))
        assert greedy.is_closed()
        assert len(refused(server, greedy)) == 1
    told = codes_of(
        peer.request(commit("wide", [("wide", range(49_000))]), OffsetCommitResponse, 8)
    )
    assert told == {0: PARTITIONS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 49_000 - PARTITIONS}
    again = [("wide", [7] * 40_000)]
    assert codes_of(peer.request(commit("wide", again), OffsetCommitResponse, 2)) == {0: 1}


def test_offset_fetch_of_large_groups_is_answered(server, under_attack, peer, wide):
    for group in ("wide", "wide-2", "wide-3"):
        assert codes_of(
            peer.request(commit(group, [("wide", range(PARTITIONS))]), OffsetCommitResponse, 8)
        ) == {0: PARTITIONS}
    reply = peer.request(fetch_of("wide", "wide-2", "wide-3"), OffsetFetchResponse, 9)
    assert [len(group.topics[0].partitions) for group in reply.groups] == [PARTITIONS] * 3
    same = peer.request(fetch_of(*["wide"] * 1_000), OffsetFetchResponse, 9)
    assert codes(same.groups) == {ErrorCode.INVALID_REQUEST: 1_000}
    missing = peer.request(
        fetch_of(*(f"unknown-{number}" for number in range(20_000))), OffsetFetchResponse, 9
    )
    assert codes(missing.groups) == {0: 20_000}
    for group in ("wide", "wide-2", "wide-3"):
        assert (
            peer.request(DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, 2)
            .results[0]
            .error_code
            == 0
        )


def test_commits_to_new_groups_are_refused_at_the_limit(server, under_attack, peer):
    before = server.memory()
    name = f"{'new' * 100}-#####"
    replies = send_all(
        server,
        numbered(commit(name, [("steady", [0])]), 8, 12_000),
        OffsetCommitResponse,
        8,
        peers=200,
    )
    told = sum(map(codes_of, replies), Counter())
    assert told.keys() == {0, ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert 5_000 < told[0] < OFFSETS // 900
    assert server.memory() < before + 2 * OFFSETS
    names = [name.replace("#####", f"{number:05}") for number in range(12_000)]
    deleted = peer.request(DeleteGroupsRequest(groups_names=names), DeleteGroupsResponse, 2)
    assert codes(deleted.results)[0] == told[0]


# Administration


def test_requests_with_ten_thousand_names_of_groups_are_answered(under_attack, peer, server):
    names = [f"asked-{number:05}" for number in range(10_000)]
    some = 1_000
    frames = numbered(commit("asked-#####", [("steady", [0])]), 8, some)
    told = sum(map(codes_of, send_all(server, frames, OffsetCommitResponse, 8)), Counter())
    assert told == {0: some}
    described = peer.request(
        DescribeGroupsRequest(groups=names, include_authorized_operations=True),
        DescribeGroupsResponse,
        6,
    )
    assert Counter(group.group_state for group in described.groups) == {
        "Empty": some,
        "Dead": len(names) - some,
    }
    request = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=True)
    looked = peer.request(request, ConsumerGroupDescribeResponse, 1)
    assert codes(looked.groups) == {ErrorCode.GROUP_ID_NOT_FOUND: 10_000}
    listed = peer.request(
        ListGroupsRequest(states_filter=[], types_filter=[]), ListGroupsResponse, 5
    )
    assert {group.group_id for group in listed.groups} >= set(names[:some])
    deleted = peer.request(DeleteGroupsRequest(groups_names=names), DeleteGroupsResponse, 2)
    assert codes(deleted.results) == {0: some, ErrorCode.GROUP_ID_NOT_FOUND: len(names) - some}
    again = peer.request(DeleteGroupsRequest(groups_names=names), DeleteGroupsResponse, 2)
    assert codes(again.results) == {ErrorCode.GROUP_ID_NOT_FOUND: 10_000}


def test_leave_of_ten_thousand_unknown_members_is_answered(under_attack, peer):
    reply = peer.request(
        leave("steady-1", [f"m{number}" for number in range(10_000)]), LeaveGroupResponse, 5
    )
    assert codes(reply.members) == {ErrorCode.UNKNOWN_MEMBER_ID: 10_000}


def test_offset_delete_of_thousands_of_partitions_is_answered(under_attack, peer, wide):
    peer.request(commit("forgotten", [("wide", range(PARTITIONS))]), OffsetCommitResponse, 8)
    kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
    rows = [
        kind(
            name="wide",
            partitions=[
                kind.OffsetDeleteRequestPartition(partition_index=index) for index in range(45_000)
            ],
        )
    ]
    (topic,) = peer.request(
        OffsetDeleteRequest(group_id="forgotten", topics=rows), OffsetDeleteResponse, 0
    ).topics
    assert codes(topic.partitions) == {
        0: PARTITIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 45_000 - PARTITIONS,
    }


# The consumer protocol


def test_wrong_epochs_get_the_errors_of_kafka(under_attack, peer):
    def epoch_of(epoch: int, member: str = "liar") -> int:
        return peer.request(
            heartbeat_of("liars", member, epoch), ConsumerGroupHeartbeatResponse, 1
        ).error_code

    assert epoch_of(5) == ErrorCode.GROUP_ID_NOT_FOUND
    assert (
        peer.request(
            heartbeat_of("liars", "liar", 0, ["steady"]), ConsumerGroupHeartbeatResponse, 1
        ).member_epoch
        == 1
    )
    told = {epoch: epoch_of(epoch) for epoch in (1, 2, 2**31 - 1, -3, -(2**31), -2)}
    fenced, invalid = ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.INVALID_REQUEST
    assert told == {1: 0, 2: fenced, 2**31 - 1: fenced, -3: invalid, -(2**31): invalid, -2: invalid}
    assert epoch_of(1, "stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert epoch_of(-1, "stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert epoch_of(1, "") == ErrorCode.INVALID_REQUEST
    assert epoch_of(-1) == 0


def test_claimed_partitions_are_not_assigned(under_attack, peer, wide):
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    reply = peer.request(
        heartbeat_of("thieves", "honest", 0, ["wide"]), ConsumerGroupHeartbeatResponse, 1
    )
    assert len(reply.assignment.topic_partitions[0].partitions) == PARTITIONS
    stolen = [
        kind(topic_id=wide, partitions=list(range(45_000))),
        kind(topic_id=uuid.uuid4(), partitions=[-1, 2**31 - 1]),
    ]
    assert peer.request(
        heartbeat_of("thieves", "thief", 0, ["wide"], topic_partitions=stolen),
        ConsumerGroupHeartbeatResponse,
        1,
    ).error_code == (ErrorCode.INVALID_REQUEST)
    epoch = peer.request(
        heartbeat_of("thieves", "thief", 0, ["wide"]), ConsumerGroupHeartbeatResponse, 1
    ).member_epoch
    told = peer.request(
        heartbeat_of("thieves", "thief", epoch, topic_partitions=stolen),
        ConsumerGroupHeartbeatResponse,
        1,
    )
    given = [] if told.assignment is None else told.assignment.topic_partitions
    assert (told.error_code, [len(row.partitions) for row in given]) == (0, [])
    for member in ("honest", "thief"):
        peer.request(heartbeat_of("thieves", member, -1), ConsumerGroupHeartbeatResponse, 1)


def test_costly_and_invalid_regexes_do_not_delay_other_members(server, under_attack, peer, wide):
    peer.send(
        *(
            encode_request(
                heartbeat_of("regex", f"m{n}", 0, None, subscribed_topic_regex="(" * n), 1
            )
            for n in range(1, 50)
        )
    )
    for _ in range(49):
        assert (
            ConsumerGroupHeartbeatResponse.decode(peer.receive()[5:], version=1).error_code
            == ErrorCode.INVALID_REGULAR_EXPRESSION
        )
    costly = [f"({'a|b|c|.*' * 20})*" * 6 + f"{number}" for number in range(40)] + [
        ".*" * 1000 + f"{number}" for number in range(40)
    ]
    beats = [
        encode_request(heartbeat_of("regex", f"m{number}", 0, None, subscribed_topic_regex=text), 1)
        for number, text in enumerate(costly)
    ]
    told = codes(send_all(server, beats, ConsumerGroupHeartbeatResponse, 1, peers=4))
    assert told.keys() <= {0, ErrorCode.INVALID_REGULAR_EXPRESSION}


def test_many_joins_to_a_large_group_do_not_delay_other_members(server, under_attack, peer, wide):
    """Each join computes a target assignment of thousands of partitions, with the maximum number of
    members.
    """
    newcomers = numbered(heartbeat_of("flood", "m#####", 0, ["wide"]), 1, MOST_MEMBERS + 500)
    told = codes(send_all(server, newcomers, ConsumerGroupHeartbeatResponse, 1))
    assert told.keys() <= {0, ErrorCode.GROUP_MAX_SIZE_REACHED}
    assert told[0] <= MOST_MEMBERS
    for number in range(20):
        peer.request(heartbeat_of("flood", f"m{number:05}", -1), ConsumerGroupHeartbeatResponse, 1)
        peer.request(
            heartbeat_of("flood", f"m{number:05}", 0, ["wide"]),
            ConsumerGroupHeartbeatResponse,
            1,
        )
    request = ConsumerGroupDescribeRequest(group_ids=["flood"], include_authorized_operations=False)
    (group,) = peer.request(request, ConsumerGroupDescribeResponse, 1).groups
    assert 0 < len(group.members) <= MOST_MEMBERS
    send_all(
        server,
        numbered(heartbeat_of("flood", "m#####", -1), 1, MOST_MEMBERS),
        ConsumerGroupHeartbeatResponse,
        1,
    )
