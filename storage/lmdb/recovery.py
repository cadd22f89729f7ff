"""Opening the journal: frames whose rows LMDB does not have yet, damage, and files without entries.

LMDB commits rows later than the journal gets their frames. What follows the checkpoint is read
from the segments, and its rows are pending as before the crash: nothing is committed, so that a
store on a full disk can be opened. After a clean stop nothing follows the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from storage.lmdb.changes import load_log
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import (
    FRAME,
    IS_LAST,
    IS_PLACED,
    SEGMENT_HEADER,
    TABLES_LOG_ID,
    Damage,
    Frame,
    FrameAt,
    Parsed,
    SegmentHeader,
    decode_table_rows,
    parse,
    search,
)
from storage.lmdb.journal import PAGE, Journal, header_of
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
from storage.lmdb.write_burst import DurableLog, PendingIndex, WriterState
from storage.log import StorageFailed

log = logging.getLogger(__name__)


class TailFrame(NamedTuple):
    """A frame behind the checkpoint."""

    segment: int
    frame: Frame
    at: int
    is_intact: bool


class Tail(NamedTuple):
    """What follows the checkpoint: whole appends and damage, and where the journal ends.

    `is_left` is whether nothing may be written to the segment of the end, since it is damaged or a
    later one may have a header.
    `next_number` is that of the next new segment. `damaged` are files without anything readable,
    which are no part of the journal.
    """

    found: list[TailFrame]
    damage: list[tuple[int, Damage]]
    end: Place
    is_left: bool
    next_number: int
    damaged: list[int]


def recover(environment: LmdbEnvironment, journal: Journal, state: WriterState) -> None:
    """Set `state`, with the rows that the journal has and LMDB does not, and the end of the
    journal.

    Blocks. Raises StorageFailed, lmdb.Error, OSError.
    """

    def load(txn: Any) -> None:
        databases = environment.databases
        names: dict[int, str] = {}
        with txn.cursor(db=databases["topics"]) as cursor:
            for key, value in cursor.iternext():
                for partition, log_id in enumerate(decode_topic(key.decode(), value).log_ids):
                    names[log_id] = f"{key.decode()}-{partition}"
        with txn.cursor(db=databases["segments"]) as cursor:
            for key, value in cursor.iternext():
                use = SegmentUse._make(SEGMENT_USE.unpack(value))
                state.segments[U64.unpack(key)[0]] = use
        checkpoint = checkpoint_of(txn, databases)
        tail = read_tail(journal, checkpoint)
        for segment, part in tail.damage:
            log.error(
                "segment %d of the journal in %s is damaged at %d to %d; entries that were there "
                "are reported when they are read, and rows of tables may have older values",
                segment,
                journal.directory,
                part.position,
                part.end,
            )
        state.pending = PendingIndex(checkpoint)
        for slot in slots_of(txn, databases, names, tail.found):
            state.pending.add([(slot.log_id, [SLOT.pack(*slot)])])
        value = txn.get(b"next_table_write", db=databases["meta"])
        state.next_table_write = 0 if value is None else U64.unpack(value)[0]
        recover_table_rows(journal, state, tail.found)
        state.damaged.update(tail.damaged)
        durable_to = checkpoint.at if tail.end.segment == checkpoint.segment else 0
        journal.continue_at(tail.end, tail.next_number, durable_to, tail.is_left)

    environment.read(load)
    if state.pending.count:
        log.info(
            "read %d rows from the journal in %s that were not in the index yet",
            state.pending.count,
            journal.directory,
        )
    review_files(journal, state)


def checkpoint_of(txn: Any, databases: Mapping[str, Any]) -> Place:
    value = txn.get(b"journal", db=databases["meta"])
    return Place() if value is None else Place._make(CHECKPOINT.unpack(value))


def read_tail(journal: Journal, checkpoint: Place) -> Tail:
    """Read the segments from the checkpoint.

    Raises StorageFailed if one is missing, OSError if one cannot be read for a reason other than
    damage.
    """
    numbers = sorted(number for number in journal.numbers if number > checkpoint.segment)
    headers = {number: header_of(journal, number) for number in numbers}
    next_number = max([*numbers, checkpoint.segment]) + 1
    damaged: list[int] = []
    is_left = False
    while numbers and headers[numbers[-1]] is None:
        segment = numbers[-1]
        data, _ = journal.read_segment(segment)
        if next(search(journal.mark, segment, data, 0), None) is not None:
            break
        numbers.pop()
        # It may have a header that will be readable after a power failure, or later.
        is_left = True
        if segment == next_number - 1 and not data[SEGMENT_HEADER.size :].strip(b"\0"):
            # Its creation was interrupted: frames follow only when the header is durable.
            next_number = segment
        else:
            damaged.append(segment)
    segments = segments_in_order(journal, checkpoint, numbers, headers, damaged)
    for segment in damaged:
        log.error(
            "segment %d of the journal in %s is damaged: nothing in it can be read. The file is "
            "kept, but not used",
            segment,
            journal.directory,
        )
    found: list[TailFrame] = []
    damage: list[tuple[int, Damage]] = []
    end = checkpoint
    for index, segment in enumerate(segments):
        if segment != checkpoint.segment and headers[segment] is None:
            is_left = is_left or segment == segments[-1]
            log.error(
                "the header of segment %d of the journal in %s is damaged; its entries are read",
                segment,
                journal.directory,
            )
        start = checkpoint.at if segment == checkpoint.segment else SEGMENT_HEADER.size
        following = headers[segments[index + 1]] if index + 1 < len(segments) else None
        (data, unreadable), durable_to = journal.read_segment(segment), 0
        if following is not None:
            # Behind this may be frames of a write that failed.
            durable_to = max(following.previous_end, start)
            data = data[:durable_to]
        parsed = parse(journal.mark, segment, data, start, durable_to)
        damage += [(segment, one) for one in parsed.found if isinstance(one, Damage)]
        appends, at = whole_appends(parsed, start)
        if segment == segments[-1]:
            # If it is damaged, the frames that would be cut off may be the only proof that the
            # damaged bytes were durable.
            is_readable = _is_end_readable(journal, segment, data, unreadable, at)
            is_left = is_left or not is_readable or has_damage(parsed)
        found += [TailFrame(segment, *one) for one in appends]
        end = Place(segment, at)
    return Tail(found, damage, end, is_left, next_number, damaged)


def has_damage(parsed: Parsed) -> bool:
    return any(isinstance(one, Damage) or not one.is_intact for one in parsed.found)


def _is_end_readable(
    journal: Journal, segment: int, data: bytes, unreadable: Sequence[int], at: int
) -> bool:
    """Whether the last segment can be read behind `at`, where its entries end. Logs what is there.

    `unreadable` has the positions of the pages that cannot be read.
    """
    if unreadable and unreadable[-1] + PAGE > at:
        log.error(
            "the end of the journal in %s cannot be read, segment %d from %d: the last records "
            "before the crash may be missing. The file is not changed",
            journal.directory,
            segment,
            at,
        )
        return False
    if data[at:].strip(b"\0"):
        log.info(
            "segment %d of the journal in %s has an interrupted write at %d, which is ignored",
            segment,
            journal.directory,
            at,
        )
    return True


def segments_in_order(
    journal: Journal,
    checkpoint: Place,
    numbers: Sequence[int],
    headers: Mapping[int, SegmentHeader | None],
    damaged: list[int],
) -> list[int]:
    """The segments from the checkpoint's to the last one: each names the one before it.

    Those that no other names are added to `damaged`. Raises StorageFailed if one is missing.
    """
    found: list[int] = []
    expected: int | None = None
    for segment in reversed([checkpoint.segment, *numbers] if checkpoint.segment else numbers):
        if expected is not None and segment > expected:
            damaged.append(segment)
            continue
        if segment not in journal.numbers or (expected is not None and segment < expected):
            expected = expected or segment
            break
        found.insert(0, segment)
        header = headers.get(segment)
        expected = None if header is None else header.previous
        if segment == checkpoint.segment:
            expected = 0
    if expected:
        raise StorageFailed(
            f"segment {expected} of the journal in {journal.directory} is missing: put the file "
            "back, or restore the whole folder of the store"
        )
    return found


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
            log.error(
                "offsets %d to %d of %s are in the journal in segment %d at %d again: ignored",
                frame.base_offset,
                frame.last_offset,
                names[frame.log_id],
                segment,
                at,
            )
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


def recover_table_rows(journal: Journal, state: WriterState, found: Sequence[TailFrame]) -> None:
    """Make the table rows of frames pending, in order. Blocks. Raises OSError.

    A number may occur twice: if the frame could not be read for a while, a restart did not see it.
    """
    committed = state.next_table_write
    for segment, frame, at, is_intact in found:
        if frame.log_id != TABLES_LOG_ID:
            continue
        rows: dict[bytes, bytes | None] | None = None
        number, expected = frame.base_offset, state.next_table_write
        if number < committed:
            # The journal refused this frame, and could not cut it off. Its rows were committed at
            # once, or refused, and then those of the next write have this number.
            log.info(
                "ignored a write to tables in the journal in %s, segment %d at %d: it is not newer "
                "than the rows in the index",
                journal.directory,
                segment,
                at,
            )
        else:
            if is_intact:
                rows = decode_table_rows(journal.read(segment, at + FRAME.size, frame.size))
            if number > expected or rows is None:
                log.error(
                    "%d writes to tables are lost, because the journal in %s is damaged, segment "
                    "%d before %d: the rows that they changed have older values",
                    max(number - expected, 0) + (rows is None),
                    journal.directory,
                    segment,
                    at + FRAME.size + frame.size,
                )
            state.next_table_write = max(expected, number + 1)
        state.pending.add_table_rows(rows or {}, segment, frame.size)


def review_files(journal: Journal, state: WriterState) -> None:
    """Note which files can be deleted, and report those that are missing."""
    state.review(state.segments)
    for segment in sorted(journal.numbers - state.segments.keys()):
        if segment < state.pending.since.segment and not is_empty(journal, segment):
            state.damaged.add(segment)
            log.error(
                "segment %d of the journal in %s was damaged, and nothing in it is in the index. "
                "The file is kept, but not used",
                segment,
                journal.directory,
            )
        state.review([segment])
    for segment in sorted(state.segments.keys() - journal.numbers):
        if state.segments[segment].live_frames:
            log.error(
                "segment %d of the journal in %s is missing: reading its entries fails",
                segment,
                journal.directory,
            )


def is_empty(journal: Journal, segment: int) -> bool:
    """Whether a segment has a header and can be read, but has no entries before its end."""
    data, unreadable = journal.read_segment(segment)
    following = header_of(journal, segment + 1)
    if following is not None and following.previous == segment:
        data = data[: following.previous_end]
    return (
        header_of(journal, segment) is not None
        and not unreadable
        and next(search(journal.mark, segment, data, 0), None) is None
    )
