"""A fake admin client for `kopgate groups`, with the reply layouts of Kafka 3.9.2."""

from __future__ import annotations

from types import SimpleNamespace

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import (
    IncompatibleBrokerVersion,
    NoError,
    NonEmptyGroupError,
    UnknownMemberIdError,
)
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

NODE = 1

_Consumers = ConsumerGroupDescribeResponse.DescribedGroup


def assigned(**topics):
    """An assignment as encoded by the group leader: partitions by topic."""
    rows = [
        ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=list(numbers))
        for name, numbers in topics.items()
    ]
    return bytes(
        ConsumerProtocolAssignment(version=0, assigned_partitions=rows, user_data=b"").encode()
    )


def member(name, assignment=b"", instance_id=None):
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=f"{name}-1",
        group_instance_id=instance_id,
        client_id=name,
        client_host="/10.0.0.1",
        member_metadata=b"",
        member_assignment=assignment,
    )


def consumer(name, has, target, instance_id=None, epoch=7):
    """A member of a consumer group. `has` and `target` are partitions by topic."""

    def partitions(topics):
        row = _Consumers.Member.Assignment.TopicPartitions
        rows = [
            row(topic_name=topic, partitions=list(numbers)) for topic, numbers in topics.items()
        ]
        return _Consumers.Member.Assignment(topic_partitions=rows)

    return _Consumers.Member(
        member_id=f"{name}-1",
        instance_id=instance_id,
        client_id=name,
        client_host="/10.0.0.1",
        member_epoch=epoch,
        assignment=partitions(has),
        target_assignment=partitions(target),
    )


class Groups:
    """The fake admin client.

    `ranges` are the start and end offset of each partition, `leaderless` the partitions without
    leader. `asked` records the names in each describe request. `consumers` selects how the server
    supports consumer groups.
    """

    def __init__(self):
        self.config = {"request_timeout_ms": 1000}
        self.groups = {}
        self.consumer_groups = {}
        self.consumers = "knows them"
        self.asked = []
        self.commits = {}
        self.ranges = {}
        self.leaderless = set()
        self.times = {}
        self.is_version_6 = False

    def topic(self, name, *ranges):
        self.ranges |= {
            TopicPartition(name, number): limits for number, limits in enumerate(ranges)
        }

    def group(self, name, *members, state=None, protocol_type="consumer", commits=()):
        state = state or ("Stable" if members else "Empty")
        self.groups[name] = (state, protocol_type, members)
        self.commits[name] = {
            TopicPartition(*partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in dict(commits).items()
        }

    def consumer_group(self, name, *members, state=None, epoch=7, error_code=0):
        self.consumer_groups[name] = _Consumers(
            error_code=error_code,
            error_message=None,
            group_id=name,
            group_state=state or ("Stable" if members else "Empty"),
            group_epoch=epoch,
            assignment_epoch=epoch,
            assignor_name="uniform",
            members=list(members),
        )

    def list_groups(self, states_filter=None):
        rows = [
            {"group_id": name, "protocol_type": kind, "group_state": state, "group_type": "classic"}
            for name, (state, kind, _) in self.groups.items()
        ]
        return [
            row
            for row in reversed(rows)
            if not states_filter or row["group_state"] in states_filter
        ]

    def coordinators(self, group_ids):
        return dict.fromkeys(group_ids, NODE)

    def send(self, request, node_id):
        assert node_id == NODE
        if not isinstance(request, ConsumerGroupDescribeRequest):
            self.asked.append(request.groups)
            return SimpleNamespace(groups=[self._described(name) for name in request.groups])
        if self.consumers == "no such request":
            raise IncompatibleBrokerVersion("no version of ConsumerGroupDescribe")
        self.asked.append(request.group_ids)
        code = 35 if self.consumers == "switched off" else 69
        unknown = {name: _Consumers(error_code=code, group_id=name) for name in request.group_ids}
        return SimpleNamespace(
            groups=[self.consumer_groups.get(name, unknown[name]) for name in request.group_ids]
        )

    def _described(self, name):
        if name not in self.groups:
            code, message = (69, f"Group {name} not found.") if self.is_version_6 else (0, None)
            return DescribeGroupsResponse.DescribedGroup(
                error_code=code,
                error_message=message,
                group_id=name,
                group_state="Dead",
                protocol_type="",
                protocol_data="",
                members=[],
            )
        state, protocol_type, members = self.groups[name]
        return DescribeGroupsResponse.DescribedGroup(
            error_code=0,
            error_message=None,
            group_id=name,
            group_state=state,
            protocol_type=protocol_type,
            protocol_data="range" if state == "Stable" else "",
            members=list(members),
        )

    def list_group_offsets(self, wanted):
        return {name: dict(self.commits.get(name, {})) for name in wanted}

    def describe_topics(self, names):
        return [self._topic(name) for name in names]

    def _topic(self, name):
        partitions = [
            {
                "error_code": 0,
                "partition_index": part.partition,
                "leader_id": -1 if part in self.leaderless else NODE,
            }
            for part in self.ranges
            if part.topic == name
        ]
        return {"error_code": 0 if partitions else 3, "name": name, "partitions": partitions}

    def list_partition_offsets(self, wanted):
        return {part: SimpleNamespace(offset=self._offset(part, at)) for part, at in wanted.items()}

    def _offset(self, part, at):
        assert part not in self.leaderless
        first, end = self.ranges[part]
        return {-2: first, -1: end}[at] if at < 0 else self.times.get(part, {}).get(at, -1)

    def alter_group_offsets(self, name, offsets):
        _, _, members = self.groups.setdefault(name, ("Empty", "", ()))
        if members:
            return dict.fromkeys(offsets, UnknownMemberIdError)
        self.commits.setdefault(name, {}).update(offsets)
        return dict.fromkeys(offsets, NoError)

    def delete_groups(self, names):
        return {name: self._deleted(name) for name in names}

    def _deleted(self, name):
        if name not in self.groups:
            return "GroupIdNotFoundError"
        if self.groups[name][2]:
            return NonEmptyGroupError.__name__
        del self.groups[name], self.commits[name]
        return "OK"
