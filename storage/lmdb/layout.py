"""Layout of the LMDB file: named databases, keys and rows. A change here needs a new `FORMAT`.

| database | key | value |
|---|---|---|
| meta | a name | `format`, `uuid`, `next_log_id`, `next_table_id`, `journal_mark`, and as below |
| topics | topic name | JSON: id, configs, log id of each partition |
| logs | log id | `LogRow`; only if something was deleted or compacted |
| entries | `Slot`, 64 bytes, with the place of the payload in the journal | nothing |
| entries | `Slot`, 52 bytes, of an entry stored in format 1 | the payload and nothing else |
| freeing | log id | the offset below which entries are to be freed |
| segments | number of a segment of the journal | `SegmentUse` |
| table_names | table name | table id |
| tables | table id, row key | row value |

An entry's metadata is in its key. Searches by offset, time or size therefore read keys only. The
journal (`frames.py`) has the payloads; `journal` in `meta` is the `Place` up to which `entries` and
`tables` have its frames. `next_table_write` is the number of the next write of table rows. Log ids
are never reused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from storage.log import Entry, Topic

FORMAT = 4
JOURNAL_FORMAT = 3
"""The first format with a journal. It had no frames with table rows."""

UNRELEASED_FORMAT = 2
"""Of a journal that was never in a release."""

DATABASES = (
    "meta",
    "topics",
    "logs",
    "entries",
    "freeing",
    "segments",
    "table_names",
    "tables",
)
ALL_OFFSETS = (1 << 64) - 1

U32 = Struct(">I")
U64 = Struct(">Q")
SLOT_PREFIX = Struct(">QQ")
INLINE_SLOT = Struct(">QQQqqQI")
"""The key of an entry of format 1: `Slot` without a place, since the value is the payload."""

SLOT = Struct(">QQQqqQIQI")
CHECKPOINT = Struct(">QI")
SEGMENT_USE = Struct(">QQI")

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
    segment: int = 0
    at: int = 0


Row = bytes | Entry
"""The key of an entry with a place in the journal, or an entry that is stored with its key."""


class SegmentUse(NamedTuple):
    """Bytes of frames written to a segment of the journal; those that still belong to an entry, and
    their number. Frames that LMDB does not have yet do not count.
    """

    written_bytes: int = 0
    live_bytes: int = 0
    live_frames: int = 0


class Place(NamedTuple):
    """A position in the journal. There is no segment 0."""

    segment: int = 0
    at: int = 0


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
    if len(key) == SLOT.size:
        return Slot._make(SLOT.unpack(key))
    return Slot(*INLINE_SLOT.unpack(key))


def key_of(slot: Slot) -> bytes:
    return SLOT.pack(*slot) if slot.segment else INLINE_SLOT.pack(*slot[:7])


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
