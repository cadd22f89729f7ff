"""DescribeCluster, DescribeLogDirs and DescribeProducers.

DescribeCluster (KIP-700)
v0: brokers and cluster id.
v1: endpoint type (KIP-919); the gateway has no separate controllers.
v2: fenced brokers; there are none.

DescribeLogDirs
v0-2: partition sizes.
v3: top-level error code.
v4: total and usable bytes (KIP-827).
v5: cordoned directories (KIP-1066); there are none.

DescribeProducers (KIP-664)
v0: the only version.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.cluster import DescribeClusterResponse, DescribeLogDirsResponse
from kafka.protocol.admin.transactions import DescribeProducersResponse

from gateway.coroutines import TimeSlices
from gateway.handlers.metadata import OPERATIONS_OMITTED, cluster_operations
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import PARTITION_OPEN_ROWS, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource
from storage.log import StorageError

#: Endpoint types of DescribeCluster (KIP-919).
BROKERS, CONTROLLERS = 1, 2


@serves(ApiKey.DESCRIBE_CLUSTER, 0, 2)
async def describe_cluster(request: Any, caller: Caller) -> Any:
    """Return the gateways of the cluster and its id."""
    if request.endpoint_type != BROKERS:
        return _endpoint_error(request.endpoint_type)
    cluster = caller.broker.cluster
    return DescribeClusterResponse(
        error_code=0,
        error_message=None,
        endpoint_type=BROKERS,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=None, is_fenced=False
            )
            for node in cluster.nodes(caller.listener)
        ],
        authorized_operations=cluster_operations(caller)
        if request.include_cluster_authorized_operations
        else OPERATIONS_OMITTED,
    )


def _endpoint_error(requested: int) -> Any:
    if requested == CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = (
            "The request was sent to an endpoint of type BROKER, "
            "but we wanted an endpoint of type CONTROLLER"
        )
    else:
        code, message = (
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"Unsupported endpoint type {requested}",
        )
    return DescribeClusterResponse(
        error_code=code,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id="",
        controller_id=-1,
        brokers=[],
        authorized_operations=OPERATIONS_OMITTED,
    )


#: Value for unknown sizes (DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES).
UNKNOWN_SIZE = -1

_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
_LogDirTopic = _LogDir.DescribeLogDirsTopic


@serves(ApiKey.DESCRIBE_LOG_DIRS, 0, 5)
async def describe_log_dirs(request: Any, caller: Caller) -> Any:
    """Return the sizes of partitions led by this gateway, and disk space.

    Unknown partitions are omitted, as in Kafka.
    """
    try:
        caller.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as refusal:
        return DescribeLogDirsResponse(error_code=refusal.code, results=[])
    slices = TimeSlices(caller.broker.clock)
    sizes = await _sizes(request.topics, caller, slices)
    results: list[Any] = []
    for usage in caller.broker.store.usage():
        # A store with several volumes does not assign logs to them, so all partitions are listed
        # with the first.
        topics = [] if results else sizes
        results.append(
            _LogDir(
                error_code=0,
                log_dir=usage.path,
                topics=topics,
                total_bytes=usage.total_bytes,
                usable_bytes=usage.usable_bytes,
                is_cordoned=False,
            )
        )
    return await encode_if_large(
        DescribeLogDirsResponse(error_code=0, results=results), slices, caller
    )


async def _sizes(requested: list[Any] | None, caller: Caller, slices: TimeSlices) -> list[Any]:
    broker = caller.broker
    wanted: dict[str, set[int]] = {}
    if requested is None:
        wanted = {
            live.name: set(range(live.topic.partitions))
            for live in broker.topics
            if caller.is_visible(AclResource.TOPIC, live.name)
        }
    else:
        for topic in requested:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
    topics = []
    for name, indexes in wanted.items():
        rows = []
        for index in sorted(indexes):
            await slices.take()
            size = await _size(name, index, caller)
            if size is not None:
                row = _LogDirTopic.DescribeLogDirsPartition
                rows.append(
                    row(
                        partition_index=index,
                        partition_size=size,
                        offset_lag=0,
                        is_future_key=False,
                    )
                )
        if rows:
            topics.append(_LogDirTopic(name=name, partitions=rows))
    return topics


async def _size(name: str, index: int, caller: Caller) -> int | None:
    """Return a partition's size in bytes, UNKNOWN_SIZE, or None.

    None if the partition does not exist or another gateway leads it.
    """
    broker, cluster = caller.broker, caller.broker.cluster
    live = broker.topics.get(name)
    if (
        live is None
        or not 0 <= index < live.topic.partitions
        or cluster.leader_of(live.shard_of(index, cluster.shard_count)) != cluster.node_id
    ):
        return None
    partition = live.partitions.get(index)
    if partition is None and broker.store.retains_by_itself:
        # Opening a log fences its current writer, which a describe request must not do.
        return UNKNOWN_SIZE
    try:
        # Read from the store: the size does not require recovery of the producer state.
        return (
            partition.log if partition is not None else await broker.store.log(live.name, index)
        ).size
    except StorageError:
        return None


_Producers = DescribeProducersResponse.TopicResponse
_Partition = _Producers.PartitionResponse


@serves(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
async def describe_producers(request: Any, caller: Caller) -> Any:
    """Return the idempotent producers in the state of each partition."""
    wanted: dict[str, set[int]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, set()).update(topic.partition_indexes)
    topics, slices = [], TimeSlices(caller.broker.clock)
    for name, indexes in wanted.items():
        rows = []
        for index in sorted(indexes):
            rows.append(await _producers(name, index, caller, slices))
            await slices.take(PARTITION_OPEN_ROWS)
        topics.append(_Producers(name=name, partitions=rows))
    return await encode_if_large(DescribeProducersResponse(topics=topics), slices, caller)


async def _producers(name: str, index: int, caller: Caller, slices: TimeSlices) -> Any:
    try:
        caller.require_topic(AclOperation.READ, name)
    except KafkaError as refusal:
        return _producers_error(index, refusal)
    if caller.broker.topics.has_internal_partition(name, index):
        # kafka-transactions.sh requests the producers of every partition.
        return _Partition(
            partition_index=index, error_code=0, error_message=None, active_producers=[]
        )
    try:
        caller.broker.topics.names.canonical(name)
        partition = await caller.broker.topics.partition(name, index)
    except KafkaError as failure:
        return _producers_error(index, failure)
    rows = []
    for producer_id, producer in list(partition.producers):
        await slices.take()
        last = producer.batches[-1]
        rows.append(
            _Partition.ProducerState(
                producer_id=producer_id,
                producer_epoch=last.epoch,
                last_sequence=last.last_sequence,
                last_timestamp=producer.last_seen,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
        )
    return _Partition(
        partition_index=index, error_code=0, error_message=None, active_producers=rows
    )


def _producers_error(index: int, failure: KafkaError) -> Any:
    return _Partition(
        partition_index=index,
        error_code=failure.code,
        error_message=failure.message,
        active_producers=[],
    )
