"""Opens a partition: fences its writer, and reads its start and end offsets from the topic."""

from __future__ import annotations

import logging
from typing import Any

import pulsar

from storage.log import StorageError, StorageFailed, UnknownTopic
from storage.pulsar.admin.admin_api import NotFound, PulsarAdmin
from storage.pulsar.client.exclusive_producer import LogEnd
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.append_queue import OpenedPartition
from storage.pulsar.log.entry_messages import entry_payload_bytes
from storage.pulsar.log.partition_reader import PartitionReader, ReaderCache
from storage.pulsar.log.partition_rows import PartitionState, add_epoch

log = logging.getLogger(__name__)

EPOCH_PROPERTY = "pulsar.topic.epoch"
"""Topic property with the number of exclusive producers that the topic has had."""


async def open_partition(
    client: PulsarClient,
    admin: PulsarAdmin,
    cache: ReaderCache,
    topic: str,
    entry_format: str,
    partition: PartitionState,
) -> OpenedPartition:
    """Fence the writer of `topic`, a full name, and read the partition's state.

    Raises UnknownTopic, LogClosed, StorageFailed.
    """
    producer = await client.run(
        lambda: client.producer(topic, pulsar.ProducerAccessMode.ExclusiveWithFencing)
    )
    reader = PartitionReader(client, admin, cache, topic, client.settings)
    try:
        epoch = await leader_epoch(admin, topic)
        row = partition.row
        for one in row.epochs:
            reader.add_epoch(*one)
        last = await reader.last()
        if last is None:
            # The partition is new, or Pulsar has trimmed all of it. Assigned offsets are not
            # reused.
            end = LogEnd(max(row.reserved, row.start_offset), 0, -1)
            start = end.offset, -partition.replaced_ranges.bytes_saved
        else:
            end = LogEnd(
                last.header.last_offset + 1,
                last.header.bytes_before + entry_payload_bytes(last.header, last.payload),
                last.header.greatest_timestamp,
            )
            start = (
                (row.start_offset, row.start_bytes)
                if row.start_offset <= end.offset
                else (end.offset, end.bytes - partition.replaced_ranges.bytes_saved)
            )
        for one in add_epoch(row.epochs, epoch, end.offset, start[0]):
            reader.add_epoch(*one)
        return OpenedPartition(
            client,
            topic,
            entry_format,
            producer,
            epoch,
            partition,
            reader,
            start,
            end,
            last is None,
        )
    except BaseException:
        close_unused_producer(client, producer)
        await reader.close()
        raise


async def leader_epoch(admin: PulsarAdmin, topic: str) -> int:
    """The leader epoch: the topic's epoch counter. Raises UnknownTopic, StorageFailed."""
    try:
        text = (await admin.properties(topic)).get(EPOCH_PROPERTY, "")
    except NotFound:
        raise UnknownTopic(f"{topic} was deleted") from None
    if not text.isdecimal():
        raise StorageFailed(
            f"{topic} has an exclusive producer but no property {EPOCH_PROPERTY}: "
            "the brokers must run Pulsar 2.8 or later"
        )
    return int(text)


def close_unused_producer(client: PulsarClient, producer: Any) -> None:
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
