"""The partitions that Produce requests write to: opened here, or led by another gateway."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from gateway.partitions.partition import Partition
from gateway.protocol.caller import Caller
from gateway.protocol.current_leader import names_leaders
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.wire.api_keys import ApiKey
from gateway.topics.remote_appends import RemotePartition
from records import BatchHeader

if TYPE_CHECKING:
    from gateway.partitions.stored_records import MessageSet

#: Partitions of one request that are opened concurrently.
MAX_OPENING_PARTITIONS = 100


async def open_partition(
    topic: str | bytes, index: int, caller: Caller, named: Iterator[tuple[str | bytes, int]]
) -> Partition | RemotePartition:
    """Open a partition, or find the gateway that leads it.

    The next partitions of the request, from `named`, start opening too, so that they open
    concurrently. Raises KafkaError.
    """
    topics = caller.broker.topics
    internal = topics.find_internal(topic)
    if internal is not None:
        raise reserved_topic_error(internal.name)
    for other in islice(named, MAX_OPENING_PARTITIONS):
        topics.prefetch(*other)
    try:
        return await topics.partition(topic, index)
    except KafkaError as failure:
        remote = remote_partition(topic, index, failure, caller)
        if remote is None:
            raise
        return remote


def remote_partition(
    topic: str | bytes, index: int, failure: KafkaError, caller: Caller
) -> RemotePartition | None:
    """Return the partition if another gateway leads it, and the client may not retry.

    Clients that know the address of the leader from the reply send the records there (KIP-951).
    """
    appends, state = caller.broker.remote_appends, caller.broker.topics.get(topic)
    if (
        failure.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER
        or appends is None
        or state is None
        or names_leaders(ApiKey.PRODUCE, caller.api_version)
    ):
        return None
    # Without its traceback, which would keep the bytes of the request.
    refusal = KafkaError(failure.code, failure.message)
    return appends.find_partition(state, index, _client(caller), refusal)


def _client(caller: Caller) -> str:
    return f"{caller.session.host} {caller.client_id or ''}"


async def finish_earlier(partition: Partition | RemotePartition, caller: Caller) -> None:
    """Wait until another gateway has passed on the earlier records of this client."""
    appends = caller.broker.remote_appends
    if appends is not None and isinstance(partition, Partition) and partition.has_remote_clients:
        await appends.finish_earlier(partition, _client(caller))


def reserved_topic_error(topic: str) -> KafkaError:
    """The error for topics reserved by the gateway, as Kafka's ReplicaManager for internal topics.

    Kafka exempts clients with the id __admin_client; the gateway does not, since any client can use
    it.
    """
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"Cannot append to {topic}: the topic is reserved by the gateway",
    )


def new_leader(
    partition: Partition, checked: BatchHeader | MessageSet, caller: Caller
) -> RemotePartition | None:
    """Find the new leader of a partition that was handed over while the records were checked."""
    if isinstance(checked, BatchHeader) and checked.has_producer:
        return None
    failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return remote_partition(partition.topic, partition.index, failure, caller)
