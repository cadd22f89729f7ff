"""ConsumerGroupDescribe (KIP-848). DescribeGroups returns classic groups only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.coroutines import TimeSlices
from gateway.groups.consumer.assignors import TopicId
from gateway.groups.consumer.consumer_group import ConsumerGroup
from gateway.groups.consumer.consumer_member import ConsumerGroupMember
from gateway.handlers.metadata import OPERATIONS_OMITTED
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.group_messages import ConsumerGroupDescribeResponse
from gateway.protocol.wire.messages import uuid_of
from gateway.security.acls import AclOperation, AclResource

_Described = ConsumerGroupDescribeResponse.DescribedGroup
_Member = _Described.Member
_Assignment = _Member.Assignment

#: Values of MemberType (KIP-1099).
_CLASSIC, _CONSUMER = 0, 1


@serves(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1)
async def describe_consumer_groups(request: Any, caller: Caller) -> Any:
    """Return epochs, members and assignments of consumer groups.

    v1 adds the member type (KIP-1099). Other groups are an error. A group that is listed twice is
    described once.
    """
    rows = []
    slices, deadline = TimeSlices(caller.broker.clock), caller.broker.confirm_deadline()
    for group_id in dict.fromkeys(request.group_ids):
        try:
            caller.require(AclOperation.DESCRIBE, AclResource.GROUP, group_id)
            await caller.broker.confirm_coordinator(group_id, deadline)
            row = _described(_consumer_group(group_id, caller), caller)
            _check_topics(row, caller)
        except KafkaError as failure:
            row = _refused(group_id, failure)
        else:
            if request.include_authorized_operations:
                row.authorized_operations = caller.operations_on(AclResource.GROUP, group_id)
        rows.append(row)
        await slices.take(1 + len(row.members))
    return await encode_if_large(ConsumerGroupDescribeResponse(groups=rows), slices, caller)


def _check_topics(row: Any, caller: Caller) -> None:
    """Hide a group whose members have topics that the caller may not describe, as in Kafka 4.

    Raises KafkaError(TOPIC_AUTHORIZATION_FAILED).
    """
    if caller.is_unrestricted:
        return
    names = {
        topic.topic_name
        for member in row.members
        for assigned in (member.assignment, member.target_assignment)
        for topic in assigned.topic_partitions
    }
    for name in names:
        caller.require_topic(AclOperation.DESCRIBE, name)


def _refused(group_id: str, failure: KafkaError) -> Any:
    return _Described(
        error_code=failure.code,
        error_message=failure.message,
        group_id=group_id,
        authorized_operations=OPERATIONS_OMITTED,
    )


def _consumer_group(group_id: str, caller: Caller) -> ConsumerGroup:
    """Raises KafkaError: GROUP_ID_NOT_FOUND, INVALID_GROUP_ID, NOT_COORDINATOR."""
    caller.broker.groups.check_active(group_id)
    group = caller.broker.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        return group
    is_there = group is not None or caller.broker.offsets.has(group_id)
    raise KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {group_id} {'is not a consumer group' if is_there else 'not found'}.",
    )


def _described(group: ConsumerGroup, caller: Caller) -> Any:
    return _Described(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group.group_id,
        authorized_operations=OPERATIONS_OMITTED,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_described_member(member, caller) for member in group.roster],
    )


def _described_member(member: ConsumerGroupMember, caller: Caller) -> Any:
    """Follows Kafka 4.3.

    Partitions being revoked count as assigned, and a member without a regular expression has an
    empty one.
    """
    held = {
        topic: {*member.assigned.get(topic, ()), *member.revoking.get(topic, ())}
        for topic in member.assigned.keys() | member.revoking.keys()
    }
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(held, caller),
        target_assignment=_assignment(member.target, caller),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(partitions: Mapping[TopicId, Iterable[int]], caller: Caller) -> Any:
    """Deleted topics are left out because they no longer have a name."""
    rows = []
    for topic_id, indexes in partitions.items():
        topic_state = caller.broker.topics.get(topic_id)
        if topic_state is not None:
            rows.append(
                _Assignment.TopicPartitions(
                    topic_id=uuid_of(topic_id),
                    topic_name=topic_state.name,
                    partitions=sorted(indexes),
                )
            )
    return _Assignment(topic_partitions=sorted(rows, key=lambda row: str(row.topic_name)))
