"""Sends the same group requests (KIP-848 and classic) to the gateway and to Kafka and compares the
replies.

Error messages are not compared. Topic ids are replaced by names, and random ids by numbers in order
of appearance.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import zip_longest
from struct import pack
from typing import Any

from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
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
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.testkit.gateway import Peer

SECONDS = 60.0
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27

#: Group names, one for each of the four partitions of the tests' `__consumer_offsets`
#: (`String.hashCode` modulo 4).
IN_EACH_PARTITION = "abcd"

#: Generated ids: a UUID in Java's format, optionally after the client id, or in Kafka's format.
_CHANCE = re.compile(
    r"(\w+-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![\w-])[\w-]{22}(?![\w-])"
)

#: Fields of requests and replies that hold an epoch or a generation.
_EPOCHS = {
    "member_epoch",
    "group_epoch",
    "assignment_epoch",
    "generation_id",
    "generation_id_or_member_epoch",
}
#: Group operations that only Kafka 4 has: DESCRIBE_CONFIGS and ALTER_CONFIGS.
_NEW_OPERATIONS = {10, 11}

#: Partitions by topic.
Partitions = Mapping[str, Iterable[int]]


class RecordedBroker:
    """A connection to one of the two brokers, and all its replies."""

    def __init__(self, address: str, version: int, stack: ExitStack, ahead: int = 0) -> None:
        """`ahead` is the difference of this broker's epochs of a new group from the gateway's."""
        host, _, port = address.partition(":")
        self.version = version
        """Version of ConsumerGroupHeartbeat and ConsumerGroupDescribe."""
        self._ahead = self._began_ahead = ahead
        self.peer = stack.enter_context(Peer((host, int(port)), seconds=SECONDS))
        self.topics: dict[str, uuid.UUID] = {}
        self.answers: list[tuple[str, Any]] = []
        """The request's name and the normalized reply."""
        self._names: dict[str, str] = {}
        self._numbers: dict[str, str] = {}

    def request(self, request: Any, response: Any, version: int, *, is_noted: bool = True) -> Any:
        reply = self.peer.request(request, response, version)
        if is_noted:
            self.answers.append(
                (f"{type(request).__name__} v{version}", self.normalize(reply.to_dict()))
            )
        return reply

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait without recording replies: the two brokers may take a different number of
        requests.
        """
        end = time.monotonic() + SECONDS
        noted = len(self.answers)
        while not is_so():
            assert time.monotonic() < end, f"{what}: {self.answers[-1:]}"
            del self.answers[noted:]
            time.sleep(0.05)
        del self.answers[noted:]

    def normalize(self, value: Any, key: str = "") -> Any:
        match value:
            case dict():
                return {
                    name: self.normalize(one, name)
                    for name, one in value.items()
                    if name != "error_message"
                }
            case int() if key in _EPOCHS:
                return value - self._ahead if value > 0 else value
            case list() if key == "authorized_operations":
                return sorted({*value} - _NEW_OPERATIONS)
            case list():
                # Kafka returns members and topics in any order.
                return sorted((self.normalize(one) for one in value), key=repr)
            case str() if value in self._names:
                return self._names[value]
            case str():
                return _CHANCE.sub(
                    lambda found: self._numbers.setdefault(found[0], f"#{len(self._numbers) + 1}"),
                    value,
                )
        return value

    def start_group(self, *, classic: bool) -> None:
        """Start a group of this protocol. A group converted from the classic protocol continues
        from its generation.
        """
        self._ahead = 0 if classic else self._began_ahead

    # Topics

    def create_topic(self, name: str, partitions: int) -> None:
        row = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[row], timeout_ms=10_000, validate_only=False)
        (made,) = self.request(request, CreateTopicsResponse, 7, is_noted=False).topics
        assert made.error_code == 0, made
        self.topics[name] = made.topic_id
        self._names[str(made.topic_id)] = name
        self.wait_for_topic(name, partitions)

    def wait_for_topic(self, name: str, partitions: int) -> None:
        """Wait until groups use a new topic; in Kafka that is later than the reply to
        CreateTopics.
        """
        scout = ConsumerMember(self, f"scout-{name}-{partitions}", "scout")
        self.wait_until(
            lambda: bool(scout.join(name)) and scout.assigned == {name: list(range(partitions))},
            f"{name} is known",
        )
        noted = len(self.answers)
        scout.leave()
        self.delete_groups(scout.group)
        del self.answers[noted:]

    def add_partitions(self, name: str, partitions: int) -> None:
        row = CreatePartitionsRequest.CreatePartitionsTopic(
            name=name, count=partitions, assignments=None
        )
        request = CreatePartitionsRequest(topics=[row], timeout_ms=10_000, validate_only=False)
        (grown,) = self.request(request, CreatePartitionsResponse, 3, is_noted=False).results
        assert grown.error_code == 0, grown

    def delete_topic(self, name: str) -> None:
        row = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=uuid.UUID(int=0))
        (gone,) = self.request(
            DeleteTopicsRequest(topics=[row], timeout_ms=10_000),
            DeleteTopicsResponse,
            6,
            is_noted=False,
        ).responses
        assert gone.error_code == 0, gone

    # Groups

    def describe(self, group: str) -> Any:
        """Describe and list the group."""
        request = ConsumerGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=True
        )
        (described,) = self.request(request, ConsumerGroupDescribeResponse, self.version).groups
        classic = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
        reply = self.request(classic, DescribeGroupsResponse, 5, is_noted=False)
        for one in reply.groups:
            if one.group_state != "Stable":
                # The previous assignment; the coordinator of Kafka 4 keeps it until there is a new
                # one.
                for member in one.members:
                    member.member_assignment = b""
        self.answers.append(("DescribeGroupsRequest", self.normalize(reply.to_dict())))
        self.list_group(group)
        return described

    def list_group(self, group: str, states: Iterable[str] = (), types: Iterable[str] = ()) -> None:
        reply = self.peer.request(
            ListGroupsRequest(states_filter=list(states), types_filter=list(types)),
            ListGroupsResponse,
            5,
        )
        rows = [one for one in reply.to_dict()["groups"] if one["group_id"] == group]
        self.answers.append((f"list of {states} {types}", (reply.error_code, self.normalize(rows))))

    def state(self, group: str) -> tuple[str, int]:
        """State name and number of members."""
        request = ConsumerGroupDescribeRequest(
            group_ids=[group], include_authorized_operations=False
        )
        (described,) = self.request(
            request, ConsumerGroupDescribeResponse, self.version, is_noted=False
        ).groups
        return described.group_state, len(described.members)

    def delete_groups(self, *groups: str) -> None:
        self.request(DeleteGroupsRequest(groups_names=list(groups)), DeleteGroupsResponse, 2)

    def commit(
        self,
        group: str,
        offsets: Partitions,
        member: str = "",
        epoch: int = -1,
        *,
        version: int = 9,
        instance: str | None = None,
    ) -> None:
        """Commit offset N + 1 for each partition N."""
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        row = kind.OffsetCommitRequestPartition
        topics = [
            kind(
                name=name,
                partitions=[
                    row(partition_index=index, committed_offset=index + 1, committed_metadata="")
                    for index in indexes
                ],
            )
            for name, indexes in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance,
            topics=topics,
        )
        self.request(request, OffsetCommitResponse, version)

    def delete_offsets(self, group: str, *topics: str) -> None:
        kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        rows = [
            kind(name=name, partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
            for name in topics
        ]
        self.request(OffsetDeleteRequest(group_id=group, topics=rows), OffsetDeleteResponse, 0)

    def remove_members(self, group: str, *members: tuple[str, str | None]) -> None:
        """Remove members, given by member id and instance id, with LeaveGroup."""
        rows = [
            LeaveGroupRequest.MemberIdentity(
                member_id=name, group_instance_id=instance, reason="over"
            )
            for name, instance in members
        ]
        self.request(LeaveGroupRequest(group_id=group, members=rows), LeaveGroupResponse, 5)

    def fetch_offsets(
        self, group: str, topic: str, partitions: int, member: str | None = None, epoch: int = -1
    ) -> None:
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [
            kind.OffsetFetchRequestTopics(name=topic, partition_indexes=list(range(partitions)))
        ]
        asked = kind(group_id=group, member_id=member, member_epoch=epoch, topics=topics)
        self.request(
            OffsetFetchRequest(groups=[asked], require_stable=True), OffsetFetchResponse, 9
        )


class ConsumerMember:
    """A member of the consumer protocol. Like a client, it keeps its epoch and its last
    assignment.
    """

    def __init__(
        self, side: RecordedBroker, group: str, member_id: str = "", instance: str | None = None
    ) -> None:
        self._side = side
        self.group = group
        self.id = member_id
        self.instance = instance
        self.epoch = 0
        self.assigned: dict[str, list[int]] | None = None

    def join(self, *topics: str, assignor: str | None = "range", **fields: Any) -> Any:
        subscribed = {"subscribed_topic_names": list(topics)} if topics else {}
        values = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 60_000,
            "server_assignor": assignor,
            "topic_partitions": [],
        }
        return self.heartbeat(**values | subscribed | fields)

    def report_owned(self, **owned: Iterable[int]) -> Any:
        """Send a heartbeat with the partitions that the member owns now."""
        return self.heartbeat(topic_partitions=self.rows(owned))

    def rows(self, owned: Partitions) -> list[Any]:
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        return [
            kind(topic_id=self._side.topics[name], partitions=list(indexes))
            for name, indexes in owned.items()
        ]

    def heartbeat(self, **fields: Any) -> Any:
        """Send a heartbeat that contains only `fields`."""
        values = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
        } | fields
        reply = self._side.request(
            ConsumerGroupHeartbeatRequest(**values),
            ConsumerGroupHeartbeatResponse,
            self._side.version,
        )
        if not reply.error_code:
            self.id, self.epoch = reply.member_id, reply.member_epoch
            if reply.assignment is not None:
                rows = self._side.normalize(reply.assignment.to_dict())["topic_partitions"]
                self.assigned = {row["topic_id"]: row["partitions"] for row in rows}
        return reply

    def full_heartbeat(self, *topics: str, owned: Partitions, **fields: Any) -> Any:
        """Send all fields, as a member does that has missed a reply."""
        told = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": list(topics),
            "server_assignor": "range",
        }
        return self.heartbeat(**told | {"topic_partitions": self.rows(owned)} | fields)

    def leave(self, epoch: int = -1) -> Any:
        return self.heartbeat(member_epoch=epoch)

    def commit(self, epoch: int | None = None, version: int = 9, **offsets: Iterable[int]) -> None:
        self._side.commit(
            self.group, offsets, self.id, self.epoch if epoch is None else epoch, version=version
        )

    def wait_for_assignment(self, expected: Partitions) -> None:
        """Send heartbeats until the assignment is `expected`, for work that the broker does in the
        background.
        """
        self._side.wait_until(
            lambda: self.heartbeat() and self.assigned == expected, f"{self.id} has {expected}"
        )
        self._side.answers.append(
            (
                f"{self.id} is given",
                self._side.normalize({"member_epoch": self.epoch, "given": self.assigned}),
            )
        )


def subscription(
    *topics: str,
    version: int = 1,
    owned: Partitions | None = None,
    generation: int = -1,
    rack: str | None = None,
) -> bytes:
    """ConsumerProtocolSubscription: the metadata of a classic member. Without `owned`, the member
    has given back its partitions.
    """
    words = (
        pack(">hi", version, len(topics))
        + b"".join(pack(">h", len(name)) + name.encode() for name in topics)
        + pack(">i", -1)
    )
    if version >= 1:
        words += _partitions(owned or {})
    if version >= 2:
        words += pack(">i", generation)
    if version >= 3:
        words += pack(">h", -1) if rack is None else pack(">h", len(rack)) + rack.encode()
    return words


def assignment(version: int = 1, notes: bytes | None = None, **owned: Iterable[int]) -> bytes:
    """ConsumerProtocolAssignment."""
    return (
        pack(">h", version)
        + _partitions(owned)
        + (pack(">i", -1) if notes is None else pack(">i", len(notes)) + notes)
    )


def _partitions(owned: Partitions) -> bytes:
    rows = [
        pack(">h", len(name)) + name.encode() + _numbers(list(indexes))
        for name, indexes in owned.items()
    ]
    return pack(">i", len(rows)) + b"".join(rows)


def _numbers(indexes: list[int]) -> bytes:
    return pack(f">i{len(indexes)}i", len(indexes), *indexes)


class ClassicMember:
    """A member of the classic protocol that waits for each reply.

    It must therefore be the only member, or be in a group of the consumer protocol.
    """

    def __init__(
        self,
        side: RecordedBroker,
        group: str,
        *topics: str,
        instance: str | None = None,
        **protocols: bytes,
    ) -> None:
        self._side = side
        self.group = group
        self.id = ""
        self.generation = -1
        self.instance = instance
        self.protocols = protocols or {"range": subscription(*topics)}

    def join(self, version: int = 9, **fields: Any) -> Any:
        kind = JoinGroupRequest.JoinGroupRequestProtocol
        rows = [
            kind(name=name.replace("_", "-"), metadata=metadata)
            for name, metadata in self.protocols.items()
        ]
        values = {
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "reason": None,
        } | fields
        request = JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            group_instance_id=self.instance,
            protocols=rows,
            **values,
        )
        reply = self._side.request(request, JoinGroupResponse, version)
        if reply.error_code == MEMBER_ID_REQUIRED:
            self.id = reply.member_id
            return self.join(version, **fields)
        if not reply.error_code:
            self.id, self.generation = reply.member_id, reply.generation_id
        return reply

    def sync(self, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Any:
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        rows = [
            kind(member_id=name, assignment=words) for name, words in (assignments or {}).items()
        ]
        values = {
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": next(iter(self.protocols)),
        } | fields
        request = SyncGroupRequest(
            group_id=self.group,
            member_id=self.id,
            group_instance_id=self.instance,
            assignments=rows,
            **values,
        )
        return self._side.request(request, SyncGroupResponse, 5)

    def heartbeat(self, generation: int | None = None) -> Any:
        request = HeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            generation_id=self.generation if generation is None else generation,
            group_instance_id=self.instance,
        )
        return self._side.request(request, HeartbeatResponse, 4)

    def leave(self) -> None:
        self._side.remove_members(self.group, (self.id, self.instance))

    def commit(
        self, generation: int | None = None, version: int = 8, **offsets: Iterable[int]
    ) -> None:
        epoch = self.generation if generation is None else generation
        self._side.commit(
            self.group, offsets, self.id, epoch, version=version, instance=self.instance
        )


def play(
    addresses: tuple[str, str], version: int, ahead: int, scenario: Callable[[RecordedBroker], None]
) -> None:
    """Run a scene against the gateway and Kafka and compare all replies.

    Epochs of a new group in Kafka are `ahead` of the gateway's.
    """
    with ExitStack() as stack:
        ours, theirs = (
            RecordedBroker(addresses[0], version, stack),
            RecordedBroker(addresses[1], version, stack, ahead),
        )

        def run(side: RecordedBroker) -> None:
            wait_for_coordinator(side.peer)
            scenario(side)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, (ours, theirs)))
        differences = []
        for number, ((what, our), (asked, their)) in enumerate(
            zip_longest(ours.answers, theirs.answers, fillvalue=("nothing", None))
        ):
            if (what, our) != (asked, their):
                differences += [
                    f"{number}. {what}:",
                    *(describe_differences(our, their) or [asked]),
                ]
        assert not differences, "\n".join(differences)


def describe_differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Where two replies differ, with both values."""
    match ours, theirs:
        case dict(), dict() if ours.keys() == theirs.keys():
            return [
                line
                for name in ours
                for line in describe_differences(ours[name], theirs[name], f"{place}.{name}")
            ]
        case list(), list() if len(ours) == len(theirs):
            return [
                line
                for number, pair in enumerate(zip(ours, theirs, strict=True))
                for line in describe_differences(*pair, f"{place}[{number}]")
            ]
    return [] if ours == theirs else [f"{place}: {ours!r}, Kafka {theirs!r}"]


def wait_for_coordinator(peer: Peer) -> None:
    """Wait until all partitions of `__consumer_offsets` are loaded.

    Kafka creates the topic at the first FindCoordinator and then loads its partitions one by one.
    """
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        found = peer.request(
            FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 1
        )
        asked = DescribeGroupsRequest(
            groups=list(IN_EACH_PARTITION), include_authorized_operations=False
        )
        if not found.error_code and not any(
            one.error_code for one in peer.request(asked, DescribeGroupsResponse, 5).groups
        ):
            return
        time.sleep(0.2)
    raise AssertionError("there is no coordinator")
