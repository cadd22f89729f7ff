"""DescribeTopicPartitions (KIP-966): topic metadata in pages.

v0: the only version.

For clusters with more partitions than fit in one Metadata response.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka.protocol.admin.topics import DescribeTopicPartitionsResponse

from gateway.cluster.view import UNKNOWN
from gateway.coroutines import TimeSlices
from gateway.handlers.metadata import leader_epoch, live_leader
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import uuid_of
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.topic_names import INTERNAL_TOPICS
from gateway.topics.topic_state import TopicState

#: Maximum partitions in one response. The default of Kafka's max.request.partition.size.limit.
MAX_PARTITIONS = 2000

_NO_ID = bytes(16)
_OPERATIONS_OMITTED = -(1 << 31)

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition


@serves(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0)
async def describe_topic_partitions(request: Any, caller: Caller) -> Any:
    """Return topics sorted by name, starting at the cursor.

    `next_cursor` is where the next page begins, None after the last page.
    """
    requested = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None and (
        cursor.partition_index < 0 or (requested and cursor.topic_name not in requested)
    ):
        return await _invalid_cursor_response(requested or {cursor.topic_name}, caller)
    begin = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    left = max(min(request.response_partition_limit, MAX_PARTITIONS), 1)
    rows: list[Any] = []
    slices = TimeSlices(caller.broker.clock)
    for name, live in _requested_topics(begin[0], requested, caller):
        await slices.take()
        if left == 0:
            return await encode_if_large(_page(rows, name, 0), slices, caller)
        try:
            caller.require_topic(AclOperation.DESCRIBE, name)
        except KafkaError as refusal:
            rows.append(_error_row(name, refusal.code, _OPERATIONS_OMITTED))
            continue
        if live is None:
            rows.append(_missing_topic_row(name, caller))
            continue
        first = begin[1] if name == begin[0] else 0
        last = min(first + left, live.topic.partitions)
        rows.append(_topic_row(live, name, first, last, caller))
        if last < live.topic.partitions:
            return await encode_if_large(_page(rows, name, last), slices, caller)
        left -= max(last - first, 0)
        await slices.take(max(last - first, 0))
    return await encode_if_large(_page(rows, None, 0), slices, caller)


def _requested_topics(
    begin: str, requested: set[str], caller: Caller
) -> Iterator[tuple[str, TopicState | None]]:
    topics = caller.broker.topics
    names = requested or {
        live.name
        for live in topics.listed()
        if caller.may_use_topic(AclOperation.DESCRIBE, live.name)
    }
    for name in sorted(name for name in names if name >= begin):
        yield name, topics.find_listed(name)


def _page(rows: list[Any], next_topic: str | None, next_partition: int) -> Any:
    cursor = (
        None
        if next_topic is None
        else DescribeTopicPartitionsResponse.Cursor(
            topic_name=next_topic, partition_index=next_partition
        )
    )
    return DescribeTopicPartitionsResponse(topics=rows, next_cursor=cursor)


async def _invalid_cursor_response(names: set[str], caller: Caller) -> Any:
    """Return INVALID_REQUEST with each topic: the response has no top-level error code."""
    rows, slices = [], TimeSlices(caller.broker.clock)
    for name in sorted(names):
        rows.append(_error_row(name, ErrorCode.INVALID_REQUEST, _OPERATIONS_OMITTED))
        await slices.take()
    return await encode_if_large(_page(rows, None, 0), slices, caller)


def _missing_topic_row(name: str, caller: Caller) -> Any:
    try:
        caller.broker.topics.names.canonical(name)
    except KafkaError as failure:
        return _error_row(name, failure.code, _operations(name, caller))
    return _error_row(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _operations(name, caller))


def _operations(name: str, caller: Caller) -> int:
    """The operations that the caller may do, one bit each."""
    return sum(1 << operation for operation in caller.operations_on(AclResource.TOPIC, name))


def _error_row(name: str, code: ErrorCode, operations: int) -> Any:
    return _Topic(
        error_code=code,
        name=name,
        topic_id=uuid_of(_NO_ID),
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _topic_row(live: TopicState, name: str, first: int, last: int, caller: Caller) -> Any:
    partitions = []
    for index in range(first, last):
        leader = live_leader(live, index, caller)
        replicas = [] if leader == UNKNOWN else [leader]
        partitions.append(
            _Partition(
                error_code=ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=leader,
                leader_epoch=leader_epoch(live, index, caller),
                replica_nodes=replicas,
                isr_nodes=replicas,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
        )
    return _Topic(
        error_code=0,
        name=name,
        topic_id=uuid_of(live.topic.topic_id),
        is_internal=live.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=_operations(live.name, caller),
    )
