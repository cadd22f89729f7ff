"""A state table read from its compacted topic, whole and as it is at one moment.

What ends the reading is a message that the reader of the table writes itself, first: it stands behind every acknowledged put, it proves that this
process still has the right to write, and it needs no word of the broker about where a compacted topic ends, which is wrong in some cases (everything
compacted away, the last batch half compacted).

A compaction that ends while the table is read would show a row that was deleted: the row was read before, and its tombstone is no more. Where the topic
moves meanwhile, the reader connects again in the midst, and some brokers then go on behind all that compaction left (apache/pulsar#25998; not seen here). So
the table is read again where either happened.
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
"""Compactions and moves follow each other after minutes, so the second reading is nearly always the last."""

log = logging.getLogger(__name__)


class CompactedLedger(msgspec.Struct, frozen=True, rename="camel"):
    """What compaction left. -1 where there was none yet."""

    ledger_id: int = -1
    size: int = -1


class TopicSpace(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a topic's internal statistics that says how much it holds."""

    total_size: int
    ledgers: list[Ledger]
    compacted_ledger: CompactedLedger = CompactedLedger()
    cursors: dict[str, msgspec.Raw] = {}

    @property
    def state(self) -> tuple[CompactedLedger, int]:
        """What is another after a compaction, and after the topic was opened anew, which begins a ledger."""
        return self.compacted_ledger, max((ledger.ledger_id for ledger in self.ledgers), default=-1)


async def topic_space(admin: PulsarAdmin, topic: str) -> TopicSpace:
    """Raises as `PulsarAdmin.get`."""
    space: TopicSpace = await admin.get(f"{path_of(topic)}/internalStats", TopicSpace)
    return space


async def load(
    session: PulsarClient, admin: PulsarAdmin, topic: str, end: bytes
) -> dict[bytes, bytes]:
    """Every row, up to the message with END_KEY and `end`, which has been written. Raises StorageFailed."""
    for _ in range(ATTEMPTS):
        before = (await topic_space(admin, topic)).state
        rows = await session.run(lambda: read_rows(session, topic, end))
        if (await topic_space(admin, topic)).state == before:
            return rows
    raise StorageFailed(
        f"{topic} was compacted, or moved, {ATTEMPTS} times while it was read: try again later"
    )


def read_rows(session: PulsarClient, topic: str, end: bytes) -> dict[bytes, bytes]:
    """As `load`, whatever is compacted meanwhile; blocks."""
    settings = session.settings
    timeout = max(1, round(settings.operation_timeout_seconds * 1000))
    reader = session.reader(
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
        log.warning(
            "%s has %d messages that are no rows of a table; they are left out", topic, foreign
        )
    return rows
