"""Writes other than appends, as functions of a `Burst`, run in the writer thread.

They raise a StorageError or ValueError before writing anything, and may be run again in another
burst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.lmdb.layout import (
    ALL_OFFSETS,
    LOG_ROW,
    SLOT_PREFIX,
    U32,
    U64,
    LogRow,
    Slot,
    TopicRow,
    decode_topic,
    encode_topic,
    key_of,
    slot_of,
)
from storage.lmdb.queries import LogCursor, last_slot, log_row, retained_from, slot_at, slots_from
from storage.lmdb.write_burst import Burst, DurableLog
from storage.log import Entry, OffsetOutOfRange, Topic, TopicExists, UnknownTopic


def open_log(burst: Burst, topic: str, partition: int) -> DurableLog:
    """Load the state of a partition log from disk. Raises UnknownTopic, StorageFailed."""

    def load(txn: Any) -> DurableLog:
        log_ids = find_topic(txn, burst.databases, topic).log_ids
        if not 0 <= partition < len(log_ids):
            raise UnknownTopic(f"topic {topic} has no partition {partition}")
        log_id = log_ids[partition]
        return burst.open_log(log_id) or load_log(
            txn, burst.databases, log_id, burst.pending_rows(log_id)
        )

    log = burst.view(load)
    burst.add_log(log)
    return log


def load_log(
    txn: Any, databases: Mapping[str, Any], log_id: int, pending: Sequence[bytes] = ()
) -> DurableLog:
    """The state of a log as committed, with the rows that are pending."""
    row = log_row(txn, databases["logs"], log_id)
    with txn.cursor(db=databases["entries"]) as committed:
        cursor = LogCursor(committed, log_id, pending) if pending else committed
        last = last_slot(cursor, log_id)
        first = slot_at(cursor, log_id, row.start_offset)
    if last and last.last_offset >= row.end_offset:
        end, running, position = last.last_offset + 1, last.running_timestamp, last.position
    else:
        end, running, position = row.end_offset, row.running_timestamp, row.position
    size = position - (first.position - first.size) - row.shrunk if first else 0
    return DurableLog(log_id, row.start_offset, end, running, position, size)


def move_start(burst: Burst, log_id: int, offset: int) -> tuple[int, int]:
    """Raise the start offset to `offset`; return the new start offset and size.

    Raises OffsetOutOfRange, LogClosed.
    """
    log = burst.log(log_id)
    if offset > log.end_offset:
        raise OffsetOutOfRange(f"offset {offset} is beyond the end, {log.end_offset}")
    if offset > log.start_offset:
        row = log_row(burst.txn, burst.databases["logs"], log_id)
        with burst.txn.cursor(db=burst.databases["entries"]) as cursor:
            first = slot_at(cursor, log_id, offset)
            log.size = size_from(cursor, log, first, offset, row.compacted_to)
        log.start_offset = offset
        put_log_row(burst, log, first, row.compacted_to)
        burst.free(log_id, offset)
    return log.start_offset, log.size


def retain(
    burst: Burst, log_id: int, since: int | None, at_most_bytes: int | None
) -> tuple[int, int]:
    """Apply `PartitionLog.retain`; return the new start offset and size. Raises LogClosed."""
    log = burst.log(log_id)
    row = log_row(burst.txn, burst.databases["logs"], log_id)
    with burst.txn.cursor(db=burst.databases["entries"]) as cursor:
        offset = retained_from(
            cursor, log_id, log.start_offset, log.end_offset, row, log.size, since, at_most_bytes
        )
    return move_start(burst, log_id, offset)


def size_from(
    cursor: Any, log: DurableLog, first: Slot | None, offset: int, compacted_to: int
) -> int:
    """Payload bytes from `first`, the entry at `offset`, to the end of the log."""
    if first is None:
        return 0
    if offset >= compacted_to:
        return log.position - (first.position - first.size)
    gone = slots_from(cursor, log.log_id, log.start_offset, offset)
    return log.size - sum(slot.size for slot in gone if slot.last_offset < offset)


def put_log_row(burst: Burst, log: DurableLog, first: Slot | None, compacted_to: int) -> None:
    shrunk = log.position - (first.position - first.size) - log.size if first else 0
    row = LogRow(
        log.start_offset, log.end_offset, log.running_timestamp, log.position, shrunk, compacted_to
    )
    burst.txn.put(U64.pack(log.log_id), LOG_ROW.pack(*row), db=burst.databases["logs"])


def replace_entries(
    burst: Burst, log_id: int, first: int, last: int, entries: Sequence[Entry]
) -> int:
    """Apply `PartitionLog.replace`; return the new size. Raises ValueError, LogClosed."""
    log = burst.log(log_id)
    row = log_row(burst.txn, burst.databases["logs"], log_id)
    with burst.txn.cursor(db=burst.databases["entries"]) as cursor:
        # Entries deleted since compaction read them stay deleted, even if not freed yet.
        gone = [
            slot
            for slot in slots_from(cursor, log_id, max(first, log.start_offset), last + 1)
            if first <= slot.base_offset and slot.last_offset <= last
        ]
        entries = [entry for entry in entries if entry.last_offset >= log.start_offset]
        following = slot_at(cursor, log_id, last + 1)
        latest = following.running_timestamp if following else log.running_timestamp
        if any(entry.max_timestamp > latest for entry in entries):
            raise ValueError(
                f"a replacement has a later timestamp than the entries it replaces, {latest}"
            )
        running, position = running_values_before(cursor, log_id, first)
        for slot in gone:
            burst.txn.delete(key_of(slot), db=burst.databases["entries"])
            burst.segments.remove(slot)
            log.size -= slot.size
        for entry in entries:
            size = len(entry.payload)
            position += size
            running = max(running, entry.max_timestamp)
            slot = burst.place(log_id, entry, running, position)
            cursor.put(key_of(slot), b"")
            log.size += size
        start = slot_at(cursor, log_id, log.start_offset)
    put_log_row(burst, log, start, max(row.compacted_to, last + 1))
    return log.size


def running_values_before(cursor: Any, log_id: int, offset: int) -> tuple[int, int]:
    """The running timestamp and position of the last entry that begins before `offset`."""
    if cursor.prev() if cursor.set_range(SLOT_PREFIX.pack(log_id, offset)) else cursor.last():
        slot = slot_of(cursor.key())
        if slot.log_id == log_id:
            return slot.running_timestamp, slot.position
    return -1, 0


def create_topic(burst: Burst, topic: Topic) -> TopicRow:
    """Insert the topic with new log ids. Raises TopicExists."""
    name = topic.name.encode()
    if burst.txn.get(name, db=burst.databases["topics"]) is not None:
        raise TopicExists(f"topic {topic.name} already exists")
    row = TopicRow(topic, new_ids(burst, b"next_log_id", topic.partitions))
    burst.txn.put(name, encode_topic(row), db=burst.databases["topics"])
    return row


def alter_topic(burst: Burst, topic: Topic) -> TopicRow:
    """Update configs and add partitions. Raises UnknownTopic, ValueError."""
    current = find_topic(burst.txn, burst.databases, topic.name)
    more = topic.partitions - current.topic.partitions
    if more < 0 or topic.topic_id != current.topic.topic_id:
        raise ValueError(
            f"topic {topic.name}: the id cannot change, and the partition count cannot be "
            f"less than {current.topic.partitions}"
        )
    row = TopicRow(topic, current.log_ids + new_ids(burst, b"next_log_id", more))
    burst.txn.put(topic.name.encode(), encode_topic(row), db=burst.databases["topics"])
    return row


def delete_topic(burst: Burst, name: str) -> None:
    """Delete the topic and its log rows, and mark its entries to be freed. Raises UnknownTopic."""
    row = find_topic(burst.txn, burst.databases, name)
    burst.txn.delete(name.encode(), db=burst.databases["topics"])
    for log_id in row.log_ids:
        burst.txn.delete(U64.pack(log_id), db=burst.databases["logs"])
        burst.close_log(log_id)
        burst.free(log_id, ALL_OFFSETS)


def find_topic(txn: Any, databases: Mapping[str, Any], name: str) -> TopicRow:
    value = txn.get(name.encode(), db=databases["topics"])
    if value is None:
        raise UnknownTopic(f"no topic {name}")
    return decode_topic(name, value)


def open_table(burst: Burst, name: str) -> int:
    """The id of the table, assigned now if the table is new."""
    names = burst.databases["table_names"]
    value = burst.view(lambda txn: txn.get(name.encode(), db=names))
    if value is not None:
        return int(U32.unpack(value)[0])
    (table_id,) = new_ids(burst, b"next_table_id", 1)
    burst.txn.put(name.encode(), U32.pack(table_id), db=names)
    return table_id


def new_ids(burst: Burst, counter: bytes, count: int) -> tuple[int, ...]:
    """Ids that were never used before."""
    meta = burst.databases["meta"]
    value = burst.txn.get(counter, db=meta)
    first = int(U64.unpack(value)[0]) if value else 1
    burst.txn.put(counter, U64.pack(first + count), db=meta)
    return tuple(range(first, first + count))
