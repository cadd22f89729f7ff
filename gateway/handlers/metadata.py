"""Metadata and DescribeCluster: who is there, which topics there are, who leads them."""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata.metadata import MetadataResponse

from gateway.caller import Caller
from gateway.errors import ErrorCode, KafkaError
from gateway.routes import serves
from gateway.topics import INTERNAL_TOPICS, LiveTopic
from gateway.wire.api_keys import ApiKey
from gateway.wire.messages import topic_id_of, uuid_of

_NO_ID = bytes(16)
# AclOperation's numbers. Without ACLs everybody may do everything that there is to do.
_TOPIC_OPERATIONS = frozenset({3, 4, 5, 6, 7, 8, 10, 11})
_CLUSTER_OPERATIONS = frozenset({5, 7, 8, 9, 10, 11, 12})
# The sign bit alone: the client did not ask (MetadataResponse.AUTHORIZED_OPERATIONS_OMITTED).
_NOT_ASKED = frozenset({31})


@serves(ApiKey.METADATA, 1, 13)
async def metadata(request: Any, caller: Caller) -> Any:
    """Brokers and topics. v1: null means all topics, and an empty list none. v4 may forbid creation, v10 asks by id, v12 finds by id."""
    return await describe(request, caller, request.topics, may_create=request.allow_auto_topic_creation)


async def describe(request: Any, caller: Caller, asked: list[Any] | None, *, may_create: bool) -> Any:
    """The reply for these topics, None for all; missing ones are made before it when they may be (old clients take error 3 for final)."""
    if asked is None:
        rows = [_describe(live, request, caller) for live in caller.broker.topics]
    else:
        rows = [await _find(topic, request, caller, may_create=may_create) for topic in asked]
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=None)
            for node in caller.broker.cluster.nodes(caller.listener)
        ],
        cluster_id=caller.broker.cluster.cluster_id,
        controller_id=caller.broker.cluster.node_id,
        topics=rows,
        authorized_operations=set(_CLUSTER_OPERATIONS) if request.include_cluster_authorized_operations else set(_NOT_ASKED),
    )


async def _find(asked: Any, request: Any, caller: Caller, *, may_create: bool) -> Any:
    topics = caller.broker.topics
    topic_id = topic_id_of(asked.topic_id)
    try:
        if asked.name is None:
            if topic_id == _NO_ID:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            return _describe(topics.require(topic_id), request, caller)
        live = topics.get(asked.name)
        if live is None and may_create and caller.broker.settings.auto_create_topics_enable:
            live = await topics.find_or_create(asked.name)
        return _describe(live or topics.require(asked.name), request, caller)
    except KafkaError as failure:
        return _failed(asked.name, topic_id, failure, caller.api_version)


def _failed(name: str | None, topic_id: bytes, failure: KafkaError, version: int) -> Any:
    code = failure.code
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        # Two asked at once, and the other one's topic is not to be seen yet.
        code = ErrorCode.LEADER_NOT_AVAILABLE
    if name is None and version < 12:
        name = ""
    return MetadataResponse.MetadataResponseTopic(error_code=code, name=name, topic_id=uuid_of(topic_id), is_internal=False, partitions=[])


def _describe(live: LiveTopic, request: Any, caller: Caller) -> Any:
    cluster, name = caller.broker.cluster, live.name
    partitions = []
    for index in range(live.topic.partitions):
        leader = cluster.leader_of(name, index)
        open_partition = live.partitions.get(index)
        partitions.append(
            MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=leader,
                leader_epoch=0 if open_partition is None else open_partition.log.leader_epoch,
                replica_nodes=[leader],
                isr_nodes=[leader],
                offline_replicas=[],
            )
        )
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=name,
        topic_id=uuid_of(live.topic.topic_id),
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
        authorized_operations=set(_TOPIC_OPERATIONS) if request.include_topic_authorized_operations else set(_NOT_ASKED),
    )
