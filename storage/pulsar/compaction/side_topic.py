"""Side topics: replacement entries that compaction wrote.

The entries of a replaced range are one batch, which is written at once and read as a whole.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pulsar

from storage.log import Entry, StorageFailed
from storage.pulsar.admin.admin_api import AdminFailed, BrokerError, Conflict, NotFound, PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.compaction.replaced_ranges import ReplacedRange
from storage.pulsar.log.entry_messages import Header, pack_entries, parse_header, unpack_entries
from storage.pulsar.settings import MIB, PulsarSettings
from storage.pulsar.tables.table_compaction import EARLIEST, ensure_topic
from storage.pulsar.topics.pulsar_names import INTERNAL_PREFIX, PREFIX, path_of

log = logging.getLogger(__name__)

BATCH_PROPERTY = "kopgate.run"
"""Property of each message: the token of its batch and its number in the batch."""

SUBSCRIPTION = "kopgate"
"""A subscription that never moves, so that no retention policy deletes parts of a side topic."""

UNLIMITED_RETENTION = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}

MESSAGE_BYTES = MIB
"""Target size of messages. A larger entry becomes a message by itself."""


def side_topic_name(settings: PulsarSettings, partition: bytes, generation: int) -> str:
    """Full name of a partition's side topic; `partition` is the key of the partition's row."""
    return (
        f"{PREFIX}{settings.metadata_tenant}/{settings.metadata_namespace}"
        f"/{INTERNAL_PREFIX}.compacted.{partition.hex()}.{generation}"
    )


class SideTopics:
    """Reads and writes batches of replacement entries, in the reactor's thread.

    The last ones read are cached, up to `compacted_bytes`.
    """

    def __init__(self, client: PulsarClient, admin: PulsarAdmin, settings: PulsarSettings) -> None:
        self._client = client
        self._admin = admin
        self._settings = settings
        self._cached: OrderedDict[str, tuple[list[Entry], int]] = OrderedDict()
        self._cached_bytes = 0

    async def create(self, partition: bytes, generation: int) -> None:
        """Create the side topic if it is missing. Raises StorageFailed."""
        topic = side_topic_name(self._settings, partition, generation)
        await ensure_topic(self._admin, topic)
        with suppress(Conflict):
            await self._admin.put(f"{path_of(topic)}/subscription/{SUBSCRIPTION}", EARLIEST)
        try:
            # A time to live, or a backlog quota that evicts, would move the subscription.
            await self._admin.post(f"{path_of(topic)}/retention", UNLIMITED_RETENTION)
        except BrokerError:
            raise
        except AdminFailed as error:
            log.warning(
                "retention of side topic not set: a time to live or backlog quota of its namespace "
                "may delete compacted records topic=%s error=%s",
                topic,
                error,
            )

    async def delete(self, partition: bytes, generation: int) -> None:
        """Delete the side topic if it exists. Raises StorageFailed."""
        with suppress(NotFound):
            await self._admin.delete(
                f"{path_of(side_topic_name(self._settings, partition, generation))}?force=true"
            )

    async def write(
        self, partition: bytes, generation: int, first: int, last: int, entries: Sequence[Entry]
    ) -> ReplacedRange:
        """Store a batch; returns it as a range that hides no bytes yet.

        Raises StorageFailed, EntryTooLarge.
        """
        size = sum(len(entry.payload) for entry in entries)
        if not entries:
            return ReplacedRange(first, last, 0, 0, 0, generation, max_timestamp=-1)
        token = uuid4().hex
        topic = side_topic_name(self._settings, partition, generation)
        place, messages = await self._client.run(
            lambda: write_batch(self._client, topic, token, entries)
        )
        newest = max(entry.max_timestamp for entry in entries)
        return ReplacedRange(
            first,
            last,
            0,
            0,
            size,
            generation,
            place.ledger_id(),
            place.entry_id(),
            messages,
            token,
            newest,
        )

    async def read(self, partition: bytes, replaced: ReplacedRange) -> list[Entry]:
        """The replacement entries of a range. Raises StorageFailed."""
        if not replaced.messages:
            return []
        cached = self._cached.get(replaced.token)
        if cached:
            self._cached.move_to_end(replaced.token)
            entries = cached[0]
        else:
            topic = side_topic_name(self._settings, partition, replaced.generation)
            entries = await self._client.run(lambda: read_batch(self._client, topic, replaced))
            self._cache(replaced.token, entries)
        return [
            entry
            for entry in entries
            if replaced.first <= entry.base_offset and entry.last_offset <= replaced.last
        ]

    def _cache(self, token: str, entries: list[Entry]) -> None:
        if token in self._cached:
            return
        size = sum(len(entry.payload) for entry in entries)
        self._cached[token] = entries, size
        self._cached_bytes += size
        while self._cached_bytes > self._settings.compacted_bytes and self._cached:
            _, (_, size) = self._cached.popitem(last=False)
            self._cached_bytes -= size


def split_into_messages(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Groups of entries; each group becomes one message."""
    some: list[Entry] = []
    size = 0
    for entry in entries:
        if some and size + len(entry.payload) > MESSAGE_BYTES:
            yield some
            some, size = [], 0
        some.append(entry)
        size += len(entry.payload)
    if some:
        yield some


def write_batch(
    client: PulsarClient, topic: str, token: str, entries: Sequence[Entry]
) -> tuple[Any, int]:
    """Send a batch; returns the position of its first message, and the number of messages.

    Blocking. The exclusive producer keeps messages of other batches from coming between.
    """
    producer = client.producer(topic, pulsar.ProducerAccessMode.ExclusiveWithFencing)
    try:
        places = []
        for number, some in enumerate(split_into_messages(entries)):
            time_ = max(entry.max_timestamp for entry in some)
            header = Header(
                some[0].base_offset, some[-1].last_offset, time_, 0, 0, time_, len(some)
            )
            payload = bytes(some[0].payload) if len(some) == 1 else pack_entries(some)
            places.append(
                producer.send(
                    payload,
                    properties={
                        **header.properties("compacted"),
                        BATCH_PROPERTY: f"{token} {number}",
                    },
                )
            )
        return places[0], len(places)
    finally:
        with suppress(pulsar.PulsarException):
            producer.close()


def read_batch(client: PulsarClient, topic: str, replaced: ReplacedRange) -> list[Entry]:
    """All entries of a range's batch. Blocking. Skips messages resent after a broker crash."""
    deadline = time.monotonic() + client.settings.read_timeout_seconds
    place = pulsar.MessageId(-1, replaced.ledger_id, replaced.entry_id, -1)
    reader = client.reader(topic, place)
    found: list[Entry] = []
    number = 0
    try:
        while number < replaced.messages:
            message = reader.read_next(max(1, round(1000 * (deadline - time.monotonic()))))
            properties = message.properties()
            header = parse_header(properties)
            if header and properties.get(BATCH_PROPERTY) == f"{replaced.token} {number}":
                found += unpack_entries(header, message.data())
                number += 1
    except pulsar.Timeout:
        seconds = client.settings.read_timeout_seconds
        raise StorageFailed(
            f"{topic}: received {number} of {replaced.messages} replacement messages "
            f"within {seconds:g} s"
        ) from None
    finally:
        reader.close()
    return found
