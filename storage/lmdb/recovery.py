"""Opening the journal: entries that LMDB does not have yet, damage, and files without entries.

LMDB commits rows later than the journal gets their entries. What follows the checkpoint is read
from the segments. After a clean stop nothing follows it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lmdb

from storage.lmdb.changes import load_log
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import (
    IS_LAST,
    IS_PLACED,
    SEGMENT_HEADER,
    Damage,
    Frame,
    FrameAt,
    Parsed,
    parse,
)
from storage.lmdb.journal import Journal, header_of
from storage.lmdb.layout import (
    CHECKPOINT,
    SEGMENT_USE,
    SLOT,
    U64,
    Place,
    SegmentUse,
    Slot,
    decode_topic,
)
from storage.lmdb.write_burst import DurableLog, PendingIndex, SegmentChanges, WriterState
from storage.log import StorageFailed

log = logging.getLogger(__name__)


class TailFrame(NamedTuple):
    """A frame behind the checkpoint."""

    segment: int
    frame: Frame
    at: int
    is_intact: bool


def recover(environment: LmdbEnvironment, journal: Journal, state: WriterState) -> None:
    """Commit the rows of entries that the journal has and LMDB does not; set `state` and the end.

    Blocks. Raises StorageFailed, lmdb.Error, OSError.
    """
    names: dict[int, str] = {}

    def load(txn: Any) -> Place:
        databases = environment.databases
        with txn.cursor(db=databases["topics"]) as cursor:
            for key, value in cursor.iternext():
                for partition, log_id in enumerate(decode_topic(key.decode(), value).log_ids):
                    names[log_id] = f"{key.decode()}-{partition}"
        with txn.cursor(db=databases["segments"]) as cursor:
            for key, value in cursor.iternext():
                use = SegmentUse._make(SEGMENT_USE.unpack(value))
                state.segments[U64.unpack(key)[0]] = use
        return checkpoint_of(txn, databases)

    checkpoint = environment.read(load)
    found, end, damage = read_tail(journal, checkpoint)
    for segment, part in damage:
        log.error(
            "segment %d of the journal in %s is damaged at %d to %d; entries that were there are "
            "reported when they are read",
            segment,
            journal.directory,
            part.position,
            part.end,
        )
    if end[:2] != checkpoint[:2]:
        if not damage and all(one.is_intact for one in found):
            make_durable(journal, checkpoint, end)
        commit_rows(environment, state, names, found, end)
        log.info(
            "read %d entries from the journal in %s that were not in the index yet",
            len(found),
            journal.directory,
        )
    state.pending = PendingIndex(end)
    journal.continue_at(end)
    remove_files(journal, state)


def checkpoint_of(txn: Any, databases: Mapping[str, Any]) -> Place:
    value = txn.get(b"journal", db=databases["meta"])
    return Place() if value is None else Place._make(CHECKPOINT.unpack(value))


def read_tail(
    journal: Journal, checkpoint: Place
) -> tuple[list[TailFrame], Place, list[tuple[int, Damage]]]:
    """Whole appends behind the checkpoint, the end of the journal, and damage before the end."""
    segment, at, burst = checkpoint
    found: list[TailFrame] = []
    damage: list[tuple[int, Damage]] = []
    if segment and segment not in journal.numbers:
        raise StorageFailed(f"segment {segment} of the journal in {journal.directory} is missing")
    while True:
        data = journal.read_segment(segment) if segment else b""
        parsed = parse(journal.mark, data, at, burst)
        following = header_of(journal, segment + 1)
        if following and following.first_burst < parsed.last_burst:
            # A write that failed began this segment.
            following = None
        if following and following.previous_end > parsed.end:
            parsed = parse(journal.mark, data, at, burst, following.previous_end)
        damage += [(segment, one) for one in parsed.found if isinstance(one, Damage)]
        appends, end = whole_appends(parsed, at)
        found += [TailFrame(segment, *one) for one in appends]
        if following is None:
            return found, Place(segment, end, parsed.greatest_burst), damage
        segment, at = segment + 1, SEGMENT_HEADER.size
        burst = max(following.first_burst, parsed.last_burst)


def whole_appends(parsed: Parsed, start: int) -> tuple[list[FrameAt], int]:
    """The frames of appends whose last frame is there, and the end of the last append."""
    whole: list[FrameAt] = []
    begun: list[FrameAt] = []
    end = start
    for one in parsed.found:
        if isinstance(one, Damage):
            # What is before it was durable: its last frame is what was damaged.
            whole += begun
            begun, end = [], one.end
        elif one.frame.flags & IS_PLACED:
            end = one.end
        else:
            begun.append(one)
            if one.frame.flags & IS_LAST:
                whole += begun
                begun, end = [], one.end
    return whole, end


def make_durable(journal: Journal, start: Place, end: Place) -> None:
    """Write everything from `start` to `end` again: it may never have reached the medium."""
    for segment in range(max(start.segment, 1), end.segment + 1):
        data = journal.read_segment(segment)
        first = start.at if segment == start.segment else 0
        last = end.at if segment == end.segment else len(data)
        journal.rewrite(segment, data[first:last], first)


def commit_rows(
    environment: LmdbEnvironment,
    state: WriterState,
    names: Mapping[int, str],
    found: Sequence[TailFrame],
    end: Place,
) -> None:
    """Commit the rows of `found`, and `end` as the checkpoint."""
    while True:
        txn = environment.begin()
        try:
            segments = SegmentChanges(state.segments)
            slots = slots_of(txn, environment.databases, names, found)
            with txn.cursor(db=environment.databases["entries"]) as cursor:
                cursor.putmulti(sorted((SLOT.pack(*slot), b"") for slot in slots))
            for slot in slots:
                segments.add(slot)
            segments.put(txn, environment.databases["segments"])
            txn.put(b"journal", CHECKPOINT.pack(*end), db=environment.databases["meta"])
            txn.commit()
        except lmdb.MapFullError:
            txn.abort()
            environment.grow()
        except BaseException:
            txn.abort()
            raise
        else:
            state.segments.update(segments.changed)
            return


def slots_of(
    txn: Any, databases: Mapping[str, Any], names: Mapping[int, str], found: Sequence[TailFrame]
) -> list[Slot]:
    """The slots of entries of existing logs. A gap, which only damage leaves, has a slot too."""
    logs: dict[int, DurableLog] = {}
    slots: list[Slot] = []
    for segment, frame, at, is_intact in found:
        if frame.log_id not in names:
            continue
        state = logs.get(frame.log_id)
        if state is None:
            state = logs[frame.log_id] = load_log(txn, databases, frame.log_id)
        if frame.base_offset < state.end_offset:
            continue
        if frame.base_offset > state.end_offset or not is_intact:
            log.error(
                "offsets %d to %d of %s are damaged",
                state.end_offset,
                frame.last_offset if not is_intact else frame.base_offset - 1,
                names[frame.log_id],
            )
        if frame.base_offset > state.end_offset:
            # A place where no frame can be: reading it fails.
            missing = state.end_offset, frame.base_offset - 1, -1
            slots.append(
                Slot(
                    state.log_id,
                    *missing,
                    state.running_timestamp,
                    state.position,
                    0,
                    segment,
                    0,
                )
            )
        state.running_timestamp = max(state.running_timestamp, frame.timestamp)
        state.position += frame.size
        state.end_offset = frame.last_offset + 1
        slots.append(
            Slot(
                state.log_id,
                frame.base_offset,
                frame.last_offset,
                frame.timestamp,
                state.running_timestamp,
                state.position,
                frame.size,
                segment,
                at,
            )
        )
    return slots


def remove_files(journal: Journal, state: WriterState) -> None:
    """Keep or delete the files of segments without entries. Raises OSError."""
    end = state.pending.since.segment
    for segment in sorted({*journal.numbers, *state.segments}):
        use = state.segments.get(segment)
        is_used = use is not None and use.live_frames
        if segment > end:
            journal.delete(segment)
        elif segment < end and not is_used:
            if segment in journal.numbers:
                journal.recycle(segment)
            state.forget(segment)
        elif is_used and segment not in journal.numbers:
            log.error(
                "segment %d of the journal in %s is missing: reading its entries fails",
                segment,
                journal.directory,
            )
