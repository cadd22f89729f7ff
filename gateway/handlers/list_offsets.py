"""ListOffsets and OffsetForLeaderEpoch: offsets by timestamp, by position and by leader epoch.

ListOffsets
v1: one offset per partition.
v2-3: isolation level. It is ignored: without transactions the last stable offset (LSO) is the log
    end offset.
v4-6: leader epochs.
v7: max-timestamp (KIP-734).
v8: earliest-local (KIP-405).
v9: latest-tiered (KIP-1005).
v10: timeout for offsets in remote storage (KIP-1075); there is none.
v11: earliest-pending-upload (KIP-1023).

OffsetForLeaderEpoch
v0: end offset of an epoch (KIP-101).
v1: the epoch in the response (KIP-279).
v2: current leader epoch in the request (KIP-320).
v3-4: replica id.

The gateway has no tiered storage: earliest-local is the earliest offset, latest-tiered and
earliest-pending-upload are -1.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from kafka.protocol.consumer.offsets import ListOffsetsResponse, OffsetForLeaderEpochResponse

from gateway.coroutines import TimeSlices
from gateway.fetch.conversion import SourcePartition
from gateway.fetch.fetch_reader import check_epoch
from gateway.partitions.partition import Partition
from gateway.partitions.stored_records import first_at_or_after, read_records
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, clear_frames, code_for_version
from gateway.protocol.large_requests import PARTITION_OPEN_ROWS, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from records import NoMemory, RecordsError
from storage.log import Entry, EntryDamaged, StorageError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

#: Special timestamps and the first version that accepts each
#: (KafkaApis.handleListOffsetRequestV1AndAbove).
SPECIAL_TIMESTAMPS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

#: Bytes per read while searching past the first entry.
_READ_BYTES = 1 << 20

_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse


@serves(ApiKey.LIST_OFFSETS, 1, 11)
async def list_offsets(request: Any, caller: Caller) -> Any:
    """Return one offset per partition."""
    counts = Counter(
        (topic.name, requested.partition_index)
        for topic in request.topics
        for requested in topic.partitions
    )
    slices = TimeSlices(caller.broker.clock)
    for name, index in counts:
        if caller.may_use_topic(AclOperation.DESCRIBE, name):
            caller.broker.topics.prefetch(name, index)
        await slices.take(PARTITION_OPEN_ROWS)
    topics = []
    for topic in request.topics:
        rows = []
        for requested in topic.partitions:
            rows.append(
                await _partition_row(
                    topic.name, requested, counts[topic.name, requested.partition_index], caller
                )
            )
            await slices.take()
        caller.traffic.topic_accessed(
            ApiKey.LIST_OFFSETS, caller.api_version, topic.name, [row.error_code for row in rows]
        )
        topics.append(_Topic(name=topic.name, partitions=rows))
        await slices.take()
    return await encode_if_large(ListOffsetsResponse(topics=topics), slices, caller)


async def _partition_row(topic: str, requested: Any, count: int, caller: Caller) -> Any:
    try:
        caller.require_topic(AclOperation.DESCRIBE, topic)
        if count > 1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the partition occurs more than once in the request"
            )
        if requested.timestamp < 0 and caller.api_version < SPECIAL_TIMESTAMPS.get(
            requested.timestamp, caller.api_version + 1
        ):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"special timestamp {requested.timestamp} is not supported in this version",
            )
        if caller.broker.topics.has_internal_partition(topic, requested.partition_index):
            offset = 0 if requested.timestamp in (LATEST, EARLIEST, EARLIEST_LOCAL) else -1
            return _Partition(
                partition_index=requested.partition_index,
                error_code=0,
                timestamp=-1,
                offset=offset,
                leader_epoch=-1,
            )
        partition = await caller.broker.topics.partition(topic, requested.partition_index)
        check_epoch(requested.current_leader_epoch, partition.log.leader_epoch)
        offset, timestamp = await find_offset(partition, requested.timestamp, caller)
    except KafkaError as failure:
        code = code_for_version(failure.code, ApiKey.LIST_OFFSETS, caller.api_version)
        return _Partition(partition_index=requested.partition_index, error_code=code)
    epoch = partition.log.leader_epoch if offset >= 0 else -1
    return _Partition(
        partition_index=requested.partition_index,
        error_code=0,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch,
    )


async def find_offset(partition: Partition, timestamp: int, caller: Caller) -> tuple[int, int]:
    """Return an offset and its record's timestamp, or (-1, -1) if there is no such record.

    `timestamp` is in ms since 1970 or one of the special timestamps, for which the returned
    timestamp is -1, except for MAX_TIMESTAMP. Raises KafkaError.
    """
    log = partition.log
    if timestamp == LATEST:
        return log.end_offset, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1
    try:
        entry = await (
            log.latest_by_time() if timestamp == MAX_TIMESTAMP else log.entry_for_time(timestamp)
        )
        if entry is None:
            return -1, -1
        return await _first_record(
            partition,
            entry,
            entry.max_timestamp if timestamp == MAX_TIMESTAMP else timestamp,
            caller,
        )
    except EntryDamaged as damaged:
        # As for records that cannot be decoded (`_search_entry`).
        return max(damaged.base_offset, log.start_offset), damaged.max_timestamp
    except StorageError as failure:
        raise partition.handle_storage_error(failure) from failure


async def _first_record(
    partition: Partition, entry: Entry, timestamp: int, caller: Caller
) -> tuple[int, int]:
    """Return the first record at or after `entry` with at least this timestamp."""
    log = partition.log
    found = await _search_entry(partition, entry, timestamp, caller)
    # If DeleteRecords moved the log start into this entry, all remaining records of it may be
    # older. The search then continues with later entries.
    offset = entry.last_offset + 1
    while found is None and offset < log.end_offset:
        try:
            entries = await log.read(offset, _READ_BYTES)
        except EntryDamaged as damaged:
            if damaged.max_timestamp >= timestamp:
                raise
            offset = damaged.last_offset + 1
            continue
        if not entries:
            break
        later = next((one for one in entries if one.max_timestamp >= timestamp), None)
        if later is not None:
            found = await _search_entry(partition, later, timestamp, caller)
        offset = (later or entries[-1]).last_offset + 1
    return found or (-1, -1)


async def _search_entry(
    partition: Partition, entry: Entry, timestamp: int, caller: Caller
) -> tuple[int, int] | None:
    """Return the entry's first record that is not deleted and has at least this timestamp.

    If the records cannot be decoded, the first one is returned, so that a consumer starting there
    misses nothing. Kafka answers INVALID_RECORD or UNKNOWN_SERVER_ERROR, which its consumers retry
    until they time out.
    """
    broker, start = caller.broker, partition.log.start_offset
    limit = broker.settings.max_decompressed_bytes
    is_whole = entry.base_offset >= start
    search = (
        partial(_first_at_or_after, entry, timestamp, limit)
        if is_whole
        else partial(_first_retained, entry, timestamp, start, limit)
    )
    try:
        # Decompression may take long, so it runs off the reactor thread.
        found: tuple[int, int] | None = await caller.run(search)
        return found
    except NoMemory as failure:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(failure)) from failure
    except RecordsError as failure:
        clear_frames(failure)
        source = SourcePartition(
            partition.topic, broker.topics.require(partition.topic).topic.topic_id, partition.index
        )
        broker.converter.log_unreadable(source, entry, failure)
        return max(entry.base_offset, start), entry.max_timestamp


def _first_at_or_after(entry: Entry, timestamp: int, limit: int) -> tuple[int, int]:
    # Records without a timestamp (format 0) count as written when they were received, as in
    # retention.
    return first_at_or_after(entry.payload, timestamp, max_decompressed_bytes=limit) or (
        entry.base_offset,
        entry.max_timestamp,
    )


def _first_retained(entry: Entry, timestamp: int, start: int, limit: int) -> tuple[int, int] | None:
    has_times = False
    for record in read_records(entry.payload, max_decompressed_bytes=limit):
        has_times = has_times or record.timestamp >= 0
        if record.offset >= start and record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return None if has_times else (start, entry.max_timestamp)


@serves(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4)
async def offset_for_leader_epoch(request: Any, caller: Caller) -> Any:
    """Return the end offset of a leader epoch."""
    is_broker = caller.may_on_cluster(AclOperation.CLUSTER_ACTION)
    results = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    topics = []
    slices = TimeSlices(caller.broker.clock)
    for topic in request.topics:
        rows = []
        for requested in topic.partitions:
            await slices.take(PARTITION_OPEN_ROWS)
            code, epoch, end_offset = ErrorCode.NONE, -1, -1
            try:
                if not is_broker:
                    caller.require_topic(AclOperation.DESCRIBE, topic.topic)
                partition = await caller.broker.topics.partition(topic.topic, requested.partition)
                check_epoch(requested.current_leader_epoch, partition.log.leader_epoch)
                epoch, end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
            except KafkaError as failure:
                code = failure.code
            rows.append(
                results.EpochEndOffset(
                    error_code=code,
                    partition=requested.partition,
                    leader_epoch=epoch,
                    end_offset=end_offset,
                )
            )
        caller.traffic.topic_accessed(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            caller.api_version,
            topic.topic,
            [row.error_code for row in rows],
        )
        topics.append(results(topic=topic.topic, partitions=rows))
        await slices.take()
    return await encode_if_large(OffsetForLeaderEpochResponse(topics=topics), slices, caller)
