"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, AlterReplicaLogDirs.

ElectLeaders
v0: preferred leaders.
v1-2: election type (KIP-460).

AlterPartitionReassignments (KIP-455)
v0: reassignments.
v1: allow_replication_factor_change (KIP-860).

ListPartitionReassignments (KIP-455)
v0: the only version.

AlterReplicaLogDirs (KIP-113)
v0-2: same fields; v2 is flexible.

Each partition has one replica, which is the leader and cannot move. The answers are those of
ReplicationControlManager and ReplicaManager for such a cluster.
"""

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

from gateway.cluster.view import UNKNOWN
from gateway.coroutines import TimeSlices
from gateway.handlers.metadata import live_leader
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from gateway.topics.topic_state import TopicState

#: Codes of ElectionType.
PREFERRED, UNCLEAN = 0, 1
ELECTION_TYPES = frozenset({PREFERRED, UNCLEAN})

_Elected = ElectLeadersResponse.ReplicaElectionResult
_Reassigned = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


@serves(ApiKey.ELECT_LEADERS, 0, 2)
async def elect_leaders(request: Any, caller: Caller) -> Any:
    """Return ELECTION_NOT_NEEDED: a leader that is alive is the preferred one.

    Null topics select all partitions; the response then lists only those that needed an election,
    as in Kafka: none.
    """
    if request.election_type not in ELECTION_TYPES:
        return ElectLeadersResponse(
            error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[]
        )
    refused = _cluster_refusal(AclOperation.ALTER, caller)
    slices = TimeSlices(caller.broker.clock)
    topics = []
    for topic in request.topic_partitions or ():
        rows = []
        for index in topic.partitions:
            failure = refused or _election_error(topic.topic, index, request.election_type, caller)
            rows.append(
                _Elected.PartitionResult(
                    partition_id=index, error_code=failure.code, error_message=failure.message
                )
            )
            await slices.take()
        topics.append(_Elected(topic=topic.topic, partition_result=rows))
        await slices.take()
    return await encode_if_large(
        ElectLeadersResponse(
            error_code=ErrorCode.NONE if refused is None else refused.code,
            replica_election_results=topics,
        ),
        slices,
        caller,
    )


def _cluster_refusal(operation: AclOperation, caller: Caller) -> KafkaError | None:
    try:
        caller.require_cluster(operation)
    except KafkaError as refusal:
        return refusal
    return None


def _partition_count(topic: str, caller: Caller) -> int | None:
    """Return the number of partitions of a topic, None if it does not exist."""
    live = caller.broker.topics.find_listed(topic)
    return None if live is None else live.topic.partitions


def _election_error(topic: str, index: int, election_type: int, caller: Caller) -> KafkaError:
    live = caller.broker.topics.find_listed(topic)
    if live is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    if not 0 <= index < live.topic.partitions:
        return KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
        )
    if live_leader(live, index, caller) == UNKNOWN:
        return KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if election_type == PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return KafkaError(ErrorCode.ELECTION_NOT_NEEDED)


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
async def alter_partition_reassignments(request: Any, caller: Caller) -> Any:
    """Accept only the current assignment of a partition.

    No reassignment is ever in progress. Each partition has one replica, so
    allow_replication_factor_change is only returned.
    """
    refused = _cluster_refusal(AclOperation.ALTER, caller)
    slices = TimeSlices(caller.broker.clock)
    topics = []
    for topic in request.topics:
        live = caller.broker.topics.find_listed(topic.name)
        rows = []
        for partition in topic.partitions:
            code, message = ErrorCode.NONE, None
            try:
                if refused is not None:
                    raise refused
                _check_reassignment(topic.name, live, partition, caller)
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
        error_code=ErrorCode.NONE if refused is None else refused.code,
        error_message=None if refused is None else refused.message,
        responses=topics,
    )
    return await encode_if_large(reply, slices, caller)


def _check_reassignment(
    topic: str, live: TopicState | None, partition: Any, caller: Caller
) -> None:
    if live is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
        )
    if not 0 <= partition.partition_index < live.topic.partitions:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {topic}:{partition.partition_index}.",
        )
    if partition.replicas is None:
        # Null replicas cancel a reassignment.
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas([partition.replicas], caller)
    leader = live_leader(live, partition.partition_index, caller)
    if list(partition.replicas) != [leader]:
        raise _invalid_assignment(
            f"differs from the current one, [{leader}]: leaders are assigned by the gateways."
        )


def check_replicas(assignments: Sequence[Collection[int]], caller: Caller) -> None:
    """Check replica assignments, given as the broker ids of each partition.

    Raises KafkaError(INVALID_REPLICA_ASSIGNMENT).
    """
    known = {node.node_id for node in caller.broker.cluster.nodes(caller.listener)}
    for brokers in assignments:
        if not brokers:
            raise _invalid_assignment("includes an empty replica list.")
        # Sorted by id, as in ReplicationControlManager.validateManualPartitionAssignment.
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
                f"includes a partition with {len(brokers)} replica(s), but this is not consistent "
                f"with previous partitions, which have {expected} replica(s)."
            )


def _invalid_assignment(why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {why}"
    )


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
async def list_partition_reassignments(request: Any, caller: Caller) -> Any:
    """Return no reassignments. Kafka does not report unknown topics either."""
    refused = _cluster_refusal(AclOperation.DESCRIBE, caller)
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE if refused is None else refused.code,
        error_message=None if refused is None else refused.message,
        topics=[],
    )


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2)
async def alter_replica_log_dirs(request: Any, caller: Caller) -> Any:
    """Accept a move only to the directory where the partition is.

    The last directory of a duplicate partition applies, as in Kafka.
    """
    refused = _cluster_refusal(AclOperation.ALTER, caller)
    slices = TimeSlices(caller.broker.clock)
    here = {usage.path for usage in caller.broker.store.usage()}
    results: dict[str, dict[int, ErrorCode]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            count = _partition_count(topic.name, caller)
            rows = results.setdefault(topic.name, {})
            for index in topic.partitions:
                rows[index] = (
                    _move_error(directory.path in here, index, count)
                    if refused is None
                    else refused.code
                )
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
