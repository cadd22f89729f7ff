"""Partitions on a real broker, written by a plain client like the store or like other writers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import _pulsar as native
import pulsar as library

from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.log.entry_messages import Header
from storage.pulsar.log.offset_index import Position
from storage.pulsar.log.partition_reader import PartitionReader, ReaderCache, StoredMessage
from storage.pulsar.settings import PulsarSettings
from tests.testkit.tenant import Tenant

#: Header and payload of a message; None for a message of another writer.
Written = tuple[Header, bytes] | None

_numbers = itertools.count()


def header(
    base: int,
    last: int | None = None,
    *,
    time: int = -1,
    before: int = 0,
    epoch: int = 0,
    greatest: int | None = None,
) -> Header:
    return Header(
        base,
        base if last is None else last,
        time,
        before,
        epoch,
        time if greatest is None else greatest,
    )


def numbered(begin: int, end: int, size: int = 10, epoch: int = 0) -> list[Written]:
    """One message per offset."""
    return [
        (
            header(offset, time=offset, before=offset * size, epoch=epoch),
            (b"%d " % offset).ljust(size, b"."),
        )
        for offset in range(begin, end)
    ]


class PartitionTopic:
    """The topic of a partition, written by a plain client. Calls block."""

    def __init__(self, tenant: Tenant, settings: PulsarSettings, client: library.Client) -> None:
        self.topic = f"persistent://{settings.tenant}/{settings.namespace}/t{next(_numbers)}"
        self._path = self.topic.replace("://", "/")
        self._tenant = tenant
        self._client = client
        tenant.admin("PUT", self._path)

    def write(
        self, messages: Sequence[Written], *, foreign_batches: bool = False
    ) -> list[Position]:
        """Store the messages in order; returns their positions."""
        producer = self._client.create_producer(
            self.topic,
            batching_enabled=foreign_batches,
            batching_max_publish_delay_ms=100,
            max_pending_messages=1000,
            block_if_queue_full=True,
        )
        results: list[tuple[Any, Any]] = []
        for message in messages:
            one, payload = message or (None, b"of another writer")
            properties = one.properties("mixed_kafka") if one else {"kopgate": "a word"}
            producer.send_async(
                payload,
                lambda result, place: results.append((result, place)),
                properties=properties,
            )
        producer.flush()
        producer.close()
        assert {result for result, _ in results} <= {library.Result.Ok}
        return [Position(place.ledger_id(), place.entry_id()) for _, place in results]

    def write_broken_text(self) -> None:
        """Send a message whose properties are not UTF-8, which Pulsar's protocol does not allow."""
        producer = self._client.create_producer(self.topic)
        message = native.MessageBuilder()
        message.content(b"of another writer")
        message.property("kopgate", b"\xff")
        producer._producer.send(message.build())
        producer.close()

    def roll(self) -> None:
        """Begin a new ledger."""
        self._tenant.admin("PUT", f"{self._path}/unload")

    def trim(self) -> None:
        """Delete all ledgers except the current one."""
        self._tenant.admin(
            "POST", f"{self._path}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        )
        # The policy takes effect after a moment.
        while len(self.ledgers()) > 1:
            self._tenant.admin("POST", f"{self._path}/trim")

    def ledgers(self) -> list[int]:
        return [
            ledger["ledgerId"]
            for ledger in self._tenant.admin("GET", f"{self._path}/internalStats")["ledgers"]
        ]


class CountingClient(PulsarClient):
    """Counts the readers that were opened."""

    readers = 0

    def reader(self, *arguments: Any, **options: Any) -> Any:
        self.readers += 1
        return super().reader(*arguments, **options)

    def bulk_reader(self, *arguments: Any) -> Any:
        before = self.readers
        made = super().bulk_reader(*arguments)
        self.readers = before + 1
        return made


class ReadingStack:
    """Everything a store uses for reading; `reader` reads a partition."""

    def __init__(self, settings: PulsarSettings, reactor: Any) -> None:
        self.settings = settings
        self.client = CountingClient(settings, reactor)
        self.admin = PulsarAdmin(settings, reactor)
        self.cache = ReaderCache(self.client, settings.readers)

    def reader(self, partition: PartitionTopic) -> PartitionReader:
        return PartitionReader(self.client, self.admin, self.cache, partition.topic, self.settings)

    async def close(self) -> None:
        await self.cache.close()
        await self.admin.close()
        await self.client.close()


def offsets(messages: Sequence[StoredMessage]) -> list[int]:
    return [message.header.base_offset for message in messages]
