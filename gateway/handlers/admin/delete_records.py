"""DeleteRecords (KIP-107): move the log start offset of partitions.

v0-2: same fields; v2 is flexible.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.topics import DeleteRecordsResponse

from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import PARTITION_OPEN_ROWS, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from gateway.topics.topic_names import INTERNAL_TOPICS
from storage.log import StorageError

#: Requested offset that means the high watermark (DeleteRecordsRequest.HIGH_WATERMARK).
HIGH_WATERMARK = -1

_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


@serves(ApiKey.DELETE_RECORDS, 0, 2)
async def delete_records(request: Any, caller: Caller) -> Any:
    """Delete the records below each offset; the last offset of a duplicate partition applies."""
    requested: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, {}).update(
            {row.partition_index: row.offset for row in topic.partitions}
        )
    topics = []
    slices = TimeSlices(caller.broker.clock)
    for name, offsets in requested.items():
        rows = []
        for index, offset in offsets.items():
            try:
                rows.append(
                    _Partition(
                        partition_index=index,
                        low_watermark=await _delete(name, index, offset, caller),
                        error_code=0,
                    )
                )
            except KafkaError as failure:
                rows.append(
                    _Partition(partition_index=index, low_watermark=-1, error_code=failure.code)
                )
            await slices.take(PARTITION_OPEN_ROWS)
        caller.traffic.topic_accessed(
            ApiKey.DELETE_RECORDS, caller.api_version, name, [row.error_code for row in rows]
        )
        topics.append(_Topic(name=name, partitions=rows))
    return await encode_if_large(DeleteRecordsResponse(topics=topics), slices, caller)


async def _delete(name: str, index: int, offset: int, caller: Caller) -> int:
    """Return the new log start offset.

    Raises KafkaError, for a topic that is compacted but not deleted POLICY_VIOLATION
    (Partition.deleteRecordsOnLeader).
    """
    caller.require_topic(AclOperation.DELETE, name)
    live = caller.broker.topics.find_listed(name)
    if live is not None and live.name in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = await caller.broker.topics.partition(name, index)
    if not partition.config.deletes:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    log = partition.log
    before = log.end_offset if offset == HIGH_WATERMARK else offset
    if before < 0 or before > log.end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if before <= log.start_offset:
        return log.start_offset
    try:
        return await log.delete_before(before)
    except StorageError as failure:
        raise partition.handle_storage_error(failure) from failure
