"""CreateTopics, DeleteTopics and CreatePartitions.

CreateTopics
v0: names, partitions, assignments and configs.
v1-3: validate_only, error messages.
v4: -1 selects the default number of partitions (KIP-464).
v5-6: configs of the created topic in the response (KIP-525).
v7: topic id in the response.

DeleteTopics
v0-4: by name.
v5: error messages.
v6: by name or id (KIP-516).

CreatePartitions
v0-3: same fields.

The rules are those of Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kafka.protocol.admin.topics import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)

from gateway.configs.broker_configs import BrokerConfigs
from gateway.configs.entries import topic_entries
from gateway.configs.topic_configs import check
from gateway.coroutines import CALL_ROWS, TimeSlices, shield
from gateway.handlers.admin.partition_reassignments import check_replicas
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import (
    check_changes,
    check_configs,
    encode_if_large,
    reply_with_rows,
)
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import topic_id_of, uuid_of
from gateway.security.acls import AclOperation
from gateway.settings.model import Settings
from gateway.topics.registry import Topics
from gateway.topics.topic_state import TopicState
from storage.log import Topic

_NO_ID = bytes(16)

#: Replication factor that clients see: one replica, the leader. The store decides how many copies
#: of the records exist.
REPLICATION_FACTOR = 1

_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteTopicsResponse.DeletableTopicResult
_Extended = CreatePartitionsResponse.CreatePartitionsTopicResult


@dataclass(frozen=True, slots=True)
class _TopicPlan:
    """A valid topic to create."""

    name: str
    partitions: int
    configs: Mapping[str, str]


#: Limit on the characters in names and values of the configs that are returned to another gateway,
#: about 2,000 topics with defaults. The topics after these have no configs in the reply: if it were
#: too large, topics that were created would be reported as failed.
FORWARDED_CONFIG_CHARACTERS = 2 << 20


async def _refuse_creations(request: Any, error: KafkaError, caller: Caller) -> Any:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return await reply_with_rows(
        names,
        lambda name: _created_row(name, error, caller),
        lambda rows: CreateTopicsResponse(topics=rows),
        caller,
    )


@serves(ApiKey.CREATE_TOPICS, 0, 7, at_controller=_refuse_creations)
async def create_topics(request: Any, caller: Caller) -> Any:
    """Create topics.

    Any replication factor is accepted and 1 is returned, because applications still request the 3
    of their old cluster. Brokers in a manual assignment must exist, because such a request is meant
    for specific brokers. The request's timeout is ignored: topics are created before the reply.
    """
    topics, settings = caller.broker.topics, caller.broker.settings
    counts = Counter(topic.name for topic in request.topics)
    requested = [topic for topic in request.topics if counts[topic.name] == 1]
    slices = TimeSlices(caller.broker.clock)
    plans: list[_TopicPlan | KafkaError] = []
    for topic in requested:
        plans.append(_plan(topic, caller, len(counts)))
        await slices.take(CALL_ROWS)
    _limit_partitions(plans, settings.max_partitions_per_topic)
    outcomes = (
        plans
        if request.validate_only
        else await slices.gather(_create(plan, topics) for plan in plans)
    )
    rows = []
    config_characters = 0
    for topic, outcome in zip(requested, outcomes, strict=True):
        row = _created_row(topic.name, outcome, caller)
        if caller.asked_node is not None:
            config_characters += sum(len(one.name) + len(one.value or "") for one in row.configs)
            if config_characters > FORWARDED_CONFIG_CHARACTERS:
                row.configs = []
        if not row.error_code and not caller.may_use_topic(
            AclOperation.DESCRIBE_CONFIGS, topic.name
        ):
            _hide_configs(row)
        rows.append(row)
        await slices.take(CALL_ROWS)
    for name, count in counts.items():
        if count > 1:
            rows.append(
                _created_row(
                    name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."), caller
                )
            )
            await slices.take()
    return await encode_if_large(CreateTopicsResponse(topics=rows), slices, caller)


def _plan(requested: Any, caller: Caller, count: int) -> _TopicPlan | KafkaError:
    """Validate one requested topic in Kafka's order: name, configs, partitions.

    `count` is the number of topics in the request.
    """
    settings = caller.broker.settings
    try:
        check_changes(count)
        if not caller.may_on_cluster(AclOperation.CREATE):
            caller.require_topic(AclOperation.CREATE, requested.name)
        check_configs(len(requested.configs))
        _check_assignment_size(requested.assignments, settings)
        caller.broker.topics.check_new_name(requested.name)
        nulls = [config.name for config in requested.configs if config.value is None]
        if nulls:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        configs = {config.name: config.value for config in requested.configs}
        check(configs, settings)
        partitions = (
            _partitions_of_assignment(requested, caller)
            if requested.assignments
            else _partition_count(requested, settings)
        )
        if partitions > settings.max_partitions_per_topic:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"{partitions} partitions are more than "
                f"max_partitions_per_topic={settings.max_partitions_per_topic}",
            )
        return _TopicPlan(requested.name, partitions, configs)
    except KafkaError as failure:
        return failure


def _check_assignment_size(assignments: Sequence[Any], settings: Settings) -> None:
    """Limit the assignments before they are checked one by one.

    Raises KafkaError(INVALID_PARTITIONS).
    """
    if len(assignments) > settings.max_partitions_per_topic:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{len(assignments)} partitions are more than "
            f"max_partitions_per_topic={settings.max_partitions_per_topic}",
        )


def _partition_count(requested: Any, settings: Settings) -> int:
    if requested.replication_factor < -1 or requested.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if requested.num_partitions < -1 or requested.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    return (
        settings.num_partitions if requested.num_partitions == -1 else int(requested.num_partitions)
    )


def _partitions_of_assignment(requested: Any, caller: Caller) -> int:
    """Return the number of partitions in a manual assignment."""
    for value, what in (
        (requested.replication_factor, "replication factor"),
        (requested.num_partitions, "numPartitions"),
    ):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    seen: set[int] = set()
    for assignment in requested.assignments:
        if assignment.partition_index in seen:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Found multiple manual partition assignments "
                f"for partition {assignment.partition_index}",
            )
        seen.add(assignment.partition_index)
    check_replicas([assignment.broker_ids for assignment in requested.assignments], caller)
    if seen != set(range(len(seen))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return len(seen)


def _limit_partitions(plans: list[_TopicPlan | KafkaError], most: int) -> None:
    """Fail all topics if together they exceed the limit (Kafka's MAX_RECORDS_PER_USER_OP)."""
    total = sum(plan.partitions for plan in plans if isinstance(plan, _TopicPlan))
    if total > most:
        excess = KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{total} partitions in one request are more than max_partitions_per_topic={most}",
        )
        plans[:] = [excess if isinstance(plan, _TopicPlan) else plan for plan in plans]


async def _create(plan: _TopicPlan | KafkaError, topics: Topics) -> TopicState:
    if isinstance(plan, KafkaError):
        raise plan
    return await topics.create(plan.name, plan.partitions, plan.configs)


def _created_row(
    name: str, outcome: TopicState | _TopicPlan | BaseException, caller: Caller
) -> Any:
    if isinstance(outcome, KafkaError):
        return _Created(
            name=name,
            error_code=outcome.code,
            error_message=outcome.message,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    if isinstance(outcome, BaseException):
        raise outcome
    if isinstance(outcome, TopicState):
        topic_id, partitions, configs = (
            outcome.topic.topic_id,
            outcome.topic.partitions,
            outcome.topic.configs,
        )
    else:
        topic_id, partitions, configs = _NO_ID, outcome.partitions, outcome.configs
    return _Created(
        name=name,
        topic_id=uuid_of(topic_id),
        error_code=0,
        error_message=None,
        num_partitions=partitions,
        replication_factor=REPLICATION_FACTOR,
        configs=_config_rows(configs, caller.broker.configs) if caller.api_version >= 5 else [],
    )


def _hide_configs(row: Any) -> None:
    """As in Kafka, a principal without DESCRIBE_CONFIGS learns only that the topic was created."""
    row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    row.num_partitions = row.replication_factor = -1
    row.configs = []


def _config_rows(overrides: Mapping[str, str], configs: BrokerConfigs) -> list[Any]:
    return [
        _Created.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=False,
        )
        for entry in topic_entries(overrides, configs)
    ]


async def _refuse_deletions(request: Any, error: KafkaError, caller: Caller) -> Any:
    requested = _requested_deletions(request)
    return await reply_with_rows(
        dict.fromkeys(requested),
        lambda one: _deleted_row(*one, error),
        lambda rows: DeleteTopicsResponse(responses=rows),
        caller,
    )


def _requested_deletions(request: Any) -> list[tuple[str | None, bytes]]:
    """Return the name, or None, and the id of each topic in the request."""
    return [(topic.name, topic_id_of(topic.topic_id)) for topic in request.topics] + [
        (name, _NO_ID) for name in request.topic_names
    ]


@serves(ApiKey.DELETE_TOPICS, 0, 6, at_controller=_refuse_deletions)
async def delete_topics(request: Any, caller: Caller) -> Any:
    """Delete topics with all their records (ControllerApis.deleteTopics)."""
    requested = _requested_deletions(request)
    found: dict[str, tuple[str, TopicState]] = {}
    rows = []
    slices = TimeSlices(caller.broker.clock)
    # Ids are processed first: if a topic is given by id and by name, the name is rejected.
    counts = Counter(requested).items()
    by_id, by_name = (
        [one for one in counts if one[0][0] is None],
        [one for one in counts if one[0][0] is not None],
    )
    for (name, topic_id), count in (*by_id, *by_name):
        await slices.take()
        try:
            check_changes(len(requested))
            live = _find(name, topic_id, count, caller)
            if live.name in found:
                # The request is ambiguous, so neither topic is deleted.
                topic_id = found.pop(live.name)[1].topic.topic_id
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "The provided topic name maps to an ID that was already supplied.",
                )
            found[live.name] = name or live.name, live
        except KafkaError as failure:
            rows.append(_deleted_row(name, topic_id, failure))
    outcomes = await slices.gather(shield(_delete(live, caller)) for _, live in found.values())
    for (name, live), outcome in zip(found.values(), outcomes, strict=True):
        rows.append(_deleted_row(name, live.topic.topic_id, outcome))
        await slices.take()
    return await encode_if_large(DeleteTopicsResponse(responses=rows), slices, caller)


async def _delete(live: TopicState, caller: Caller) -> None:
    """Delete the topic and its committed offsets, even if the client disconnects in between."""
    await caller.broker.topics.delete(live)
    await caller.broker.offsets.delete_topic(live.topic)


def _find(name: str | None, topic_id: bytes, count: int, caller: Caller) -> TopicState:
    """Return a topic that the caller may delete.

    A name that the caller may not describe is refused whether or not it exists. Raises KafkaError.
    """
    by_id = name is None
    if by_id and topic_id == _NO_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if not by_id and topic_id != _NO_ID:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."
        )
    if count > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if by_id else 'name'}.")
    may_delete = caller.may_on_cluster(AclOperation.DELETE)
    if not by_id and not may_delete:
        caller.require_topic(AclOperation.DESCRIBE, name or "")
    live = caller.broker.topics.require(topic_id if by_id else name or "")
    if not may_delete:
        caller.require_topic(AclOperation.DELETE, topic_id if by_id else live.name)
    return live


def _deleted_row(name: str | None, topic_id: bytes, outcome: BaseException | None) -> Any:
    if outcome is None:
        return _Deleted(name=name, topic_id=uuid_of(topic_id), error_code=0, error_message=None)
    if not isinstance(outcome, KafkaError):
        raise outcome
    return _Deleted(
        name=name,
        topic_id=uuid_of(topic_id),
        error_code=outcome.code,
        error_message=outcome.message,
    )


async def _refuse_extensions(request: Any, error: KafkaError, caller: Caller) -> Any:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return await reply_with_rows(
        names,
        lambda name: _extended_row(name, error),
        lambda rows: CreatePartitionsResponse(results=rows),
        caller,
    )


@serves(ApiKey.CREATE_PARTITIONS, 0, 3, at_controller=_refuse_extensions)
async def create_partitions(request: Any, caller: Caller) -> Any:
    """Add partitions to topics. Brokers of an assignment must exist, as for CreateTopics."""
    counts = Counter(topic.name for topic in request.topics)
    requested = [topic for topic in request.topics if counts[topic.name] == 1]
    slices = TimeSlices(caller.broker.clock)
    outcomes = await slices.gather(
        _extend(topic, caller, len(counts), validate_only=request.validate_only)
        for topic in requested
    )
    rows = []
    for topic, outcome in zip(requested, outcomes, strict=True):
        rows.append(_extended_row(topic.name, outcome))
        await slices.take()
    for name, count in counts.items():
        if count > 1:
            rows.append(
                _extended_row(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            )
            await slices.take()
    return await encode_if_large(CreatePartitionsResponse(results=rows), slices, caller)


async def _extend(requested: Any, caller: Caller, changes: int, *, validate_only: bool) -> None:
    check_changes(changes)
    topics, most = caller.broker.topics, caller.broker.settings.max_partitions_per_topic
    caller.require_topic(AclOperation.ALTER, requested.name)
    live = topics.require(requested.name)

    def change(topic: Topic) -> Topic:
        _check_increase(requested, topic, most, caller)
        return replace(topic, partitions=requested.count)

    if validate_only:
        change(live.topic)
    else:
        await topics.alter(live, change)


def _check_increase(requested: Any, topic: Topic, most: int, caller: Caller) -> None:
    if requested.count == topic.partitions:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.partitions} partition(s)."
        )
    if requested.count < topic.partitions:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {topic.partitions} partition(s); "
            f"{requested.count} would not be an increase.",
        )
    if requested.count > most:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{requested.count} partitions are more than max_partitions_per_topic={most}",
        )
    if requested.assignments is None:
        return
    additional = requested.count - topic.partitions
    if len(requested.assignments) != additional:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {additional} additional partition(s), but only "
            f"{len(requested.assignments)} assignment(s) were specified.",
        )
    check_replicas([assignment.broker_ids for assignment in requested.assignments], caller)


def _extended_row(name: str, outcome: BaseException | None) -> Any:
    if outcome is None:
        return _Extended(name=name, error_code=0, error_message=None)
    if not isinstance(outcome, KafkaError):
        raise outcome
    return _Extended(name=name, error_code=outcome.code, error_message=outcome.message)
