"""Old request versions that need `compat`, except Produce."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer.offsets import ListOffsetsResponse

from compat.old_requests import committed_at, offsets_before
from gateway.coroutines import TimeSlices
from gateway.handlers.fetch import FetchReply, fetch_records
from gateway.handlers.groups.offset_commit import commit_offsets
from gateway.handlers.list_offsets import find_offset
from gateway.handlers.metadata import metadata_response
from gateway.handlers.old.offset_fetch import fetch_offsets
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import PARTITION_OPEN_ROWS, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.fetch_codec import FetchRequest
from gateway.security.acls import AclOperation


@serves(ApiKey.FETCH, 0, 1)
def fetch_format_0(request: FetchRequest, caller: Caller) -> FetchReply:
    """Consumers of Kafka 0.8 and 0.9, kafka-node, Sarama below 0.10: message sets of format 0."""
    return fetch_records(request, caller, magic=0)


@serves(ApiKey.FETCH, 2, 3)
def fetch_format_1(request: FetchRequest, caller: Caller) -> FetchReply:
    """Consumers of Kafka 0.10, kafka-python 1.3, KafkaJS 1.0: message sets up to format 1.

    v3 adds max_bytes (KIP-74).
    """
    return fetch_records(request, caller, magic=1)


@serves(ApiKey.METADATA, 0, 0)
async def metadata_empty_means_all(request: Any, caller: Caller) -> Any:
    """Kafka 0.8 and 0.9: an empty list requests all topics, because the list is not nullable."""
    return await metadata_response(request, caller, request.topics or None, may_create=True)


@serves(ApiKey.LIST_OFFSETS, 0, 0)
async def list_offsets_v0(request: Any, caller: Caller) -> Any:
    """Kafka 0.8 to 0.10.0: up to `max_num_offsets` offsets per partition."""
    topics = []
    slices = TimeSlices(caller.broker.clock)
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            rows.append(await _look_up(topic.name, asked, caller))
            await slices.take(PARTITION_OPEN_ROWS)
        caller.traffic.topic_accessed(
            ApiKey.LIST_OFFSETS, 0, topic.name, [row.error_code for row in rows]
        )
        topics.append(
            ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows)
        )
        await slices.take()
    return await encode_if_large(ListOffsetsResponse(topics=topics), slices, caller)


async def _look_up(topic: str, asked: Any, caller: Caller) -> Any:
    row = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    try:
        caller.require_topic(AclOperation.DESCRIBE, topic)
        if caller.broker.topics.has_internal_partition(topic, asked.partition_index):
            offsets = offsets_before(
                asked.timestamp, asked.max_num_offsets, start=0, end=0, last_before=0
            )
            return row(
                partition_index=asked.partition_index, error_code=0, old_style_offsets=offsets
            )
        partition = await caller.broker.topics.partition(topic, asked.partition_index)
        last_before = None
        if asked.timestamp >= 0:
            after, _ = await find_offset(partition, asked.timestamp + 1, caller)
            last_before = after if after >= 0 else partition.log.end_offset
        offsets = offsets_before(
            asked.timestamp,
            asked.max_num_offsets,
            start=partition.log.start_offset,
            end=partition.log.end_offset,
            last_before=last_before,
        )
    except KafkaError as failure:
        return row(
            partition_index=asked.partition_index, error_code=failure.code, old_style_offsets=[]
        )
    return row(partition_index=asked.partition_index, error_code=0, old_style_offsets=offsets)


@serves(ApiKey.OFFSET_COMMIT, 0, 0)
async def offset_commit_v0(request: Any, caller: Caller) -> Any:
    """Kafka 0.8.0 to 0.8.1, kafka-node, Sarama below 0.8.2: no members.

    Kafka stored these in ZooKeeper; the gateway stores all commits alike.
    """
    now = caller.broker.now()
    return await commit_offsets(request, caller, lambda _: (now, None))


@serves(ApiKey.OFFSET_COMMIT, 1, 1)
async def offset_commit_v1(request: Any, caller: Caller) -> Any:
    """Kafka 0.8.2, kafka-python 1.0 to 1.3: each partition has a commit timestamp."""
    now = caller.broker.now()
    return await commit_offsets(
        request, caller, lambda asked: (committed_at(asked.commit_timestamp, now), None)
    )


@serves(ApiKey.OFFSET_FETCH, 0, 0)
async def offset_fetch_v0(request: Any, caller: Caller) -> Any:
    """Counterpart of OffsetCommit v0.

    A partition without an offset is an error, as for a missing ZooKeeper node.
    """
    return await fetch_offsets(request, caller, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
