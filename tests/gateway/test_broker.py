"""Group requests while another gateway may have taken over the store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from storage.log import Fenced, StorageFailed
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.groups.group_requests import join_request, stable, sync_request
from tests.gateway.handlers.handler_calls import decode_response, start_call

#: Requests that are answered from group state in memory.
KEYS = {
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
}
ASKED = sorted((key, version) for key, version in ROUTES if key in KEYS)


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.topic("orders")
    ended(env.broker.offsets.commit("g", {("orders", 0): CommittedOffset(5, -1, "", NOW)}))
    return env


def request(env: BrokerEnvironment, key: int, version: int, member: Any) -> Any:
    """A request from a member of group `g`, or about that group."""
    of_member = {
        "group_id": "g",
        "generation_id": member.generation_id,
        "member_id": member.member_id,
    }
    topic_id = uuid.UUID(bytes=env.broker.topics.require("orders").topic.topic_id)
    match key:
        case ApiKey.JOIN_GROUP:
            return join_request(member.member_id)
        case ApiKey.SYNC_GROUP:
            return sync_request(member.member_id, member.generation_id)
        case ApiKey.HEARTBEAT:
            return HeartbeatRequest(**of_member)
        case ApiKey.LEAVE_GROUP:
            leaving = LeaveGroupRequest.MemberIdentity(
                member_id=member.member_id, group_instance_id=None
            )
            return LeaveGroupRequest(group_id="g", member_id=member.member_id, members=[leaving])
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsRequest(groups=["g"])
        case ApiKey.LIST_GROUPS:
            return ListGroupsRequest()
        case ApiKey.DELETE_GROUPS:
            return DeleteGroupsRequest(groups_names=["g"])
        case ApiKey.OFFSET_COMMIT:
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            row = topic.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=6, committed_metadata=""
            )
            return OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=member.generation_id,
                member_id=member.member_id,
                topics=[topic(name="orders", topic_id=topic_id, partitions=[row])],
            )
        case ApiKey.OFFSET_FETCH:
            group = OffsetFetchRequest.OffsetFetchRequestGroup
            topics = [
                OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
            ]
            named = [
                group.OffsetFetchRequestTopics(
                    name="orders", topic_id=topic_id, partition_indexes=[0]
                )
            ]
            groups = [group(group_id="g", member_id=None, member_epoch=-1, topics=named)]
            return (
                OffsetFetchRequest(group_id="g", topics=topics)
                if version < 8
                else OffsetFetchRequest(groups=groups)
            )
        case ApiKey.OFFSET_DELETE:
            deleted = OffsetDeleteRequest.OffsetDeleteRequestTopic
            partitions = [deleted.OffsetDeleteRequestPartition(partition_index=0)]
            return OffsetDeleteRequest(
                group_id="g", topics=[deleted(name="orders", partitions=partitions)]
            )
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return ConsumerGroupHeartbeatRequest(
                group_id="c",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["orders"],
                topic_partitions=[],
            )
        case _:
            return ConsumerGroupDescribeRequest(group_ids=["g"])


def values(reply: Any, name: str) -> Iterator[Any]:
    """The values of every field of this name, at any depth."""
    if isinstance(reply, dict):
        if name in reply:
            yield reply[name]
        reply = list(reply.values())
    if isinstance(reply, list):
        for one in reply:
            yield from values(one, name)


@pytest.mark.parametrize(("key", "version"), ASKED)
def test_group_requests_fail_after_store_is_lost(
    env: BrokerEnvironment, key: int, version: int
) -> None:
    body = request(env, key, version, stable(env))
    env.store.may_be_lost = True
    asking = start_call(env, body, version)
    assert not asking.is_done
    env.store.confirming.errback(Fenced("another process has the store"))
    reply = decode_response(body, asking.result, version).to_dict()
    assert {*values(reply, "error_code")} - {0} == {ErrorCode.NOT_COORDINATOR}
    assert {*values(reply, "committed_offset")} <= {-1}
    committed = env.broker.offsets.get("g", "orders", 0)
    assert committed is not None
    assert committed.offset == 5


@pytest.mark.parametrize(("key", "version"), ASKED)
def test_group_requests_succeed_once_store_is_confirmed(
    env: BrokerEnvironment, key: int, version: int
) -> None:
    body = request(env, key, version, stable(env))
    env.store.may_be_lost = True
    asking = start_call(env, body, version)
    env.store.confirming.callback(None)
    reply = decode_response(body, asking.result, version).to_dict()
    assert ErrorCode.NOT_COORDINATOR not in values(reply, "error_code")


@pytest.mark.parametrize("is_answered", [True, False])
def test_unconfirmed_store_counts_as_lost(env: BrokerEnvironment, is_answered: bool) -> None:
    body = request(env, ApiKey.HEARTBEAT, 4, stable(env))
    env.store.may_be_lost = True
    asking = start_call(env, body, 4)
    if is_answered:
        env.store.confirming.errback(StorageFailed("Pulsar did not confirm the store lock"))
    else:
        env.clock.advance(env.broker.settings.offsets_commit_timeout_ms / 1000)
    assert decode_response(body, asking.result, 4).error_code == ErrorCode.NOT_COORDINATOR
