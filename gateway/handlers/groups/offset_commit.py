"""OffsetCommit, OffsetFetch and OffsetDelete, following Kafka's KafkaApis and GroupCoordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka.protocol.consumer.group import OffsetDeleteResponse, OffsetFetchResponse

from gateway.coroutines import TimeSlices
from gateway.groups.offsets.group_commits import GroupCommit, commit_group
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.groups.offsets.remote_offsets import FindOffset
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import topic_id_of, uuid_of
from gateway.protocol.wire.offset_commit_codec import (
    CommittedPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    write_offset_commit_response,
)
from gateway.security.acls import AclOperation, AclResource
from gateway.topics.tenant_scope import plain_id
from gateway.topics.topic_state import TopicState
from storage.log import Buffer

#: Returns the commit time and the expiration time or None of a partition, in ms.
CommitTimes = Callable[[CommittedPartition], tuple[int, int | None]]

_FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
_DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic

#: First version that identifies topics by id.
FIRST_WITH_TOPIC_IDS = 10

_NO_ID = bytes(16)

#: Limit on offsets per request, which are stored atomically. About as many fit into Kafka's limit
#: of 1 MiB per batch (message.max.bytes of the offsets topic); the error beyond it is the same.
MAX_OFFSETS_PER_COMMIT = 10_000

#: Last version of OffsetCommit that is passed on to another coordinator. Clients with a later one
#: repeat the request.
LAST_PASSED_ON = 7

#: First version of OffsetFetch with an error code for the group.
_FIRST_WITH_GROUP_ERROR = 2

#: The reply for a partition without a committed offset.
NO_OFFSET = CommittedOffset(-1, -1, "", -1)


@serves(ApiKey.OFFSET_COMMIT, 5, 10)
async def offset_commit(request: OffsetCommitRequest, caller: Caller) -> OffsetCommitResponse:
    """Commit offsets.

    v6 adds leader epochs, v7 static members (KIP-345), v9 member epochs, v10 topic ids.
    """
    now = caller.broker.now()
    return await commit_offsets(request, caller, lambda _: (now, None))


async def commit_offsets(
    request: OffsetCommitRequest, caller: Caller, times: CommitTimes
) -> OffsetCommitResponse:
    """Handle any version. An error of the group or member is repeated for each valid partition."""
    caller.traffic.group_named(request.group_id)
    codes: dict[str | bytes, dict[int, ErrorCode]] = {}
    existing: dict[tuple[str, int], CommittedPartition] = {}
    keys: dict[str, list[str | bytes]] = {}
    slices = TimeSlices(caller.broker.clock)
    refused = _group_refusal(request.group_id, caller)
    for topic in request.topics:
        key = topic.topic
        codes_of_topic = codes.setdefault(key, {})
        for asked in topic.partitions:
            try:
                if refused is not None:
                    raise refused
                caller.require_topic(AclOperation.READ, key)
                name = _require(key, asked.partition_index, caller).name
            except KafkaError as failure:
                codes_of_topic[asked.partition_index] = failure.code
            else:
                # A request may list one topic under several names.
                named = keys.setdefault(name, [])
                if key not in named:
                    named.append(key)
                # Keeps the order of the request; the outcome is set below.
                codes_of_topic[asked.partition_index] = ErrorCode.NONE
                existing[name, asked.partition_index] = asked
            await slices.take()
    for (name, index), code in (
        await _commit_existing(request, existing, caller, times, slices)
    ).items():
        for key in keys[name]:
            if index in codes[key]:
                codes[key][index] = code
        await slices.take()
    for key, codes_of_topic in codes.items():
        caller.traffic.topic_accessed(
            ApiKey.OFFSET_COMMIT, caller.api_version, key, codes_of_topic.values(), request.group_id
        )
        await slices.take()
    reply: OffsetCommitResponse = await encode_if_large(
        OffsetCommitResponse(codes), slices, caller, _write_commit
    )
    return reply


def _group_refusal(group_id: str, caller: Caller) -> KafkaError | None:
    try:
        caller.require(AclOperation.READ, AclResource.GROUP, group_id)
    except KafkaError as refusal:
        return refusal
    return None


def _write_commit(reply: OffsetCommitResponse, version: int) -> list[Buffer]:
    return [write_offset_commit_response(reply, version)]


def _key_of(topic: Any, caller: Caller) -> str | bytes:
    """The topic id or name, depending on the version."""
    return (
        topic_id_of(topic.topic_id)
        if caller.api_version >= FIRST_WITH_TOPIC_IDS
        else str(topic.name)
    )


def _require(topic: str | bytes, partition: int, caller: Caller) -> TopicState:
    """Raises KafkaError if the topic or partition does not exist."""
    topic_state = caller.broker.topics.require(topic)
    if not 0 <= partition < topic_state.topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic_state


async def _commit_existing(
    request: OffsetCommitRequest,
    existing: dict[tuple[str, int], CommittedPartition],
    caller: Caller,
    times: CommitTimes,
    slices: TimeSlices,
) -> dict[tuple[str, int], ErrorCode]:
    """Commit offsets of partitions that exist; return an error code for each of them."""
    if not existing:
        return {}
    if len(existing) > MAX_OFFSETS_PER_COMMIT:
        return dict.fromkeys(existing, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    broker = caller.broker
    commit = GroupCommit(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        request.group_instance_id,
        caller.api_version,
        [(name, index, _row(asked, times)) for (name, index), asked in existing.items()],
    )
    codes: Sequence[int]
    try:
        await broker.confirm_coordinator(request.group_id)
        codes = await commit_group(
            commit,
            broker.groups,
            broker.offsets,
            broker.topics,
            broker.settings.offset_metadata_max_bytes,
            slices,
        )
    except KafkaError as failure:
        passed = await _pass_on(commit, failure, caller)
        if passed is None:
            return dict.fromkeys(existing, failure.code)
        codes = passed
    return {key: ErrorCode(code) for key, code in zip(existing, codes, strict=True)}


async def _pass_on(
    commit: GroupCommit, failure: KafkaError, caller: Caller
) -> Sequence[int] | None:
    """Commit at another gateway if the group has moved there, see `remote_offsets`."""
    remote = caller.broker.remote_offsets
    if (
        failure.code is not ErrorCode.NOT_COORDINATOR
        or remote is None
        or caller.api_version > LAST_PASSED_ON
    ):
        return None
    return await remote.commit(commit)


def _row(asked: CommittedPartition, times: CommitTimes) -> CommittedOffset:
    committed_at, expires_at = times(asked)
    return CommittedOffset(
        asked.committed_offset,
        asked.committed_leader_epoch,
        asked.committed_metadata or "",
        committed_at,
        expires_at,
    )


@serves(ApiKey.OFFSET_FETCH, 2, 7)
async def offset_fetch(request: Any, caller: Caller) -> Any:
    """Return committed offsets, or -1. v2 accepts null for all topics, v5 adds leader epochs.

    v7 can require stable offsets (KIP-447). Without transactions all offsets are stable.
    """
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.DESCRIBE, AclResource.GROUP, request.group_id)
        epoch = await caller.broker.confirm_coordinator(request.group_id)
        reply = await single_group_reply(
            committed_offsets(request.group_id, request.topics, caller), caller
        )
        caller.broker.check_coordinator(request.group_id, epoch)
    except KafkaError as refusal:
        return await single_group_refusal(request, caller, refusal)
    return reply


@serves(ApiKey.OFFSET_FETCH, 8, 10)
async def offset_fetch_many_groups(request: Any, caller: Caller) -> Any:
    """The same for several groups, each listed once. v9 adds member epochs, v10 topic ids."""
    counts = Counter(asked.group_id for asked in request.groups)
    if len(counts) == 1:
        caller.traffic.group_named(request.groups[0].group_id)
    groups = []
    slices, deadline = TimeSlices(caller.broker.clock), caller.broker.confirm_deadline()
    for asked in request.groups:
        code, topics = ErrorCode.NONE, []
        try:
            if counts[asked.group_id] > 1:
                # Refused because repeating a group with all its topics takes few bytes, so the
                # reply would be unbounded.
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            caller.require(AclOperation.DESCRIBE, AclResource.GROUP, asked.group_id)
            epoch = await caller.broker.confirm_coordinator(asked.group_id, deadline)
            caller.broker.groups.validate_offset_fetch(
                asked.group_id, asked.member_id, asked.member_epoch
            )
            found = committed_offsets(asked.group_id, asked.topics, caller)
            topics = await _topic_rows(_FetchedGroup.OffsetFetchResponseTopics, found, slices)
            caller.broker.check_coordinator(asked.group_id, epoch)
        except KafkaError as failure:
            code, topics = failure.code, []
        groups.append(_FetchedGroup(group_id=asked.group_id, topics=topics, error_code=code))
        await slices.take()
    return await encode_if_large(OffsetFetchResponse(groups=groups), slices, caller)


class TopicOffsets(NamedTuple):
    """A group's offsets in a topic.

    `get` returns a partition's offset or None, which is reported with the error code `missing`.
    """

    name: str
    topic_id: bytes
    partitions: Iterable[int]
    get: Callable[[int], CommittedOffset | None]
    missing: ErrorCode = ErrorCode.NONE


def committed_offsets(
    group_id: str,
    asked: Iterable[Any] | None,
    caller: Caller,
    find: FindOffset | None = None,
) -> Iterator[TopicOffsets]:
    """Yield the requested offsets, or all if `asked` is None.

    `find` returns the offset of a topic and partition; by default it is looked up in this gateway.
    Repeated partitions are returned once, so that a small request does not cause a large reply.
    """
    offsets, topics = caller.broker.offsets, caller.broker.topics
    find = find or partial(offsets.get, group_id)
    if asked is None:
        for name, topic_id, committed in offsets.by_topic(group_id):
            if caller.may_use_topic(AclOperation.DESCRIBE, name):
                yield TopicOffsets(name, topic_id, committed, committed.get)
        return
    seen: set[tuple[str | bytes, int]] = set()
    for topic in asked:
        key = _key_of(topic, caller)
        caller.traffic.topic_accessed(ApiKey.OFFSET_FETCH, caller.api_version, key, group=group_id)
        partitions = [
            index for index in dict.fromkeys(topic.partition_indexes) if (key, index) not in seen
        ]
        seen.update((key, index) for index in partitions)
        topic_state = topics.get(key)
        if not caller.may_use_topic(AclOperation.DESCRIBE, key):
            name, topic_id = (key, _NO_ID) if isinstance(key, str) else ("", key)
            refusal = caller.topic_refusal(key)
            yield TopicOffsets(name, topic_id, partitions, _no_offset, refusal)
        elif topic_state is not None:
            get = partial(find, topic_state.name)
            yield TopicOffsets(
                key if isinstance(key, str) else topic_state.name,
                topic_state.topic.topic_id,
                partitions,
                get,
            )
        elif isinstance(key, bytes):
            yield TopicOffsets("", key, partitions, _no_offset, ErrorCode.UNKNOWN_TOPIC_ID)
        else:
            yield TopicOffsets(key, _NO_ID, partitions, _no_offset)


def _no_offset(partition: int) -> None:
    """Offset lookup for a topic that does not exist."""


async def single_group_reply(found: Iterable[TopicOffsets], caller: Caller) -> Any:
    """The reply in versions with a single group."""
    slices = TimeSlices(caller.broker.clock)
    topics = await _topic_rows(_FetchedTopic, found, slices)
    return await encode_if_large(
        OffsetFetchResponse(topics=topics, error_code=ErrorCode.NONE), slices, caller
    )


async def single_group_refusal(request: Any, caller: Caller, refusal: KafkaError) -> Any:
    """The error reply in versions with a single group.

    Up to v1 each partition has the error code.
    """
    if caller.api_version >= _FIRST_WITH_GROUP_ERROR:
        return OffsetFetchResponse(topics=[], error_code=refusal.code)
    found = (
        TopicOffsets(
            topic.name, _NO_ID, dict.fromkeys(topic.partition_indexes), _no_offset, refusal.code
        )
        for topic in request.topics
    )
    return await single_group_reply(found, caller)


async def _topic_rows(kind: Any, found: Iterable[TopicOffsets], slices: TimeSlices) -> list[Any]:
    topics = []
    for one in found:
        topics.append(await _topic_row(kind, one, slices))
        await slices.take()
    return topics


async def _topic_row(kind: Any, found: TopicOffsets, slices: TimeSlices) -> Any:
    make = (
        kind.OffsetFetchResponsePartition
        if kind is _FetchedTopic
        else kind.OffsetFetchResponsePartitions
    )
    rows: list[Any] = []
    for index in found.partitions:
        committed = found.get(index) or NO_OFFSET
        rows.append(
            make(
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=found.missing if committed is NO_OFFSET else ErrorCode.NONE,
            )
        )
        await slices.take()
    if kind is _FetchedTopic:
        return kind(name=found.name, partitions=rows)
    return kind(name=found.name, topic_id=uuid_of(found.topic_id), partitions=rows)


@serves(ApiKey.OFFSET_DELETE, 0, 0)
async def offset_delete(request: Any, caller: Caller) -> Any:
    """Delete offsets of single partitions (KIP-496), except in topics that members subscribe to."""
    caller.traffic.group_named(request.group_id)
    codes: dict[str, dict[int, ErrorCode]] = {}
    slices = TimeSlices(caller.broker.clock)
    try:
        caller.require(AclOperation.DELETE, AclResource.GROUP, request.group_id)
        await caller.broker.confirm_coordinator(request.group_id)
        subscribed = _subscribed_topics(request.group_id, caller)
        for topic in request.topics:
            codes.setdefault(topic.name, {}).update(
                (asked.partition_index, ErrorCode.NONE) for asked in topic.partitions
            )
        for name, codes_of_topic in codes.items():
            for index in codes_of_topic:
                codes_of_topic[index] = _deletion_error(name, index, subscribed, caller)
                await slices.take()
        deletable = [
            (name, index)
            for name, codes_of_topic in codes.items()
            for index, code in codes_of_topic.items()
            if code is ErrorCode.NONE
        ]
        await caller.broker.offsets.delete(request.group_id, deletable)
    except KafkaError as failure:
        return OffsetDeleteResponse(error_code=failure.code, topics=[])
    topics = []
    for name, codes_of_topic in codes.items():
        caller.traffic.topic_accessed(
            ApiKey.OFFSET_DELETE,
            caller.api_version,
            name,
            codes_of_topic.values(),
            request.group_id,
        )
        rows = []
        for index, code in codes_of_topic.items():
            rows.append(
                _DeletedTopic.OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            )
            await slices.take()
        topics.append(_DeletedTopic(name=name, partitions=rows))
        await slices.take()
    return await encode_if_large(
        OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics), slices, caller
    )


def _subscribed_topics(group_id: str, caller: Caller) -> frozenset[str]:
    """Topics that members subscribe to.

    Raises KafkaError if the group does not exist or its subscriptions are unknown.
    """
    broker = caller.broker
    if not plain_id(group_id):
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    if broker.groups.is_empty(group_id):
        if not broker.offsets.has(group_id) and broker.groups.empty_since(group_id) is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return frozenset()
    subscribed = broker.groups.subscribed_topics(group_id)
    if subscribed is None:
        # Subscriptions of other protocol types, for example Kafka Connect's, cannot be parsed.
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return subscribed


def _deletion_error(
    topic: str, index: int, subscribed: frozenset[str], caller: Caller
) -> ErrorCode:
    try:
        caller.require_topic(AclOperation.READ, topic)
        topic_state = _require(topic, index, caller)
    except KafkaError as failure:
        return failure.code
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic_state.name in subscribed else ErrorCode.NONE
