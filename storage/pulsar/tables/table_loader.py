"""Loads a state table from its compacted topic, complete and consistent.

The loader first writes an end message and reads up to it. That message follows every acknowledged
put, proves that this process is still the exclusive writer, and avoids relying on the broker's end
of a compacted topic, which is wrong in some cases (everything compacted away, last batch partly
compacted).

If a compaction ends during the read, a deleted row could appear: the row was already read, but its
tombstone has been removed. If the topic moves, the reader reconnects, and some brokers then
continue after the compacted data (apache/pulsar#25998; not seen here). In both cases the table is
read again.
"""

from __future__ import annotations

import logging

import msgspec
import pulsar

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import Ledger, PulsarAdmin
from storage.pulsar.client.pulsar_client import PulsarClient
from storage.pulsar.tables.row_messages import END_KEY, is_gap, parse_row
from storage.pulsar.topics.pulsar_names import path_of

ATTEMPTS = 5
"""Compactions and moves are minutes apart, so a second read nearly always succeeds."""

log = logging.getLogger(__name__)


class CompactedLedger(msgspec.Struct, frozen=True, rename="camel"):
    """The compacted ledger; -1 if there is none."""

    ledger_id: int = -1
    size: int = -1


class TopicSpace(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a topic's internal statistics that describes its size."""

    total_size: int
    ledgers: list[Ledger]
    compacted_ledger: CompactedLedger = CompactedLedger()
    cursors: dict[str, msgspec.Raw] = {}

    @property
    def state(self) -> tuple[CompactedLedger, int]:
        """Changes when the topic is compacted, and when it is reopened, which creates a ledger."""
        return self.compacted_ledger, max((ledger.ledger_id for ledger in self.ledgers), default=-1)


async def topic_space(admin: PulsarAdmin, topic: str) -> TopicSpace:
    """Read the size, ledgers and cursors of a topic.

    Raises StorageFailed, in particular NotFound for a missing topic.
    """
    space: TopicSpace = await admin.get(f"{path_of(topic)}/internalStats", TopicSpace)
    return space


async def load(
    client: PulsarClient,
    admin: PulsarAdmin,
    topic: str,
    end: bytes,
    space: TopicSpace | None = None,
) -> dict[bytes, bytes]:
    """All rows up to the message with END_KEY and payload `end`, which was written before.

    `space` is the topic's space at any earlier time, which saves a call. Raises StorageFailed.
    """
    for _ in range(ATTEMPTS):
        before = (space or await topic_space(admin, topic)).state
        space = None
        rows = await client.run(lambda: read_rows(client, topic, end))
        if (await topic_space(admin, topic)).state == before:
            return rows
    raise StorageFailed(
        f"{topic} was compacted or moved during each of {ATTEMPTS} reads: retry later"
    )


def read_rows(client: PulsarClient, topic: str, end: bytes) -> dict[bytes, bytes]:
    """All rows, without checking for a compaction during the read. Blocking."""
    settings = client.settings
    timeout = max(1, round(settings.operation_timeout_seconds * 1000))
    reader = client.reader(
        topic, pulsar.MessageId.earliest, compacted=True, queue=settings.table_reader_messages
    )
    rows: dict[bytes, bytes] = {}
    foreign = 0
    try:
        while True:
            message = reader.read_next(timeout)
            data = message.data()
            try:
                key = message.partition_key()
            except UnicodeDecodeError:
                foreign += 1
                continue
            if key == END_KEY and data == end:
                break
            row = parse_row(key, data)
            if row is None:
                foreign += key != END_KEY and not is_gap(key, data)
            elif row.value is None:
                rows.pop(row.key, None)
            else:
                rows[row.key] = row.value
    finally:
        reader.close()
    if foreign:
        log.warning("ignored messages that are not table rows topic=%s count=%d", topic, foreign)
    return rows
