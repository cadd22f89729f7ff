"""Fuzz target: the recovery of a store from damaged segments of its journal."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from zlib import crc32

from storage.lmdb import frames
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import SEGMENT_HEADER, SEGMENT_MAGIC, SegmentHeader
from storage.lmdb.journal import Journal, Unreadable, read_entries
from storage.lmdb.layout import CHECKPOINT, Place, TopicRow, encode_topic, slot_of
from storage.lmdb.recovery import recover
from storage.lmdb.settings import LmdbSettings
from storage.lmdb.write_burst import WriterState
from storage.log import Entry, StorageFailed, Topic
from tests.fuzz.journal_targets import MARK, repaired_frames
from tests.storage.lmdb.simulation.simulated_disk import File, SimulatedDisk

_LOGS = (1, 2)
_SETTINGS = LmdbSettings(map_bytes=1 << 20)
#: What the index has: nothing, or the journal up to these places.
_CHECKPOINTS = (Place(), Place(1, SEGMENT_HEADER.size), Place(2, SEGMENT_HEADER.size))

# Bits of the first byte. The others select the checkpoint.
_IS_DAMAGED = 1


def recovery(payload: bytes) -> None:
    """The first byte selects the checkpoint, and whether checksums are repaired to reach later
    checks. The second has a bit for each segment whose file is missing. The files follow: each
    begins with the magic of a segment.

    A store is recovered or refused. What was recovered can be read, or is reported as damaged, and
    is the same after another restart.
    """
    if len(payload) < 2:
        return
    checkpoint = _CHECKPOINTS[(payload[0] >> 1) % len(_CHECKPOINTS)]
    disk = SimulatedDisk()
    for number, data in enumerate(_segments(payload[2:]), 1):
        if not payload[1] >> (number - 1) & 1:
            content = data if payload[0] & _IS_DAMAGED else _repaired(data, number)
            disk.files[f"{number:016d}"] = File(bytearray(content), bytearray(content))
    found = _recovered(disk, checkpoint)
    if found is None:
        return
    journal, state = found
    for log_id, rows in state.pending.rows.items():
        offset = 0
        for slot in map(slot_of, rows):
            assert (slot.log_id, slot.base_offset) == (log_id, offset)
            offset = slot.last_offset + 1
        for row in rows:
            try:
                (entry,) = read_entries(journal, [row])
            except Unreadable:
                continue
            slot = slot_of(row)
            assert (entry.base_offset, entry.last_offset) == (slot.base_offset, slot.last_offset)
    again = _recovered(disk, checkpoint)
    assert again is not None
    assert _of_index(again[1]) == _of_index(state)
    assert again[0].end == journal.end


def _recovered(disk: SimulatedDisk, checkpoint: Place) -> tuple[Journal, WriterState] | None:
    journal, state = Journal(Path("journal"), disk, _SETTINGS, MARK), WriterState()
    try:
        recover(_environment(checkpoint), journal, state)
    except (StorageFailed, OSError):
        # `LmdbStore.open` raises StorageFailed.
        return None
    return journal, state


def _of_index(state: WriterState) -> tuple[object, ...]:
    return state.pending.rows, state.pending.table_rows, state.next_table_write


@cache
def _environment(checkpoint: Place) -> LmdbEnvironment:
    """A store with a topic and this checkpoint."""
    folder = tempfile.TemporaryDirectory()
    environment = LmdbEnvironment(Path(folder.name), _SETTINGS.map_bytes)
    _folders.append(folder)
    topic = TopicRow(Topic("orders", bytes(16), len(_LOGS), {}), _LOGS)
    with environment.begin() as txn:
        txn.put(b"orders", encode_topic(topic), db=environment.databases["topics"])
        if checkpoint.segment:
            txn.put(b"journal", CHECKPOINT.pack(*checkpoint), db=environment.databases["meta"])
    return environment


#: Folders of the environments, deleted when the process ends.
_folders: list[tempfile.TemporaryDirectory[str]] = []


def _segments(content: bytes) -> list[bytes]:
    first, *others = content.split(SEGMENT_MAGIC)
    return [one for one in (first, *(SEGMENT_MAGIC + other for other in others)) if one]


def _repaired(data: bytes, segment: int) -> bytes:
    """The same bytes with valid checksums."""
    size = SEGMENT_HEADER.size
    if data.startswith(SEGMENT_MAGIC) and len(data) >= size:
        data = data[: size - 4] + crc32(data[: size - 4]).to_bytes(4, "big") + data[size:]
    return data[:size] + repaired_frames(data, segment)[size:]


TARGETS: dict[str, Callable[[bytes], None]] = {"recovery": recovery}


def seeds() -> list[bytes]:
    """Three segments with entries of two logs, table rows, zeros and an interrupted append."""
    first = _Segment(SegmentHeader(1, 0, 0))
    first.append(1, 0, 2)
    first.put_table_rows(0, {b"\0\0\0\1key": b"value", b"\0\0\0\1gone": None})
    first.append(2, 0, 1)
    second = _Segment(SegmentHeader(2, 1, len(first.data)))
    second.append(1, 4, 1)
    second.put_table_rows(1, {b"\0\0\0\1key": b"other"})
    second.append(2, 2, 2)
    third = _Segment(SegmentHeader(3, 2, len(second.data)))
    third.append(1, 6, 3)
    whole = first.data + second.data
    return [
        bytes((choice, missing)) + content
        for choice in (0, 1, 2, 4)
        for missing, content in (
            (0, whole),
            (0, whole + third.data[:-10]),
            (0, first.data + bytes(50)),
            (1, whole + third.data[: SEGMENT_HEADER.size] + bytes(40)),
        )
    ]


class _Segment:
    """A segment that is being written."""

    def __init__(self, header: SegmentHeader) -> None:
        self.number = header.number
        self.data = frames.encode_segment_header(MARK, header)

    def append(self, log_id: int, offset: int, count: int) -> None:
        """Append entries of two offsets each."""
        entries = [
            Entry(base, base + 1, 1000 + base, b"payload" * (base + 1))
            for base in range(offset, offset + 2 * count, 2)
        ]
        at = len(self.data)
        buffers, *_ = frames.encode_append(MARK, self.number, at, at, log_id, entries, 0, 0)
        self.data += b"".join(buffers)

    def put_table_rows(self, number: int, rows: dict[bytes, bytes | None]) -> None:
        payload, at = frames.encode_table_rows(rows), len(self.data)
        frame = frames.Frame(
            crc32(payload),
            len(payload),
            at,
            frames.IS_LAST,
            frames.TABLES_LOG_ID,
            number,
            number,
            -1,
        )
        self.data += frames.encode_frame(MARK, self.number, at, frame) + payload
