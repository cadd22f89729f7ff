"""The journal: payloads of all logs in segment files, in the order in which they were stored.

The writer thread writes; any thread reads. A segment file is filled with zeros a little ahead of
what is written, because a flush is cheapest if it changes neither the size of the file nor its
extents. A file whose entries are all deleted is kept under another name and used again.

A segment is begun only when the one before it is durable. Before that, everything is written behind
the end and becomes part of the journal with `advance`; a write that failed is overwritten by the
next one.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from isal.isal_zlib import crc32

from storage.files import Files
from storage.lmdb.frames import (
    FRAME,
    IS_LAST,
    IS_PLACED,
    SEGMENT_HEADER,
    Frame,
    SegmentHeader,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    has_payload,
)
from storage.lmdb.layout import Place, Row, Slot
from storage.lmdb.settings import LmdbSettings
from storage.log import Buffer, Entry

MIB = 1 << 20

FIRST_STEP = MIB // 16
LARGEST_STEP = MIB
"""How far a file is filled ahead: as much as it has, within these limits."""

ZEROS = bytes(LARGEST_STEP)

LARGEST_FILLED_WRITE = MIB // 8
"""Before a larger write nothing is filled: that costs more than the change of the file's size."""

LARGEST_GAP = MIB // 64
LARGEST_READ = 4 * MIB
"""Entries of a log are read at once if there is at most this much between them, up to this size."""

OPEN_FILES = 128
"""Segments kept open for reading."""

VOLUME_SHARE = 64
"""A segment takes at most this part of the volume, so that space is freed in small pieces."""

LEAST_SEGMENT_BYTES = MIB // 4

SPARE = "spare-"

PAGE = 4096
"""What is given up if a part of a segment cannot be read."""


class JournalFailed(Exception):
    """The journal could not be written; nothing was added to it. The message gives the reason."""


class SegmentFile:
    """An open segment file, closed when nothing refers to it any more.

    `filled` is the size of the file.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.descriptor = files.open(path)
        self.filled = files.size(self.descriptor)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self._files.close(self.descriptor)


class Chunk:
    """Buffers to be written to a segment.

    `start` and `end` are positions in the segment.
    """

    __slots__ = ("buffers", "end", "segment", "start")

    def __init__(self, segment: int, start: int) -> None:
        self.segment = segment
        self.start = self.end = start
        self.buffers: list[Buffer] = []


class Staging:
    """The frames of one burst, each with its place in the journal, before they are written."""

    def __init__(self, mark: bytes, end: Place, durable_to: int, segment_bytes: int) -> None:
        self._mark = mark
        self._segment_bytes = segment_bytes
        self._burst = end.burst
        self._durable_to = durable_to
        self.chunks = [Chunk(end.segment, end.at)]
        self.has_appends = False
        self.is_written = False

    @property
    def end(self) -> Place:
        last = self.chunks[-1]
        return Place(last.segment, last.end, self._burst)

    @property
    def is_empty(self) -> bool:
        return not any(chunk.buffers for chunk in self.chunks)

    def make_room(self, size: int) -> None:
        """Begin a new segment unless `size` bytes of frames fit into the current one."""
        last = self.chunks[-1]
        is_begun = last.segment and last.end > SEGMENT_HEADER.size
        if last.segment and (not is_begun or last.end + size <= self._segment_bytes):
            return
        header = SegmentHeader(last.segment + 1, self._burst, last.end)
        chunk = Chunk(header.number, 0)
        chunk.buffers.append(encode_segment_header(self._mark, header))
        chunk.end = self._durable_to = SEGMENT_HEADER.size
        self.chunks.append(chunk)

    def add(self, log_id: int, entry: Entry, flags: int) -> tuple[int, int]:
        """Add a frame; return its segment and position. `make_room` was called for its append."""
        chunk, payload = self.chunks[-1], entry.payload
        size = len(payload)
        frame = Frame(
            crc32(payload),
            size,
            self._burst,
            self._durable_to,
            flags,
            log_id,
            entry.base_offset,
            entry.last_offset,
            entry.max_timestamp,
        )
        at = chunk.end
        chunk.buffers.append(encode_frame(self._mark, frame))
        chunk.buffers.append(payload)
        chunk.end = at + FRAME.size + size
        return chunk.segment, at

    def append(self, log_id: int, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Add an append, whose entries are in one segment; return their places."""
        self.has_appends = True
        self.make_room(sum(FRAME.size + len(entry.payload) for entry in entries))
        last = entries[-1]
        return [self.add(log_id, entry, IS_LAST if entry is last else 0) for entry in entries]

    def place(self, log_id: int, entry: Entry) -> tuple[int, int]:
        """Add an entry that counts only with its row in `entries`."""
        self.make_room(FRAME.size + len(entry.payload))
        return self.add(log_id, entry, IS_PLACED)


class Journal:
    """The segments of a store. `end` is the end of what was added to the journal."""

    def __init__(self, directory: Path, files: Files, settings: LmdbSettings, mark: bytes) -> None:
        """Open the folder `directory`, creating it if missing. Blocks. Raises OSError."""
        self.directory = directory
        self.mark = mark
        self.end = Place()
        self.is_disk_low = False
        self.segment_bytes = settings.segment_bytes
        self._settings = settings
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()
        self._written: tuple[int, SegmentFile] | None = None
        self._is_synced = True
        self._durable_to = 0
        files.make_directory(directory)
        names = files.names(directory)
        self.numbers = {int(name) for name in names if name.isdecimal()}
        self._spare = [name for name in names if name.startswith(SPARE)]
        with suppress(OSError):
            volume = os.statvfs(directory)
            share = volume.f_blocks * volume.f_frsize // VOLUME_SHARE
            self.segment_bytes = min(self.segment_bytes, max(share, LEAST_SEGMENT_BYTES))

    def continue_at(self, end: Place) -> None:
        """Write behind `end`, up to which everything is durable."""
        self.end = end
        self._durable_to = end.at

    def stage(self) -> Staging:
        """The next burst. Its number was not used before, not even by a write that failed."""
        self.end = self.end._replace(burst=self.end.burst + 1)
        return Staging(self.mark, self.end, self._durable_to, self.segment_bytes)

    def write(self, staging: Staging) -> None:
        """Write frames behind the end, durably unless `sync_appends` is off. Blocks.

        Raises JournalFailed.
        """
        chunk = staging.chunks[0]
        staging.is_written = True
        try:
            for chunk in staging.chunks:
                if chunk.buffers:
                    self._write_chunk(chunk, staging.has_appends)
            if self._settings.sync_appends or not staging.has_appends:
                self._sync_written()
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalFailed(f"segment {chunk.segment} of the journal: {reason}") from error

    def advance(self, staging: Staging) -> None:
        """Add the written frames to the journal."""
        self.end = staging.end
        if self._is_synced:
            self._durable_to = self.end.at
        elif len(staging.chunks) > 1:
            self._durable_to = SEGMENT_HEADER.size

    def retract(self, staging: Staging) -> None:
        """Erase the beginning of what `write` may have written, so that a restart ignores it.

        A medium that fails may prevent this: then a write that was reported as failed may be found
        after a restart.
        """
        for chunk in staging.chunks if staging.is_written else ():
            if chunk.buffers and chunk.segment in self.numbers:
                with suppress(OSError):
                    descriptor = self._opened(chunk.segment).descriptor
                    self._files.write(descriptor, [bytes(FRAME.size)], chunk.start)

    def sync(self) -> None:
        """Make the whole journal durable. Blocks. Raises JournalFailed."""
        try:
            self._sync_written()
        except OSError as error:
            reason = error.strerror or str(error)
            raise JournalFailed(f"segment {self.end.segment} of the journal: {reason}") from error
        self._durable_to = self.end.at

    def read(self, segment: int, at: int, length: int) -> bytes:
        """Bytes of a segment, fewer at the end of the file; none if the segment is gone.

        Thread-safe. Blocks. Raises OSError.
        """
        try:
            file = self._opened(segment)
        except KeyError:
            return b""
        return self._files.read(file.descriptor, length, at)

    def read_segment(self, segment: int) -> bytes:
        """A whole segment, with zeros for what the medium cannot read. Blocks."""
        if segment not in self.numbers:
            return b""
        file = self._opened(segment)
        size = self._files.size(file.descriptor)
        found = bytearray()
        while len(found) < size:
            length = min(MIB, size - len(found))
            try:
                part = self._files.read(file.descriptor, length, len(found))
            except OSError:
                part = b"".join(
                    self._read_page(file, at, min(PAGE, size - at))
                    for at in range(len(found), len(found) + length, PAGE)
                )
            found += part
            if len(part) < length:
                break
        return bytes(found)

    def _read_page(self, file: SegmentFile, at: int, length: int) -> bytes:
        try:
            return self._files.read(file.descriptor, length, at)
        except OSError:
            return bytes(length)

    def rewrite(self, segment: int, data: bytes, at: int) -> None:
        """Write what was read from a segment again, and make it durable. Blocks. Raises OSError.

        After a failed flush Linux considers pages clean that are not on the medium.
        """
        descriptor = self._opened(segment).descriptor
        self._files.write(descriptor, [data], at)
        self._files.sync(descriptor)

    def recycle(self, segment: int) -> None:
        """Keep the file of a segment without entries for a later one, or delete it. Blocks.

        Raises OSError. Not synced: after a crash the segment has no entries, too.
        """
        path = self._path(segment)
        with self._lock:
            self._open.pop(segment, None)
            self.numbers.discard(segment)
            spare = SPARE + path.name
            is_kept = len(self._spare) < self._settings.spare_segments
            if is_kept and SegmentFile(self._files, path).filled <= self.segment_bytes:
                self._files.rename(path, path.with_name(spare))
                self._spare.append(spare)
            else:
                self._files.unlink(path)

    def delete(self, segment: int) -> None:
        """Delete a segment. Blocks. Raises OSError."""
        with self._lock:
            self._open.pop(segment, None)
            self.numbers.discard(segment)
            self._files.unlink(self._path(segment))

    def close(self) -> None:
        """Close all files; those that are being read are closed afterwards."""
        with self._lock:
            self._open.clear()
        self._written = None

    def _path(self, segment: int) -> Path:
        return self.directory / f"{segment:016d}"

    def _opened(self, segment: int) -> SegmentFile:
        """The file of a segment. Thread-safe. Raises KeyError if there is no such segment."""
        with self._lock:
            file = self._open.get(segment)
            if file is None:
                if segment not in self.numbers:
                    raise KeyError(segment)
                file = self._open[segment] = SegmentFile(self._files, self._path(segment))
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(segment)
            return file

    def _write_chunk(self, chunk: Chunk, has_appends: bool) -> None:
        if self._written is None or self._written[0] != chunk.segment:
            self._sync_written()
            if chunk.segment not in self.numbers:
                self._create(chunk.segment)
            self._written = chunk.segment, SegmentFile(self._files, self._path(chunk.segment))
        file = self._written[1]
        buffers = chunk.buffers
        filled = file.filled
        if chunk.end > filled:
            filled = self._filled_for(file, chunk, has_appends)
            buffers = [*buffers, memoryview(ZEROS)[: filled - chunk.end]]
        self._is_synced = False
        self._files.write(file.descriptor, buffers, chunk.start)
        file.filled = filled

    def _filled_for(self, file: SegmentFile, chunk: Chunk, has_appends: bool) -> int:
        """The size that a file gets for a chunk. Raises OSError if only the reserve is left."""
        step = min(max(file.filled, FIRST_STEP), LARGEST_STEP)
        if chunk.end - chunk.start > LARGEST_FILLED_WRITE:
            step = 0
        filled = max(chunk.end, min(chunk.end + step, self.segment_bytes))
        room = self._files.room(self.directory, file.filled)
        reserve = self._settings.reserve_bytes
        self.is_disk_low = room < reserve + filled - file.filled
        if not self.is_disk_low:
            return filled
        if has_appends and room < reserve + chunk.end - file.filled:
            raise OSError(
                errno.ENOSPC,
                f"the disk is full: {room} bytes are left, {reserve} bytes are reserved for "
                "deletions",
            )
        return chunk.end

    def _create(self, segment: int) -> None:
        """Make the file of a new segment, from a spare one if possible."""
        path = self._path(segment)
        with self._lock:
            if self._spare:
                self._files.rename(path.with_name(self._spare[-1]), path)
                self._spare.pop()
            else:
                SegmentFile(self._files, path)
            self.numbers.add(segment)
        self._files.sync_directory(self.directory)

    def _sync_written(self) -> None:
        if self._written is not None and not self._is_synced:
            self._files.sync(self._written[1].descriptor)
        self._is_synced = True


class Unreadable(Exception):
    """An entry is not where its row says; `before` are the entries before it.

    Its segment was freed after the row was read, or is damaged.
    """

    def __init__(self, slot: Slot, before: list[Entry]) -> None:
        super().__init__(f"segment {slot.segment}, position {slot.at}")
        self.slot = slot
        self.before = before


def read_entries(journal: Journal, rows: Sequence[Row]) -> list[Entry]:
    """The entries of `rows`; checks that each is the one that its row means, and is undamaged.

    Blocks. Raises Unreadable.
    """
    entries: list[Entry] = []
    for part in _adjacent(rows):
        first, inline = part[0]
        if inline is not None:
            entries.append(_entry(first, inline))
            continue
        last = part[-1][0]
        length = last.at + FRAME.size + last.size - first.at
        try:
            data = journal.read(first.segment, first.at, length)
        except OSError as error:
            if len(part) > 1:
                # Only the entries in the pages that cannot be read are lost.
                for row in part:
                    try:
                        entries += read_entries(journal, [row])
                    except Unreadable as failed:
                        raise Unreadable(failed.slot, entries) from failed
                continue
            raise Unreadable(first, entries) from error
        for slot, _ in part:
            start = slot.at - first.at
            frame = decode_frame(journal.mark, data, start)
            if (
                frame is None
                or (frame.log_id, frame.base_offset, frame.last_offset, frame.size)
                != (slot.log_id, slot.base_offset, slot.last_offset, slot.size)
                or not has_payload(frame, data, start)
            ):
                raise Unreadable(slot, entries)
            start += FRAME.size
            entries.append(_entry(slot, data[start : start + slot.size]))
    return entries


def _entry(slot: Slot, payload: bytes) -> Entry:
    return Entry(slot.base_offset, slot.last_offset, slot.timestamp, payload)


def _adjacent(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Parts of `rows` whose frames are so close to each other that one read is cheaper."""
    first = 0
    for index, (slot, _) in enumerate(rows):
        if index == first:
            continue
        before = rows[index - 1][0]
        gap = slot.at - (before.at + FRAME.size + before.size)
        if (
            not slot.segment
            or slot.segment != before.segment
            or not 0 <= gap <= LARGEST_GAP
            or slot.at + slot.size - rows[first][0].at > LARGEST_READ
        ):
            yield rows[first:index]
            first = index
    if first < len(rows):
        yield rows[first:]


def header_of(journal: Journal, segment: int) -> SegmentHeader | None:
    """The header of a segment, if it is that segment's."""
    header = decode_segment_header(journal.mark, journal.read(segment, 0, SEGMENT_HEADER.size))
    return header if header and header.number == segment else None
