"""Layout of the LMDB file: named databases, keys and rows. A change here needs a new `FORMAT`.

| database | key | value |
|---|---|---|
| meta | a name | `format`, `uuid`, `next_log_id`, `next_table_id`, `last_freed` |
| topics | topic name | JSON: id, configs, log id of each partition |
| logs | log id | `LogRow`; only if something was deleted or compacted |
| entries | `Slot`, 52 bytes | the payload and nothing else |
| freeing | log id | the offset below which entries are to be freed |
| table_names | table name | table id |
| tables | table id, row key | row value |

An entry's metadata is in its key. Searches by offset, time or size therefore read keys only, and
payloads are stored and read without a header. Log ids are never reused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from storage.log import Topic

FORMAT = 1
DATABASES = ("meta", "topics", "logs", "entries", "freeing", "table_names", "tables")
ALL_OFFSETS = (1 << 64) - 1

U32 = Struct(">I")
U64 = Struct(">Q")
SLOT_PREFIX = Struct(">QQ")
SLOT = Struct(">QQQqqQI")
SLOT_FIELDS = Struct(">QQQq16xI")
"""The fields of a slot that make up an `Entry`: log id, base and last offset, timestamp, size."""

LOG_ROW = Struct(">QQqQqQ")


class Slot(NamedTuple):
    """An entry's key, sorted by log and base offset.

    `running_timestamp` is the greatest timestamp of the log up to this entry. `position` is the
    number of payload bytes ever appended up to and including this entry; it is inexact where the
    log was compacted. Both increase along the log, so they can be bisected.
    """

    log_id: int
    base_offset: int
    last_offset: int
    timestamp: int
    running_timestamp: int
    position: int
    size: int


class LogRow(NamedTuple):
    """State that the entries do not contain: the start, and the end if the last entry may be
    deleted.

    The size of the readable entries is `position` at the end, minus the position before the first
    of them, minus `shrunk`. Below `compacted_to`, positions do not give sizes.
    """

    start_offset: int = 0
    end_offset: int = 0
    running_timestamp: int = -1
    position: int = 0
    shrunk: int = 0
    compacted_to: int = 0


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic and the log id of each of its partitions."""

    topic: Topic
    log_ids: tuple[int, ...]


def slot_of(key: bytes) -> Slot:
    return Slot._make(SLOT.unpack(key))


def encode_topic(row: TopicRow) -> bytes:
    fields = {
        "topic_id": row.topic.topic_id.hex(),
        "configs": dict(row.topic.configs),
        "log_ids": row.log_ids,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_topic(name: str, value: bytes) -> TopicRow:
    fields = json.loads(value)
    log_ids = tuple(fields["log_ids"])
    return TopicRow(
        Topic(name, bytes.fromhex(fields["topic_id"]), len(log_ids), fields["configs"]), log_ids
    )
