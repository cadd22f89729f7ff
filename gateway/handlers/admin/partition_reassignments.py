"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments and AlterReplicaLogDirs: as ReplicationControlManager
and ReplicaManager answer where each partition has one replica, which leads and cannot move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from kafka.protocol.admin.cluster import AlterReplicaLogDirsResponse
from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import TimeSlices, encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey

#: ElectionType's numbers: preferred and unclean.
ELECTION_TYPES = frozenset({0, 1})

_Elected = ElectLeadersResponse.ReplicaElectionResult
_Reassigned = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


@serves(ApiKey.ELECT_LEADERS, 0, 2)
async def elect_leaders(request: Any, caller: Caller) -> Any:
    """Every leader is the preferred one and alive. v1 adds the type of election (KIP-460). Null topics mean all partitions, and
    of those only the ones that needed an election are listed, as in Kafka."""
    if request.election_type not in ELECTION_TYPES:
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[]
        )
    slices = TimeSlices(caller.broker.clock)
    topics = []
    for topic in request.topic_partitions or ():
        count = _partition_count(topic.topic, caller)
        rows = []
        for index in topic.partitions:
            failure = _election_error(topic.topic, index, count)
            rows.append(
                _Elected.PartitionResult(
                    partition_id=index, error_code=failure.code, error_message=failure.message
                )
            )
            await slices.take()
        topics.append(_Elected(topic=topic.topic, partition_result=rows))
        await slices.take()
    return await encode_if_large(
        ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=topics),
        slices,
        caller,
    )


def _partition_count(topic: str, caller: Caller) -> int | None:
    """The partitions of a topic, None if there is no such topic."""
    live = caller.broker.topics.find_listed(topic)
    return None if live is None else live.topic.partitions


def _election_error(topic: str, index: int, count: int | None) -> KafkaError:
    if count is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    if not 0 <= index < count:
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
        )
    return KafkaError(ErrorCode.ELECTION_NOT_NEEDED)


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def alter_partition_reassignments(request: Any, caller: Caller) -> Any:
    """Only the assignment that a partition has can be asked for, and no reassignment is ever in progress (KIP-455). v1 may
    forbid another number of replicas (KIP-860), of which there is one."""
    slices = TimeSlices(caller.broker.clock)
    topics = []
    for topic in request.topics:
        count = _partition_count(topic.name, caller)
        rows = []
        for partition in topic.partitions:
            code, message = ErrorCode.NONE, None
            try:
                _check_reassignment(topic.name, partition, count, caller)
            except KafkaError as failure:
                code, message = failure.code, failure.message
            row = _Reassigned.ReassignablePartitionResponse
            rows.append(
                row(
                    partition_index=partition.partition_index,
                    error_code=code,
                    error_message=message,
                )
            )
            await slices.take(1 + len(partition.replicas or ()))
        topics.append(_Reassigned(name=topic.name, partitions=rows))
        await slices.take()
    reply = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=topics,
    )
    return await encode_if_large(reply, slices, caller)


def _check_reassignment(topic: str, partition: Any, count: int | None, caller: Caller) -> None:
    if count is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
        )
    if not 0 <= partition.partition_index < count:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {topic}:{partition.partition_index}.",
        )
    if partition.replicas is None:
        # The request cancels a reassignment.
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas([partition.replicas], caller)


def check_replicas(assignments: Sequence[Collection[int]], caller: Caller) -> None:
    """Raises KafkaError(INVALID_REPLICA_ASSIGNMENT) for an assignment that this cluster cannot have. Each is the broker ids of
    one partition."""
    known = {node.node_id for node in caller.broker.cluster.nodes(caller.listener)}
    for brokers in assignments:
        if not brokers:
            raise _invalid_assignment("includes an empty replica list.")
        # In the order of the ids, as ReplicationControlManager.validateManualPartitionAssignment looks at them.
        for broker, count in sorted(Counter(brokers).items()):
            if broker not in known:
                raise _invalid_assignment(
                    f"includes broker {broker}, but no such broker is registered."
                )
            if count > 1:
                raise _invalid_assignment(f"includes the broker {broker} more than once.")
        expected = len(assignments[0])
        if len(brokers) != expected:
            raise _invalid_assignment(
                f"includes a partition with {len(brokers)} replica(s), but this is not consistent with previous partitions, "
                f"which have {expected} replica(s)."
            )


def _invalid_assignment(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {why}"
    )


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(request: Any, caller: Caller) -> Any:
    """None is ever in progress. Kafka does not report topics that do not exist either."""
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE, error_message=None, topics=[]
    )


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2)
async def alter_replica_log_dirs(request: Any, caller: Caller) -> Any:
    """A partition can only be moved to where it is (KIP-113). Of a partition that is named for several directories the last
    counts, as in Kafka."""
    slices = TimeSlices(caller.broker.clock)
    here = {usage.path for usage in caller.broker.store.usage()}
    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            count = _partition_count(topic.name, caller)
            rows = results.setdefault(topic.name, {})
            for index in topic.partitions:
                rows[index] = _move_error(directory.path in here, index, count)
                await slices.take()
            await slices.take()
    topics = []
    for name, rows in results.items():
        moved = []
        for index, code in rows.items():
            moved.append(
                _Moved.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
            )
            await slices.take()
        topics.append(_Moved(topic_name=name, partitions=moved))
        await slices.take()
    return await encode_if_large(AlterReplicaLogDirsResponse(results=topics), slices, caller)


def _move_error(is_here: bool, index: int, count: int | None) -> ErrorCode:
    if not is_here:
        return ErrorCode.LOG_DIR_NOT_FOUND
    return (
        ErrorCode.NONE
        if count is not None and 0 <= index < count
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
