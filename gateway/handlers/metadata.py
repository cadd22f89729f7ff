"""Metadata: brokers, topics and partition leaders.

v1-3: null topics means all topics, an empty list none.
v4-7: the client can forbid auto-creation.
v8-9: authorized operations (KIP-430).
v10-11: topic ids in the response (KIP-516).
v12-13: topics can be requested by id; v13 adds a top-level error code.

v0 is in `gateway.handlers.old`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.protocol.metadata.metadata import MetadataResponse

from gateway.cluster.view import UNKNOWN, Node
from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_for, encode_if_large
from gateway.protocol.routes import EncodedReply, serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import topic_id_of, uuid_of
from gateway.security.acls import CLUSTER_NAME, AclOperation, AclResource
from gateway.topics.topic_names import INTERNAL_TOPICS, RESERVED_TOPICS
from gateway.topics.topic_state import TopicState

_NO_ID = bytes(16)
# Only the sign bit is set: the client did not request the operations
# (MetadataResponse.AUTHORIZED_OPERATIONS_OMITTED).
OPERATIONS_OMITTED = {31}

#: Request fields for topic ids exist from the first version on and are accepted from the second on
#: (KafkaApis.handleTopicMetadataRequest).
FIRST_VERSION_WITH_IDS, FIRST_VERSION_BY_ID = 10, 12

_FIRST_VERSION_WITH_AUTO_CREATE = 4

#: kafka-python 1.3.5 uses versions up to this one, and takes over a reply without brokers: after
#: that it knows no broker, and never asks for metadata again (ClusterMetadata.update_metadata).
_LAST_VERSION_NEEDING_BROKERS = 1

#: Name or None, and topic id, as requested.
_RequestedTopic = tuple[str | None, bytes]

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition


@serves(ApiKey.METADATA, 1, 13)
async def metadata(request: Any, caller: Caller) -> Any:
    """Return brokers and the requested topics, creating missing topics if allowed."""
    if caller.api_version >= _FIRST_VERSION_WITH_AUTO_CREATE:
        caller.traffic.habit_seen("auto_create", request.allow_auto_topic_creation)
    return await metadata_response(
        request, caller, request.topics, may_create=request.allow_auto_topic_creation
    )


async def metadata_response(
    request: Any, caller: Caller, requested: list[Any] | None, *, may_create: bool
) -> Any:
    """Return metadata of the requested topics, of all if `requested` is None.

    With `may_create`, missing topics are created before the reply, because old clients treat
    UNKNOWN_TOPIC_OR_PARTITION as fatal. Duplicate topics are returned once, as in Kafka. A response
    without errors is cached until metadata changes.
    """
    broker = caller.broker
    caller.traffic.habit_seen("metadata_all", requested is None)
    nodes = broker.cluster.nodes(caller.listener)
    is_cut_off = not nodes
    if is_cut_off and caller.api_version <= _LAST_VERSION_NEEDING_BROKERS:
        # No partition has a leader then, and the client asks one of these brokers.
        nodes = broker.cluster.last_known_others(caller.listener)
    if not nodes:
        # Cut off from the cluster. Without brokers and topics every other client ignores the reply
        # and asks another broker, as for a broker of Kafka that is starting (KAFKA-7924).
        # librdkafka ignores it only if both are missing (rd_kafka_parse_Metadata).
        return _response([], [], request, caller)
    wanted = _requested_topics(requested, caller.api_version)
    flags = (
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )
    # The reply depends on what the client may see.
    key = (
        caller.api_version,
        wanted,
        flags,
        tuple(nodes),
        None if caller.is_unrestricted else caller.owner,
    )
    version = _version(caller)
    kept = broker.metadata_replies.get(key, version)
    if kept is not None:
        return EncodedReply([kept])
    slices = TimeSlices(broker.clock)
    if wanted is None:
        failures = {}
    elif is_cut_off:
        # They may have been created meanwhile.
        failures = {name: ErrorCode.LEADER_NOT_AVAILABLE for name, _ in wanted if name is not None}
    else:
        failures = await _create_missing(wanted, caller, slices) if may_create else {}
    version = _version(caller)
    found = (
        _describable(caller)
        if wanted is None
        else (_find(*one, request, caller, failures) for one in wanted)
    )
    rows = []
    partition_rows = _PartitionRows(caller)
    for one in found:
        rows.append(
            await _topic_row(one[0], one[1], request, caller, partition_rows, slices)
            if isinstance(one, tuple)
            else one
        )
        await slices.take()
    reply = _response(rows, nodes, request, caller)
    made = await encode_if_large(reply, slices, caller)
    if any(row.error_code for row in rows):
        return made
    body = bytes((made.buffers if isinstance(made, EncodedReply) else encode_for(caller, reply))[0])
    if version == _version(caller):
        broker.metadata_replies.put(key, version, body)
    return EncodedReply([body])


def _describable(caller: Caller) -> list[tuple[TopicState, str]]:
    """All topics that the caller may describe, with their names."""
    return [
        (one, one.name)
        for one in caller.broker.topics.listed()
        if caller.may_use_topic(AclOperation.DESCRIBE, one.name)
    ]


def _version(caller: Caller) -> int:
    """A number that grows with each change of what a reply depends on."""
    topics, authorizer = caller.broker.topics, caller.broker.authorizer
    rules = 0 if authorizer is None else authorizer.version
    return topics.version + caller.broker.cluster.version + rules


def _response(rows: list[Any], nodes: list[Node], request: Any, caller: Caller) -> Any:
    cluster = caller.broker.cluster
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=one.node_id, host=one.host, port=one.port, rack=None
            )
            for one in nodes
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=rows,
        authorized_operations=cluster_operations(caller)
        if request.include_cluster_authorized_operations
        else OPERATIONS_OMITTED,
    )


def cluster_operations(caller: Caller) -> set[int]:
    """Codes of the operations on the cluster that the caller may do; none without DESCRIBE."""
    if not caller.may_on_cluster(AclOperation.DESCRIBE):
        return set()
    return caller.operations_on(AclResource.CLUSTER, CLUSTER_NAME)


def _requested_topics(
    requested: list[Any] | None, version: int
) -> tuple[_RequestedTopic, ...] | None:
    """Return each requested topic once, in order."""
    if requested is None:
        return None
    if version < FIRST_VERSION_WITH_IDS:
        return tuple(dict.fromkeys((topic.name, _NO_ID) for topic in requested))
    return tuple(dict.fromkeys((topic.name, topic_id_of(topic.topic_id)) for topic in requested))


async def _create_missing(
    wanted: Iterable[_RequestedTopic], caller: Caller, slices: TimeSlices
) -> dict[str, ErrorCode]:
    """Create missing topics; return the errors of those that could not be created.

    One request creates at most as many partitions as CreateTopics allows.
    """
    topics, settings = caller.broker.topics, caller.broker.settings
    if not settings.auto_create_topics_enable:
        return {}
    missing = []
    refused: dict[str, ErrorCode] = {}
    for name, topic_id in wanted:
        if name is not None and name in INTERNAL_TOPICS and topic_id == _NO_ID:
            topics.add_internal(name)
        elif name is not None and _can_auto_create(name, topic_id, caller):
            if not caller.may_auto_create(name):
                refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            missing.append(name)
        await slices.take()
    if not missing:
        return refused
    most = max(settings.max_partitions_per_topic // settings.num_partitions, 1)
    outcomes = await slices.gather(topics.find_or_create(name) for name in missing[:most])
    # Clients retry this error, and the next request creates more topics.
    failures = dict.fromkeys(missing[most:], ErrorCode.LEADER_NOT_AVAILABLE)
    for name, outcome in zip(missing, outcomes, strict=False):
        if isinstance(outcome, KafkaError):
            failures[name] = outcome.code
        elif isinstance(outcome, BaseException):
            raise outcome
    return failures | refused


def _can_auto_create(name: str, topic_id: bytes, caller: Caller) -> bool:
    topics = caller.broker.topics
    if topic_id != _NO_ID or topics.get(name) is not None:
        return False
    if not caller.may_use_topic(AclOperation.DESCRIBE, name):
        return False
    try:
        # In no namespace: clients would take a topic of this name for Kafka's.
        return topics.names.canonical(name).rpartition("/")[2] not in RESERVED_TOPICS
    except KafkaError:
        return False


def _find(
    name: str | None, topic_id: bytes, request: Any, caller: Caller, failures: dict[str, ErrorCode]
) -> tuple[TopicState, str] | Any:
    """Return the topic and the name it was requested by, or an error row."""
    topics, by_id = caller.broker.topics, caller.api_version >= FIRST_VERSION_BY_ID
    try:
        if topic_id != _NO_ID and by_id:
            # The id identifies the topic; the error row omits the name, which may belong to another
            # topic.
            name = None
            live = topics.find_internal(topic_id) or topics.require(topic_id)
            caller.require_topic(AclOperation.DESCRIBE, topic_id)
            return live, live.name
        if name is None or topic_id != _NO_ID:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        caller.require_topic(AclOperation.DESCRIBE, name)
        found = topics.find_listed(name)
        if found is None:
            topics.names.canonical(name)
            raise KafkaError(failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        return found, name
    except KafkaError as failure:
        return _error_row(name if by_id else name or "", topic_id, failure.code, request, caller)


def _error_row(
    name: str | None, topic_id: bytes, code: ErrorCode, request: Any, caller: Caller
) -> Any:
    if code in (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.KAFKA_STORAGE_ERROR):
        # TOPIC_ALREADY_EXISTS: a concurrent request created the topic and it is not visible yet.
        # KAFKA_STORAGE_ERROR: creation failed for now, and old clients do not know that error.
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return _Topic(
        error_code=code,
        name=name,
        topic_id=uuid_of(topic_id),
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        authorized_operations=OPERATIONS_OMITTED
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else _operations(name or "", request, caller),
    )


def _operations(name: str, request: Any, caller: Caller) -> set[int]:
    if not request.include_topic_authorized_operations:
        return OPERATIONS_OMITTED
    return caller.operations_on(AclResource.TOPIC, name)


def live_leader(live: TopicState, index: int, caller: Caller) -> int:
    """The leader of a partition, UNKNOWN if it is not alive or does not have this listener."""
    return _live_leader_of(live.shard_of(index, caller.broker.cluster.shard_count), caller)


def _live_leader_of(shard: int, caller: Caller) -> int:
    cluster = caller.broker.cluster
    leader = cluster.leader_of(shard)
    return UNKNOWN if cluster.find_node(leader, caller.listener) is None else leader


def leader_epoch(live: TopicState, index: int, caller: Caller) -> int:
    """The leader epoch of a partition, UNKNOWN if it never had a leader."""
    cluster = caller.broker.cluster
    return cluster.epoch_of(live.shard_of(index, cluster.shard_count))


class _PartitionRows:
    """Rows of partitions in one reply.

    Partitions with the same index, leader and epoch share a row, and the leaders are looked up once
    per shard: a cluster can have 10,000 partitions.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._leaders: dict[int, tuple[int, int]] = {}
        self._rows: dict[tuple[int, tuple[int, int]], Any] = {}

    def row(self, live: TopicState, index: int) -> Any:
        cluster = self._caller.broker.cluster
        shard = live.shard_of(index, cluster.shard_count)
        leader = self._leaders.get(shard)
        if leader is None:
            leader = _live_leader_of(shard, self._caller), cluster.epoch_of(shard)
            self._leaders[shard] = leader
        found = self._rows.get((index, leader))
        if found is None:
            found = self._rows[index, leader] = _partition_row(index, *leader)
        return found


def _partition_row(index: int, leader: int, epoch: int) -> Any:
    replicas = [] if leader == UNKNOWN else [leader]
    return _Partition(
        error_code=ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=replicas,
        isr_nodes=replicas,
        offline_replicas=[],
    )


async def _topic_row(
    live: TopicState,
    name: str,
    request: Any,
    caller: Caller,
    partition_rows: _PartitionRows,
    slices: TimeSlices,
) -> Any:
    """Return the row of a topic under the name it was requested by."""
    partitions = []
    for index in range(live.topic.partitions):
        partitions.append(partition_rows.row(live, index))
        if slices.count():
            await slices.pause()
    return _Topic(
        error_code=0,
        name=name,
        topic_id=uuid_of(live.topic.topic_id),
        is_internal=live.name in INTERNAL_TOPICS,
        partitions=partitions,
        authorized_operations=_operations(live.name, request, caller),
    )
