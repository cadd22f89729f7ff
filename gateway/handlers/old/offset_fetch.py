"""OffsetFetch 1, and what it shares with OffsetFetch 0, which needs `compat`."""

from __future__ import annotations

from typing import Any

from gateway.cluster.calls import CallFailed
from gateway.coroutines import TimeSlices, Waiter
from gateway.groups.offsets.remote_offsets import FindOffset
from gateway.handlers.groups.offset_commit import (
    committed_offsets,
    single_group_refusal,
    single_group_reply,
)
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource

#: Seconds to wait for a group's coordinator. The last attempt may take another 10 s, and clients
#: wait 30 s for a reply.
COORDINATOR_SECONDS = 15.0

#: Seconds between two attempts to find it.
RETRY_SECONDS = 0.5


@serves(ApiKey.OFFSET_FETCH, 1, 1)
async def offset_fetch_v1(request: Any, caller: Caller) -> Any:
    """Kafka 0.8.2 to 0.10.1, librdkafka before 1.6, kafka-python 1, kafka-node."""
    return await fetch_offsets(request, caller, ErrorCode.NONE)


async def fetch_offsets(request: Any, caller: Caller, missing: ErrorCode) -> Any:
    """Return committed offsets, also of a group that another gateway coordinates.

    `missing` is the error code of a partition without an offset.
    """
    caller.traffic.group_named(request.group_id)
    try:
        caller.require(AclOperation.DESCRIBE, AclResource.GROUP, request.group_id)
        find, epoch = await _find_offsets(request, caller)
        found = (
            one._replace(missing=one.missing or missing)
            for one in committed_offsets(request.group_id, request.topics, caller, find)
        )
        reply = await single_group_reply(found, caller)
        if epoch is not None:
            caller.broker.check_coordinator(request.group_id, epoch)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.NOT_COORDINATOR and caller.broker.remote_offsets is not None:
            # See `remote_offsets`. Clients repeat the request on a new connection.
            raise Refused("the coordinator of a group does not answer OffsetFetch") from refusal
        return await single_group_refusal(request, caller, refusal)
    return reply


async def _find_offsets(request: Any, caller: Caller) -> tuple[FindOffset | None, int | None]:
    """Return a function that finds the group's offsets; or None and the leader epoch of
    `confirm_coordinator` if this gateway has them.

    Waits for a coordinator for at most COORDINATOR_SECONDS. Raises KafkaError(NOT_COORDINATOR).
    """
    broker = caller.broker
    remote = broker.remote_offsets
    deadline = broker.clock.seconds() + COORDINATOR_SECONDS
    while True:
        try:
            return None, await broker.confirm_coordinator(request.group_id)
        except KafkaError as failure:
            refusal = failure
        if (
            remote is None
            or refusal.code is not ErrorCode.NOT_COORDINATOR
            or broker.leadership.is_refusing
        ):
            raise refusal
        try:
            find = await remote.fetch(request.group_id, await _existing_partitions(request, caller))
        except CallFailed:
            raise refusal from None
        if find is not None:
            return find, None
        left = deadline - broker.clock.seconds()
        if left <= 0 or await broker.interruptible_waits.wait(
            Waiter(broker.clock), min(RETRY_SECONDS, left)
        ):
            raise refusal


async def _existing_partitions(request: Any, caller: Caller) -> list[tuple[str, int]]:
    """The requested partitions that exist and that the caller may describe, once each.

    With the names under which the offsets are stored: clients may use aliases of Pulsar's names.
    """
    partitions: dict[tuple[str, int], None] = {}
    slices = TimeSlices(caller.broker.clock)
    for topic in request.topics:
        state = caller.broker.topics.get(topic.name)
        if state is not None and caller.may_use_topic(AclOperation.DESCRIBE, topic.name):
            partitions.update(
                ((state.name, index), None)
                for index in topic.partition_indexes
                if 0 <= index < state.topic.partitions
            )
        await slices.take(1 + len(topic.partition_indexes))
    return list(partitions)
