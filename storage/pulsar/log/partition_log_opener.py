"""Opens a partition: fences its writer, and reads its start and end offsets from the topic."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pulsar

from storage.log import Fenced, StorageError, StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.exclusive_producer import Closable, LogEnd
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.client.stored_messages import StoredMessage
from storage.pulsar.log.append_queue import OpenedPartition
from storage.pulsar.log.entry_messages import entry_payload_bytes
from storage.pulsar.log.partition_reader import PartitionReader, ReaderCache
from storage.pulsar.log.partition_rows import PartitionState, add_epoch, next_opening

log = logging.getLogger(__name__)

MayWrite = Callable[[], bool]
"""Whether this process may still write; called after it has fenced others."""


async def open_partition(
    client: PulsarClient,
    admin: PulsarAdmin,
    cache: ReaderCache,
    topic: str,
    entry_format: str,
    partition: PartitionState,
    leader_epoch: int,
    may_write: MayWrite,
) -> OpenedPartition:
    """Fence the writer of `topic`, a full name, and read the partition's state.

    Raises UnknownTopic, Fenced, LogClosed, StorageFailed.
    """
    row = partition.row
    opening = next_opening(row.epochs, leader_epoch)
    check_epoch(topic, row.epochs[-1][0] if row.epochs else -1, leader_epoch)
    producer = await client.run(lambda: client.partition_producer(topic))
    reader = PartitionReader(client, admin, cache, topic, client.settings)
    try:
        check_may_write(topic, may_write)
        for one in row.epochs:
            reader.add_epoch(*one)
        # The opener asks for the first message later: search both at once.
        reader.search_first()
        last = await reader.last()
        if last is not None:
            check_epoch(topic, last.header.leader_epoch, leader_epoch)
        start, end = _start_and_end(partition, last)
        for one in add_epoch(row.epochs, leader_epoch, end.offset, start[0], opening):
            reader.add_epoch(*one)
        return OpenedPartition(
            client,
            topic,
            entry_format,
            producer,
            leader_epoch,
            partition,
            reader,
            start,
            end,
            last is None,
            opening,
        )
    except BaseException:
        close_unused_producer(client, producer)
        # A search may be in progress. A reader that it opens later would create a deleted topic.
        await reader.disconnect()
        raise


def _start_and_end(
    partition: PartitionState, last: StoredMessage | None
) -> tuple[tuple[int, int], LogEnd]:
    """The start of the log as (offset, bytes), and its end after the last entry."""
    row, saved = partition.row, partition.replaced_ranges.bytes_saved
    if last is None:
        # The partition is new, or Pulsar has trimmed all of it. Assigned offsets are not reused.
        end = LogEnd(max(row.reserved, row.start_offset), 0, -1)
        return (end.offset, -saved), end
    end = LogEnd(
        last.header.last_offset + 1,
        last.header.bytes_before + entry_payload_bytes(last.header, last.payload),
        last.header.greatest_timestamp,
    )
    if row.start_offset <= end.offset:
        return (row.start_offset, row.start_bytes), end
    return (end.offset, end.bytes - saved), end


def check_epoch(topic: str, stored: int, leader_epoch: int) -> None:
    """Raises StorageFailed if `stored`, an epoch that wrote to the partition, is the greater one.

    Then the epochs of the shards do not belong to this data.
    """
    if stored > leader_epoch:
        raise StorageFailed(
            f"{topic} was written with leader epoch {stored}, greater than {leader_epoch}, the "
            "epoch of its shard: the metadata of this store was lost or belongs to another store"
        )


def check_may_write(topic: str, may_write: MayWrite) -> None:
    """Raises Fenced if this process may not write any more."""
    if not may_write():
        raise Fenced(f"{topic} was not opened: this process may not write any more")


def close_unused_producer(client: PulsarClient, producer: Closable) -> None:
    """Close a producer that has sent nothing, without waiting for it."""

    def close() -> None:
        try:
            producer.close()
        except pulsar.PulsarException as error:
            log.debug("closing an unused producer failed: %s", type(error).__name__)

    try:
        client.run(close).addErrback(lambda failure: failure.trap(StorageError))
    except StorageError:
        # The client is closed, and all producers with it.
        return
