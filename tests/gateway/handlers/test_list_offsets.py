from __future__ import annotations

from dataclasses import replace
from typing import Any

import kafka.record.default_records
import pytest
from kafka.protocol.consumer.offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest
from twisted.internet.defer import Deferred

from compat.message_sets import check_message_set
from gateway.partitions.record_batch import check_batch
from gateway.protocol.errors import ErrorCode
from records import NoMemory
from storage.log import StorageFailed
from tests.fakes.broker import NOW, BrokerEnvironment, ended, open_environment
from tests.fakes.connection import events
from tests.gateway.handlers.handler_calls import call, start_call
from tests.records import sample_records
from tests.records.record_sets import old_set
from tests.records.sample_records import Sample

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(
    -1, -7, -1
)

Topic = ListOffsetsRequest.ListOffsetsTopic


def append(env: BrokerEnvironment, *timestamps: int, index: int = 0) -> None:
    """Append one batch with a record at each of these times."""
    builder = kafka.record.default_records.DefaultRecordBatchBuilder(
        2, 0, False, -1, -1, -1, 1 << 20
    )
    for offset, timestamp in enumerate(timestamps):
        builder.append(offset, timestamp, b"k", b"v", [])
    records = memoryview(bytearray(builder.build()))
    ended(env.partition("orders", index).append_batch(records, check_batch(records, 11), NOW))


@pytest.fixture
def env() -> BrokerEnvironment:
    """Offsets 0-2 at 100, 300, 200 and 3-4 at 400, 50 in partition 0; nothing in partition 1."""
    env = open_environment()
    env.topic("orders", 2)
    append(env, 100, 300, 200)
    append(env, 400, 50)
    return env


def list_offsets(
    env: BrokerEnvironment, *wanted: tuple[str, int, int], version: int = 11, epoch: int = -1
) -> list[Any]:
    topics = [
        Topic(
            name=name,
            partitions=[
                Topic.ListOffsetsPartition(
                    partition_index=index,
                    timestamp=timestamp,
                    current_leader_epoch=epoch,
                    max_num_offsets=1,
                )
            ],
        )
        for name, index, timestamp in wanted
    ]
    reply = call(
        env,
        ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=1000),
        version,
    )
    return [row for topic in reply.topics for row in topic.partitions]


def found(
    env: BrokerEnvironment, timestamp: int, index: int = 0, version: int = 11
) -> tuple[int, int]:
    """Return (offset, timestamp)."""
    (row,) = list_offsets(env, ("orders", index, timestamp), version=version)
    assert row.error_code == 0
    return row.offset, row.timestamp


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_returns_log_start_and_end(env: BrokerEnvironment, version: int) -> None:
    assert found(env, LATEST, version=version) == (5, -1)
    assert found(env, EARLIEST, version=version) == (0, -1)


@pytest.mark.parametrize(
    ("timestamp", "offset", "at"),
    [
        (0, 0, 100),
        (100, 0, 100),
        (101, 1, 300),
        (300, 1, 300),
        (301, 3, 400),
        (400, 3, 400),
        (401, -1, -1),
        (1 << 62, -1, -1),
    ],
)
def test_timestamp_finds_first_record_at_or_after(
    env: BrokerEnvironment, timestamp: int, offset: int, at: int
) -> None:
    assert found(env, timestamp) == (offset, at)


@pytest.mark.parametrize("timestamp", [100, 300, 400, MAX_TIMESTAMP])
def test_damaged_batch_is_found_by_its_greatest_timestamp(
    env: BrokerEnvironment, timestamp: int
) -> None:
    for rows in env.store.medium.logs.values():
        rows.damaged = {0, 3}
    assert found(env, timestamp) == ((0, 300) if 0 < timestamp <= 300 else (3, 400))


def test_empty_partition_has_no_record_for_timestamp(env: BrokerEnvironment) -> None:
    assert found(env, 0, index=1) == (-1, -1)
    assert found(env, MAX_TIMESTAMP, index=1) == (-1, -1)
    assert found(env, LATEST, index=1) == (0, -1)


def test_max_timestamp_is_found(env: BrokerEnvironment) -> None:
    append(env, 350, 60)
    assert found(env, MAX_TIMESTAMP) == (3, 400)


def test_earliest_local_is_earliest_without_tiered_storage(env: BrokerEnvironment) -> None:
    assert found(env, EARLIEST_LOCAL) == (0, -1)
    assert found(env, LATEST_TIERED) == (-1, -1)
    assert found(env, EARLIEST_PENDING_UPLOAD) == (-1, -1)


# Versions of Kafka's KafkaApis.handleListOffsetRequestV1AndAbove.
@pytest.mark.parametrize(
    ("timestamp", "version"),
    [
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (EARLIEST_PENDING_UPLOAD, 10),
        (-7, 11),
        (-100, 11),
    ],
)
def test_special_timestamp_of_later_version_is_rejected(
    env: BrokerEnvironment, timestamp: int, version: int
) -> None:
    (row,) = list_offsets(env, ("orders", 0, timestamp), version=version)
    assert (row.error_code, row.offset, row.timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1, -1)


def test_duplicate_partition_is_rejected(env: BrokerEnvironment) -> None:
    rows = list_offsets(env, ("orders", 0, LATEST), ("orders", 1, LATEST), ("orders", 0, EARLIEST))
    assert [row.error_code for row in rows] == [42, 0, 42]


def test_missing_partition_is_unknown_in_list_offsets(env: BrokerEnvironment) -> None:
    assert [
        row.error_code
        for row in list_offsets(
            env, ("never", 0, LATEST), ("orders", 2, LATEST), ("orders", -1, LATEST)
        )
    ] == [3, 3, 3]


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_leader_epoch_must_be_current(env: BrokerEnvironment, epoch: int, code: int) -> None:
    assert [row.error_code for row in list_offsets(env, ("orders", 0, LATEST), epoch=epoch)] == [
        code
    ]


def test_record_below_log_start_is_not_found(env: BrokerEnvironment) -> None:
    ended(env.partition().log.delete_before(1))
    assert found(env, 0) == (1, 300)
    ended(env.partition().log.delete_before(2))
    # The remaining record of its entry, offset 2, is older; the next entry has it.
    assert found(env, 250) == (3, 400)
    assert found(env, 200) == (2, 200)


def test_timestamp_after_all_remaining_records_finds_none(env: BrokerEnvironment) -> None:
    ended(env.partition().log.delete_before(4))
    assert found(env, 300) == (-1, -1)


def test_format_0_records_count_as_written_when_received(env: BrokerEnvironment) -> None:
    records = old_set(3, magic=0)
    partition = env.partition("orders", 1)
    ended(
        partition.append_message_set(
            records, check_message_set(records, max_decompressed_bytes=1 << 20), NOW
        )
    )
    assert found(env, 0, index=1) == found(env, NOW, index=1) == (0, NOW)
    assert found(env, NOW + 1, index=1) == (-1, -1)
    assert found(env, LATEST, index=1) == (3, -1)
    ended(partition.log.delete_before(1))
    assert found(env, NOW, index=1) == (1, NOW)


# Batches with valid header and checksum but unreadable records (decision 009).


def append_unreadable(
    env: BrokerEnvironment, *timestamps: int, codec: int = 0, content: bytes = b"nonsense"
) -> None:
    """Append an unreadable batch to partition 0 whose header covers these times."""
    samples = [Sample(offset, timestamp, b"k", b"v") for offset, timestamp in enumerate(timestamps)]
    records = memoryview(bytearray(sample_records.batch(samples, codec=codec, content=content)))
    ended(env.partition().append_batch(records, check_batch(records, 11), NOW))


@pytest.mark.parametrize("codec", [sample_records.NONE, sample_records.GZIP, sample_records.ZSTD])
def test_unreadable_batch_is_found_by_its_first_offset(env: BrokerEnvironment, codec: int) -> None:
    append_unreadable(env, 500, 600, codec=codec)
    append(env, 700)
    assert found(env, 450) == found(env, 600) == (5, 600)
    assert (found(env, 400), found(env, 601)) == ((3, 400), (7, 700))


def test_max_timestamp_can_be_in_unreadable_batch(env: BrokerEnvironment) -> None:
    append_unreadable(env, 500, 600)
    append(env, 550)
    assert found(env, MAX_TIMESTAMP) == (5, 600)


def test_deleted_part_of_unreadable_batch_is_not_found(
    env: BrokerEnvironment,
) -> None:
    append_unreadable(env, 500, 600, 500)
    ended(env.partition().log.delete_before(6))
    assert found(env, 450) == found(env, MAX_TIMESTAMP) == (6, 600)


@pytest.mark.parametrize("version", [0, 1])
def test_old_client_gets_past_unreadable_batch_by_time(
    env: BrokerEnvironment, version: int
) -> None:
    append_unreadable(env, 500, 600)
    partition = Topic.ListOffsetsPartition(partition_index=0, timestamp=450, max_num_offsets=1)
    reply = call(
        env,
        ListOffsetsRequest(replica_id=-1, topics=[Topic(name="orders", partitions=[partition])]),
        version,
    )
    (row,) = reply.topics[0].partitions
    assert (row.error_code, row.old_style_offsets[0] if version == 0 else row.offset) == (0, 5)


def test_decompression_bomb_is_found_without_decompression() -> None:
    env = open_environment(max_decompressed_bytes=1 << 20)
    env.topic("orders")
    append_unreadable(env, 500, codec=sample_records.GZIP, content=bytes(2 << 20))
    assert found(env, 450) == (0, 500)


def test_unreadable_batch_is_logged_once(
    env: BrokerEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    append_unreadable(env, 500, 600)
    for timestamp in (450, 450, MAX_TIMESTAMP):
        found(env, timestamp)
    ((event, fields),) = events(caplog)
    assert event.startswith("unreadable records")
    assert (
        fields["topic"],
        fields["partition"],
        fields["first_offset"],
        fields["last_offset"],
    ) == ("orders", 0, 5, 6)


def test_out_of_memory_while_searching_is_retriable(env: BrokerEnvironment) -> None:
    def run(*_: object) -> Any:
        raise NoMemory("no memory to decompress gzip")

    env.broker = replace(env.broker, run_for=run)
    (row,) = list_offsets(env, ("orders", 0, 350))
    assert row.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_v0_returns_array(env: BrokerEnvironment) -> None:
    partitions = [
        Topic.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=5)
        for timestamp in (LATEST, EARLIEST)
    ]
    reply = call(
        env,
        ListOffsetsRequest(replica_id=-1, topics=[Topic(name="orders", partitions=partitions)]),
        0,
    )
    assert [next(iter(row.old_style_offsets)) for row in reply.topics[0].partitions] == [5, 0]


def epochs(
    env: BrokerEnvironment, *wanted: tuple[str, int, int], version: int = 4, current: int = -1
) -> list[tuple[int, int, int]]:
    """Return (error code, epoch, end offset)."""
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = [
        topic(
            topic=name,
            partitions=[
                topic.OffsetForLeaderPartition(
                    partition=index, leader_epoch=epoch, current_leader_epoch=current
                )
            ],
        )
        for name, index, epoch in wanted
    ]
    reply = call(env, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version)
    return [
        (row.error_code, row.leader_epoch, row.end_offset)
        for one in reply.topics
        for row in one.partitions
    ]


@pytest.mark.parametrize("version", range(5))
def test_current_epoch_ends_at_log_end(env: BrokerEnvironment, version: int) -> None:
    assert epochs(env, ("orders", 0, 0), version=version) == [(0, 0 if version else -1, 5)]


def test_future_epoch_has_no_end_offset(env: BrokerEnvironment) -> None:
    assert epochs(env, ("orders", 0, 7)) == [(0, -1, -1)]


def test_missing_partition_and_future_leader_epoch_are_errors(env: BrokerEnvironment) -> None:
    assert epochs(env, ("never", 0, 0)) == [(3, -1, -1)]
    assert epochs(env, ("orders", 0, 0), current=3) == [(ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)]


@pytest.mark.parametrize(
    ("version", "told"), [(2, ErrorCode.NOT_LEADER_OR_FOLLOWER), (3, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_list_offsets_store_failure_is_retriable(
    env: BrokerEnvironment, version: int, told: ErrorCode
) -> None:
    env.store.refuse_logs = StorageFailed("unreachable")
    (row,) = list_offsets(env, ("orders", 1, LATEST), version=version)
    assert row.error_code == told


def test_list_offsets_opens_partitions_concurrently() -> None:
    env = open_environment()
    env.topic("orders", 2)
    env.store.slow_logs = Deferred()
    wanted = [Topic(name="orders", partitions=[_latest(0), _latest(1)])]
    asking = start_call(
        env,
        ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=wanted, timeout_ms=1000),
        4,
    )
    assert (asking.is_done, env.store.logs_asked) == (False, 2)


def _latest(index: int) -> Any:
    return Topic.ListOffsetsPartition(
        partition_index=index, timestamp=LATEST, current_leader_epoch=-1
    )
