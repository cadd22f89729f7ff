"""How the store lies in the LMDB file: named databases, keys and rows. A change here is a new `FORMAT`.

| database | key | value |
|---|---|---|
| meta | a name | `format`, `uuid`, `next_log_id`, `next_table_id`, `last_freed` |
| topics | topic name | JSON: id, configs, log id of each partition |
| logs | log id | `LogRow`; only where something was deleted or compacted |
| entries | `Slot`, 52 bytes | the payload and nothing else |
| freeing | log id | the offset below which entries are to be freed |
| table_names | table name | table id |
| tables | table id, row key | row value |

Everything that is known of an entry stands in its key, so that searches by offset, time or size read keys only and a payload is neither
joined to a header on its way in nor cut from one on its way out. A log id is never given out again.
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
"""Of a slot what its entry is made of: log id, base and last offset, timestamp, size."""

LOG_ROW = Struct(">QQqQqQ")


class Slot(NamedTuple):
    """An entry's key. Sorted by log and base offset; the rest is carried along.

    `running_timestamp` is the greatest timestamp of the log up to here, `position` the payload bytes ever appended up to and with this entry:
    both grow along the log, which makes them searchable by bisection. `position` is not exact where the log was compacted.
    """

    log_id: int
    base_offset: int
    last_offset: int
    timestamp: int
    running_timestamp: int
    position: int
    size: int


class LogRow(NamedTuple):
    """What the entries themselves cannot tell: where the log starts, and where it ended when its last entry was perhaps taken away.

    The bytes of the readable entries are `position` at the end, less the position before the first of them, less `shrunk`. Below
    `compacted_to` positions tell nothing of sizes.
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
