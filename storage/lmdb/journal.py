"""The journal: payloads of all logs in segment files, in the order in which they were stored.

The thread that has the turn (`write_queue.py`) writes; the writer thread also writes zeros without
it (`fill_ahead`). Any thread reads. Two rules keep a write that failed out of the journal:

- A burst is written to one segment, behind the end. After a failed write, and after a restart, the
  segment is cut at the end, durably, before anything else is written. If the medium refuses that,
  a new segment is begun.
- The header of a new segment says where the one before it ends. It is durable before frames follow,
  and nothing is written to the old segment after the first attempt to write that header. So the
  old segment has no other end than that one.

A segment file is filled with zeros a little ahead of what is written, because a flush is cheapest
if it changes neither the size of the file nor its extents. The writer thread does that while the
flusher writes, or together with a write.

The module is long because writing, cutting and filling depend on the same end and size.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from isal.isal_zlib import crc32

from storage.files import Files, Flusher
from storage.lmdb.frames import (
    FRAME,
    IS_LAST,
    IS_PLACED,
    SEGMENT_HEADER,
    TABLES_LOG_ID,
    EncodedAppend,
    EndOfLog,
    Frame,
    JournalState,
    SegmentHeader,
    SegmentState,
    append_frames,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    entries_in,
    find_adjacent,
    read_cached,
)
from storage.lmdb.layout import Place, Row, Slot, slot_of
from storage.lmdb.settings import LmdbSettings
from storage.log import Buffer, Entry, StorageFailed

log = logging.getLogger(__name__)

MIB = 1 << 20

FIRST_STEP = MIB // 16
LARGEST_STEP = MIB
"""Zeros that are written ahead at once: as many bytes as the file has, within these limits."""

ZEROS = bytes(LARGEST_STEP)

LARGEST_FILLED_WRITE = MIB // 8
"""A larger write adds no zeros: that costs more than the change of the file's size."""

LARGEST_GAP = MIB // 64
LARGEST_READ = 4 * MIB
"""Entries of a log are read at once if there is at most this much between them, up to this size."""

MOST_BYTES_READ = 16 * MIB
"""Bytes of the journal that are read for one call, with what is between the entries."""

OPEN_FILES = 128
"""Segments kept open for reading."""

VOLUME_SHARE = 64
"""A segment takes at most this part of the volume, so that space is freed in small pieces."""

LEAST_SEGMENT_BYTES = MIB // 4

PAGE = 4096
"""What is given up if a part of a segment cannot be read."""

UNREADABLE = b"\xff"
"""Stands for bytes that cannot be read. Zeros would mean that nothing was written there."""

MEDIUM_ERRORS = {
    getattr(errno, name, errno.EIO)
    for name in ("EIO", "ENODATA", "EBADMSG", "EUCLEAN", "EILSEQ", "EREMOTEIO", "ENOENT")
}
"""Errors of a read that mean damage. Others, such as EMFILE, are temporary and say nothing about
the file.
"""


def check_room_for_journal(directory: Path, files: Files, settings: LmdbSettings) -> None:
    """Check that a store without a journal can have one: its folder will be `directory`.

    The free pages of LMDB's file are no room for the journal. So without this check a store on a
    full disk would refuse appends until LMDB's file is compacted. Blocks. Raises StorageFailed.
    """
    volume = directory if directory.exists() else directory.parent
    room = files.room(volume, 0)
    needed = settings.reserve_bytes + limited_segment_bytes(volume, settings)
    if room < needed:
        raise StorageFailed(
            f"the store in {directory.parent} has no journal yet, and the disk is too full for it: "
            f"{max(room, 0)} bytes are free, {needed} bytes are needed. The store was not changed, "
            "and the version that wrote it can still open it: free space on the disk, or delete "
            "records with that version and compact data.mdb (docs/operations.md)"
        )


def make_journal_folder(directory: Path, files: Files) -> None:
    """Create the folder of a journal, durably. Blocks. Raises StorageFailed."""
    try:
        files.make_directory(directory)
        files.sync_directory(directory)
    except OSError as error:
        raise StorageFailed(
            f"cannot create the folder {directory}: {error.strerror or error}; the store was not "
            "changed"
        ) from error


def limited_segment_bytes(directory: Path, settings: LmdbSettings) -> int:
    """The size of a segment on the volume of `directory`."""
    with suppress(OSError):
        volume = os.statvfs(directory)
        share = volume.f_blocks * volume.f_frsize // VOLUME_SHARE
        return min(settings.segment_bytes, max(share, LEAST_SEGMENT_BYTES))
    return settings.segment_bytes


class JournalFailed(Exception):
    """The journal could not be written; nothing was added to it. The message gives the reason."""


class SegmentFile(SegmentState):
    """An open segment file, closed when nothing refers to it any more. `size` is that of the
    file; only the writer's is kept up to date.
    """

    def __init__(self, files: Files, path: Path, is_new: bool = False) -> None:
        self._files = files
        self._descriptor = -1
        self._descriptor = files.open(path, is_new)
        self.size = files.size(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            self._files.close(self._descriptor)

    def read(self, length: int, at: int) -> bytes:
        return self._files.read(self._descriptor, length, at)

    def read_run(self, mark: bytes, rows: bytes, first: int, stop: int) -> bytes | None:
        """See `frames.read_run`. Does not block."""
        descriptor = self._files.system_descriptor(self._descriptor)
        return None if descriptor < 0 else read_cached(descriptor, mark, rows, first, stop)

    def write(self, buffers: Sequence[Buffer], at: int, end: int) -> None:
        """Write `buffers` from `at` to `end`."""
        # After a failure the size is unknown: this is the greatest possible one.
        self.size = max(self.size, end)
        self._files.write(self._descriptor, buffers, at)

    def truncate(self, size: int) -> None:
        self._files.truncate(self._descriptor, size)
        self.size = size

    def sync(self) -> None:
        self._files.sync(self._descriptor)

    def store(
        self, buffers: list[Buffer], at: int, end: int, directory: Path, least: int, *, syncs: bool
    ) -> int:
        """`Files.store` of `buffers` from `at` to `end`."""
        size = self.size
        self.size = max(size, end)
        room = self._files.store(self._descriptor, buffers, at, directory, size, least, syncs=syncs)
        if room < least:
            self.size = size
        return room


class Staging:
    """The frames of one burst, each with its place in the journal, before they are written.

    They are in one segment; `start` and `at` are positions in it.
    """

    def __init__(self, mark: bytes, before: Place, start: Place, durable_to: int) -> None:
        """`before` is the end of the journal; `start` is in the same segment or a new one."""
        self._mark = mark
        self._before = before
        self._durable_to = durable_to
        self.segment, self.start = start
        self.at = self.start
        self.buffers: list[Buffer] = []
        self.has_appends = False
        self.has_table_rows = False
        self.is_written = False

    @property
    def adds_rows(self) -> bool:
        """Whether rows in LMDB follow, for which the disk needs room."""
        return self.has_appends or self.has_table_rows

    @property
    def end(self) -> Place:
        """The end of the journal with these frames."""
        return Place(self.segment, self.at) if self.buffers else self._before

    def place(self, log_id: int, entry: Entry) -> tuple[int, int]:
        """Add an entry that counts only with its row in `entries`; return segment and position."""
        at = self.at
        self._add(IS_PLACED, log_id, entry)
        return self.segment, at

    def put_table_rows(self, number: int, payload: bytes) -> None:
        """Add a frame with table rows; `number` is that of the write."""
        self._add(IS_LAST, TABLES_LOG_ID, Entry(number, number, -1, payload))
        self.has_table_rows = True

    def _add(self, flags: int, log_id: int, entry: Entry) -> None:
        payload = entry.payload
        size = len(payload)
        frame = Frame(
            crc32(payload),
            size,
            self._durable_to,
            flags,
            log_id,
            entry.base_offset,
            entry.last_offset,
            entry.max_timestamp,
        )
        self.buffers.append(encode_frame(self._mark, self.segment, self.at, frame))
        self.buffers.append(payload)
        self.at += FRAME.size + size

    def append(
        self,
        logs: Mapping[int, EndOfLog],
        find_log: Callable[[int], EndOfLog],
        appends: Iterable[EncodedAppend],
        rows: list[tuple[int, list[bytes]]],
    ) -> list[tuple[Any, None, Exception | None]]:
        """Add appends; see `encode_appends`. Returns their outcomes."""
        begun = len(self.buffers)
        self.at, outcomes = append_frames(
            self._mark,
            self.segment,
            self.at,
            self._durable_to,
            logs,
            find_log,
            appends,
            self.buffers,
            rows,
        )
        self.has_appends |= len(self.buffers) > begun
        return outcomes


class Journal(JournalState):
    """The segments of a store. `end` is the end of what was added to the journal.

    `numbers` are the segments that have a file.
    """

    def __init__(self, directory: Path, files: Files, settings: LmdbSettings, mark: bytes) -> None:
        """Open the folder `directory`, creating it if missing. Blocks. Raises OSError."""
        self.directory = directory
        self._folder = os.fsencode(directory)
        self.mark = mark
        self.end = Place()
        self.held_bytes = 0
        """The part of the reserve that LMDB's file has."""
        self._syncs_appends = settings.sync_appends
        self._reserve_bytes = settings.reserve_bytes
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._file: SegmentFile | None = None
        """The segment of the end."""
        self._durable_to = 0
        self._next_number = 1
        self._is_synced = True
        self._is_cut = True
        """Whether the segment of the end has nothing behind the end, except zeros."""
        self._least_room = 0
        """The room that the flusher's call needs: the reserve, and `_growth`."""
        self._growth = 0
        """The bytes by which the flusher's call makes the file larger."""
        self._is_left = False
        """Whether a new segment has to be begun: it may have a header already."""
        self.is_filling = False
        """Whether `fill_ahead` is called or will be. Until then the flusher must not make the file
        larger. The reactor thread sets it, the writer thread resets it.
        """
        files.make_directory(directory)
        # A segment whose name was not durable may have acknowledged entries by now.
        files.sync_directory(directory)
        self.numbers = {int(name) for name in files.names(directory) if name.isdecimal()}
        self.segment_bytes = limited_segment_bytes(directory, settings)

    def flusher(self) -> Flusher | None:
        """A new flusher, if there is one for these files."""
        return self._files.flusher()

    def continue_at(self, end: Place, next_number: int, durable_to: int, is_left: bool) -> None:
        """Write behind `end`, or, if `is_left`, in segment `next_number`: then nothing is cut off.

        The segment of the end is known to be durable up to `durable_to`. What follows was read, but
        may be in the page cache only, even if a flush succeeds: after a failed one Linux considers
        pages clean that are not on the medium. So it is written again. Blocks.
        """
        self.end, self._next_number, self._is_left = end, next_number, is_left
        self._durable_to = durable_to
        if not end.segment:
            return
        self._is_cut = False
        try:
            self._cut()
        except OSError as error:
            # It is as durable as it can be. The next write tries again.
            self._durable_to = end.at
            log.warning(
                "the end of the journal in %s, segment %d, cannot be written: %s",
                self.directory,
                end.segment,
                error,
            )

    def stage(self, size: int) -> Staging:
        """The next burst, with about `size` bytes of frames. Blocks after a failed write."""
        end = self.end
        self.clean_up()
        if (
            end.segment
            and not self._is_left
            # Acknowledged entries that are not durable yet would be lost with the segment.
            and (self._is_cut or self._durable_to < end.at)
            and (end.at <= SEGMENT_HEADER.size or end.at + size <= self.segment_bytes)
        ):
            return Staging(self.mark, end, end, self._durable_to)
        start = Place(self._next_number, SEGMENT_HEADER.size)
        return Staging(self.mark, end, start, start.at)

    def write(self, staging: Staging) -> None:
        """Write frames behind the end. Blocks.

        They are durable, but not those of appends alone while `sync_appends` is off.

        Raises JournalFailed; then, or if the burst fails later, `retract` has to be called.
        """
        try:
            is_begun = staging.segment == self.end.segment
            is_durable = self._syncs_appends or staging.has_table_rows or not staging.has_appends
            if is_begun and self._is_cut and (not is_durable or staging.at <= self._current().size):
                self._store(staging, is_durable=is_durable)
                return
            room = self._checked_room(staging, is_begun)
            if not is_begun:
                self._begin(staging.segment)
            elif not self._is_cut:
                self._cut()
            staging.is_written = True
            self._is_synced = False
            self._put(staging, room)
            if is_durable:
                self._sync()
        except OSError as error:
            raise self._failed(staging.segment, error) from error

    @property
    def is_synced(self) -> bool:
        """Whether the whole journal is durable. For the thread that has the turn."""
        return self._is_synced and self._is_cut

    @property
    def lacks_zeros(self) -> bool:
        """Whether `fill_ahead` should be called. For any thread."""
        file = self._file
        return file is not None and self._missing_zeros(file) > 0

    def fill_ahead(self) -> None:
        """Fill the segment of the end with zeros, durably, if there are few ahead of the end.

        Only the writer thread calls this; it needs no turn, because the flusher writes only to what
        was filled before while `is_filling` is set. Blocks. Raises OSError, also if the disk is too
        full.
        """
        file = self._file
        if file is None:
            return
        start, missing = file.size, self._missing_zeros(file)
        if not missing:
            return
        reserve = self._reserve(adds_rows=True)
        room = self._files.room(self.directory, start) - missing
        if room < reserve:
            raise _disk_full(room, reserve)
        # A flush reports an error once per open file: the flusher's must not miss one.
        filled = SegmentFile(self._files, self._path(self.end.segment))
        filled.write([memoryview(ZEROS)[:missing]], start, start + missing)
        filled.sync()
        file.size = start + missing

    def _flusher_failed(self, error: OSError | None, room: int) -> JournalFailed:
        """The error of `end_write`. Without `error` nothing was written: `room` is too small."""
        if error is None:
            growth = self._growth
            self._current().size -= growth
            error = _disk_full(room - growth, self._least_room - growth)
        else:
            self._is_synced = self._is_cut = False
        return self._failed(self.end.segment, error)

    def clean_up(self) -> None:
        """Cut off what a failed write has left, if the medium allows it. Blocks."""
        if not self._is_cut:
            with suppress(OSError):
                self._cut()

    def advance(self, staging: Staging) -> None:
        """Add the written frames to the journal."""
        self.end = staging.end
        if self._is_synced:
            self._durable_to = self.end.at

    def retract(self, staging: Staging) -> None:
        """Cut off what `write` may have written. Blocks.

        If the medium refuses that, it is tried again before the next write.
        """
        if staging.is_written:
            self._is_cut = False
            self.clean_up()

    def sync(self) -> None:
        """Make the whole journal durable. Blocks. Raises JournalFailed."""
        try:
            if self._is_cut:
                self._sync()
            elif self._durable_to < self.end.at:
                self._cut()
        except OSError as error:
            raise self._failed(self.end.segment, error) from error
        self._durable_to = self.end.at

    def read(self, segment: int, at: int, length: int) -> bytes:
        """Bytes of a segment, fewer at the end of the file; none if the segment is gone.

        Thread-safe. Blocks. Raises OSError.
        """
        file = self._opened(segment)
        return b"" if file is None else file.read(length, at)

    def read_run(self, segment: int, rows: bytes, first: int, stop: int) -> bytes | None:
        """See `frames.read_run`; None also if the segment is not open. Does not block."""
        # Without the lock: another thread may hold it while it opens a file.
        file = self._open.get(segment)
        return None if file is None else file.read_run(self.mark, rows, first, stop)

    def read_pages(
        self, segment: int, at: int, length: int, unreadable: list[int] | None = None
    ) -> bytes:
        """As `read`, with `UNREADABLE` for pages that the medium cannot read.

        Their positions are added to `unreadable`.
        """
        try:
            return self.read(segment, at, length)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise
        found = bytearray()
        while len(found) < length:
            position = at + len(found)
            size = min(PAGE - position % PAGE, length - len(found))
            try:
                page = self.read(segment, position, size)
            except OSError as error:
                if error.errno not in MEDIUM_ERRORS:
                    raise
                page = UNREADABLE * size
                if unreadable is not None:
                    unreadable.append(position)
            found += page
            if len(page) < size:
                break
        return bytes(found)

    def read_segment(self, segment: int) -> tuple[bytes, list[int]]:
        """A whole segment before it is written, and where it is `UNREADABLE`. Blocks."""
        file = self._opened(segment)
        size = file.size if file else 0
        found, unreadable = bytearray(), list[int]()
        while len(found) < size:
            part = self.read_pages(segment, len(found), min(MIB, size - len(found)), unreadable)
            if not part:
                break
            found += part
        return bytes(found), unreadable

    def delete(self, segment: int) -> None:
        """Delete a segment without entries, durably. Blocks. Raises OSError.

        So a file that is not in the index later was not deleted, but lost its rows.
        """
        if segment in self.numbers:
            with suppress(FileNotFoundError):
                self._files.unlink(self._path(segment))
            self._files.sync_directory(self.directory)
        with self._lock:
            # In this order: a reader without the lock must not take it for one that is not open.
            self.numbers.discard(segment)
            self._open.pop(segment, None)

    def close(self) -> None:
        """Close all files; those that are being read are closed afterwards."""
        with self._lock:
            self._open.clear()
        self._file = None

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:016d}"

    def _opened(self, segment: int) -> SegmentFile | None:
        """The file of a segment, if there is one. Thread-safe."""
        with self._lock:
            file = self._open.get(segment)
            if file is None:
                if segment not in self.numbers:
                    return None
                file = self._open[segment] = SegmentFile(self._files, self._path(segment))
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(segment)
            return file

    def _failed(self, segment: int, error: OSError) -> JournalFailed:
        return JournalFailed(f"segment {segment} of the journal: {error.strerror or error}")

    def _current(self) -> SegmentFile:
        """The file of the segment of the end."""
        if self._file is None:
            self._file = SegmentFile(self._files, self._path(self.end.segment))
        return self._file

    def _store(self, staging: Staging, *, is_durable: bool) -> None:
        """Write frames in one call. Raises OSError.

        This is the common case: a file is filled ahead of durable writes, and for others its size
        may change.
        """
        file, was_synced = self._current(), self._is_synced
        reserve = self._reserve(staging.adds_rows)
        growth = max(staging.at - file.size, 0)
        staging.is_written = True
        self._is_synced = False
        room = file.store(
            staging.buffers,
            staging.start,
            staging.at,
            self.directory,
            reserve + growth,
            syncs=is_durable,
        )
        if room < reserve + growth:
            staging.is_written = False
            self._is_synced = was_synced
            raise _disk_full(room - growth, reserve)
        self._is_synced = is_durable

    def _reserve(self, adds_rows: bool) -> int:
        """Bytes that must be left on the disk."""
        reserve = self._reserve_bytes
        if not adds_rows:
            # Replaced and moved entries, after which space is freed.
            reserve //= 2
        return max(reserve - self.held_bytes, 0)

    def _checked_room(self, staging: Staging, is_begun: bool) -> int:
        """Bytes by which the file may grow beyond the frames. Raises OSError if the disk is full.

        This is checked for bytes that the file has already, too: rows in LMDB follow.
        """
        size = self._current().size if is_begun else 0
        room = self._files.room(self.directory, size) - max(staging.at - size, 0)
        reserve = self._reserve(staging.adds_rows)
        if room < reserve:
            raise _disk_full(room, reserve)
        return room - reserve

    def _begin(self, segment: int) -> None:
        """Begin a segment; the end of the journal is then in it. Raises OSError."""
        if self._is_cut:
            self._sync()
        elif self._durable_to < self.end.at:
            self._cut()
        file = SegmentFile(self._files, self._path(segment), is_new=True)
        self._is_left = True
        if file.size:
            file.truncate(0)
        header = encode_segment_header(self.mark, SegmentHeader(segment, *self.end))
        file.write([header], 0, len(header))
        file.sync()
        self._files.sync_directory(self.directory)
        with self._lock:
            self.numbers.add(segment)
        self._file = file
        self.end = Place(segment, len(header))
        self._durable_to = len(header)
        self._next_number = segment + 1
        self._is_synced = self._is_cut = True
        self._is_left = False

    def _missing_zeros(self, file: SegmentFile) -> int:
        """How many bytes of zeros to write at the end of the file.

        Up to the end of a page: if zeros cannot be flushed, no page of frames is affected.
        """
        step = min(max(file.size, FIRST_STEP), LARGEST_STEP)
        if (
            file.size - self.end.at >= step
            or not self._syncs_appends
            or not self._is_cut
            or self._is_left
        ):
            return 0
        end = file.size + step
        return max(min(end - end % PAGE, self.segment_bytes) - file.size, 0)

    def _put(self, staging: Staging, room: int) -> None:
        file, buffers, end = self._current(), staging.buffers, staging.at
        if end > file.size and end - staging.start <= LARGEST_FILLED_WRITE:
            step = min(max(file.size, FIRST_STEP), LARGEST_STEP, self.segment_bytes - end)
            step -= (end + step) % PAGE
            if 0 < step <= room:
                buffers = [*buffers, memoryview(ZEROS)[:step]]
                end += step
        file.write(buffers, staging.start, end)

    def _cut(self) -> None:
        """Cut the segment at the end, and make what is before it durable. Raises OSError."""
        if self.end.segment:
            file = self._current()
            start = self._durable_to - self._durable_to % PAGE
            try:
                # For pages that a failed flush left clean.
                file.write([file.read(self.end.at - start, start)], start, self.end.at)
            except OSError:
                if self._durable_to < self.end.at:
                    raise
            if not self._is_left:
                file.truncate(self.end.at)
            file.sync()
        self._durable_to = self.end.at
        self._is_synced = self._is_cut = True

    def _sync(self) -> None:
        if not self._is_synced:
            try:
                self._current().sync()
            except OSError:
                # The next flush would succeed without writing the pages.
                self._is_cut = False
                raise
        self._is_synced = True


def _disk_full(room: int, reserve: int) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"the disk is full: {max(room, 0)} bytes would be left, {reserve} bytes are "
        "reserved for deletions",
    )


class Unreadable(Exception):
    """An entry is not where its row says; `before` are the entries before it.

    Its segment was freed after the row was read, or is damaged. `reason` says what was found;
    `is_error` is whether the disk has returned an error.
    """

    def __init__(
        self, slot: Slot, before: list[Entry], reason: str, *, is_error: bool = False
    ) -> None:
        super().__init__(f"segment {slot.segment}, position {slot.at}: {reason}")
        self.slot = slot
        self.before = before
        self.reason = reason
        self.is_error = is_error


def read_entries(journal: Journal, rows: list[Row]) -> list[Entry]:
    """The entries of `rows`; checks that each is the one that its row means, and is undamaged.

    Returns fewer, but at least one, if more than `MOST_BYTES_READ` would have to be read. Blocks.
    Raises Unreadable.
    """
    entries: list[Entry] = []
    left = MOST_BYTES_READ
    position = 0
    while position < len(rows):
        first = rows[position]
        if isinstance(first, Entry):
            entries.append(first)
            position += 1
            continue
        end, segment, at, length = find_adjacent(rows, position, LARGEST_GAP, LARGEST_READ)
        left -= length
        if entries and left < 0:
            break
        part = cast(list[bytes], rows[position:end])
        position = end
        try:
            data = journal.read(segment, at, length)
        except OSError as error:
            if error.errno not in MEDIUM_ERRORS:
                raise StorageFailed(
                    f"cannot read segment {segment} of the journal in {journal.directory}: "
                    f"{error.strerror or error}"
                ) from error
            if len(part) > 1:
                # Only the entries in the pages that cannot be read are lost.
                for row in part:
                    try:
                        entries += read_entries(journal, [row])
                    except Unreadable as failed:
                        raise Unreadable(
                            failed.slot, entries, failed.reason, is_error=failed.is_error
                        ) from failed
                continue
            raise Unreadable(
                slot_of(first), entries, error.strerror or str(error), is_error=True
            ) from error
        found = entries_in(journal.mark, at, data, part)
        entries += found
        if len(found) < len(part):
            slot = slot_of(part[len(found)])
            if slot.at < SEGMENT_HEADER.size:
                reason = "missing in the journal"
            elif len(data) < length:
                reason = "its segment is missing or too short"
            else:
                reason = "wrong checksum"
            raise Unreadable(slot, entries, reason)
    return entries


def header_of(journal: Journal, segment: int) -> SegmentHeader | None:
    """The header of a segment, if it can be read and is that segment's."""
    data = journal.read_pages(segment, 0, SEGMENT_HEADER.size)
    header = decode_segment_header(journal.mark, data)
    return header if header and header.number == segment else None
