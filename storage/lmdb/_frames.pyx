# cython: language_level=3
"""Frames and rows, compiled, with the results of the reference in `frames.py` and `queries.py`.

`_appends.pxi` has the writes by the flusher, `_reads.pxi` the reads from memory.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from storage._log cimport Entry, new_entry, payload_of, payload_size

cdef extern from "_crc32.h":
    void kopgate_crc32_init() noexcept nogil
    uint32_t kopgate_crc32(const uint8_t *at, size_t size) noexcept nogil

cdef extern from "_nowait.h":
    struct iovec:
        void* iov_base
        size_t iov_len
    int64_t kopgate_read_cached(int descriptor, const iovec* parts, int count, int64_t at) nogil

from storage.log import StorageError, StorageFailed

kopgate_crc32_init()

GAP = "an append before this one failed, so its offsets would leave a gap"

#: Version of the functions' signatures; `frames.py` expects the same number.
INTERFACE = 14

cdef enum:
    MARK_BYTES = 8
    START_BYTES = 12
    PLACE_BYTES = 12
    FIELD_BYTES = 48
    FRAME_BYTES = 60
    TABLES_LOG_ID = 0
    ROW_BYTES = 64
    INLINE_ROW_BYTES = 52
    IS_LAST = 1
    # The checksum of a payload of at least this size is computed without the GIL.
    LARGE_BYTES = 65536
    # Limits of one system call of `read_run`: frames, and bytes between two of them, which are
    # copied.
    RUN_FRAMES = 128
    RUN_GAP = 2048


cdef inline uint8_t* put32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = value >> 24, value >> 16 & 255, value >> 8 & 255, value & 255
    return at + 4


cdef inline uint8_t* put64(uint8_t* at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint32_t get32(const uint8_t* at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t get64(const uint8_t* at) noexcept nogil:
    return <uint64_t>get32(at) << 32 | get32(at + 4)


cdef uint32_t checksum(Entry entry, uint32_t* size) except? 0:
    """Return the CRC of the payload, and set its size."""
    cdef Py_buffer view
    cdef uint32_t crc
    if entry.request is not None:
        return checksum_of(entry.at, entry.size, size)
    PyObject_GetBuffer(payload_of(entry), &view, PyBUF_SIMPLE)
    try:
        crc = checksum_of(<const uint8_t*>view.buf, view.len, size)
    finally:
        PyBuffer_Release(&view)
    return crc


cdef uint32_t checksum_of(const uint8_t* at, Py_ssize_t count, uint32_t* size) except? 0:
    cdef uint32_t crc
    if count > <Py_ssize_t>UINT32_MAX:
        raise OverflowError("a payload has at most 4 GiB")
    size[0] = <uint32_t>count
    if count < LARGE_BYTES:
        crc = kopgate_crc32(at, count)
    else:
        with nogil:
            crc = kopgate_crc32(at, count)
    return crc


cdef class Frames:
    """Where the next frame goes, and what was encoded: see `encode_appends`."""

    cdef bytes mark
    cdef uint64_t segment
    cdef readonly uint64_t at
    cdef uint32_t durable_to
    # Bytes, and if `has_entries` also entries, for their payloads.
    cdef readonly list buffers
    cdef bint has_entries
    # Of staged appends: rows by log id, and the changed logs.
    cdef readonly dict rows, logs
    # And a frame with table rows.
    cdef dict table_rows
    cdef int64_t table_payload_bytes

    def __init__(
        self, bytes mark, uint64_t segment, uint64_t at, uint32_t durable_to, list buffers
    ):
        if PyBytes_GET_SIZE(mark) != MARK_BYTES:
            raise ValueError("a mark has 8 bytes")
        self.mark, self.segment, self.at = mark, segment, at
        self.durable_to, self.buffers = durable_to, buffers

    cdef list add(self, uint64_t log_id, entries, int64_t* running, int64_t* position):
        """Add the frames of an append; return the rows of its entries."""
        cdef uint8_t fields[PLACE_BYTES + FIELD_BYTES]
        cdef uint8_t* place
        cdef uint8_t* header
        cdef uint32_t size = 0, crc
        cdef uint64_t base_offset, last_offset
        cdef int64_t timestamp
        cdef Py_ssize_t number, count = len(entries)
        cdef list rows = []
        cdef Entry entry
        for number in range(count):
            entry = entries[number]
            base_offset, last_offset = entry.base_offset, entry.last_offset
            timestamp = entry.max_timestamp
            crc = checksum(entry, &size)
            if self.at > UINT32_MAX:
                raise OverflowError("a segment has at most 4 GiB")
            place = put32(put64(fields, self.segment), <uint32_t>self.at)
            place = put32(put32(put32(place, crc), size), self.durable_to)
            place = put64(put32(place, IS_LAST if number == count - 1 else 0), log_id)
            place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
            buffer = PyBytes_FromStringAndSize(NULL, FRAME_BYTES)
            header = <uint8_t*>PyBytes_AS_STRING(buffer)
            memcpy(header, PyBytes_AS_STRING(self.mark), MARK_BYTES)
            put32(header + MARK_BYTES, kopgate_crc32(fields, PLACE_BYTES + FIELD_BYTES))
            memcpy(header + START_BYTES, fields + PLACE_BYTES, FIELD_BYTES)
            self.buffers.append(buffer)
            if self.has_entries and entry.request is not None:
                self.buffers.append(entry)
            else:
                self.buffers.append(payload_of(entry))
            position[0] += size
            if timestamp > running[0]:
                running[0] = timestamp
            row = PyBytes_FromStringAndSize(NULL, ROW_BYTES)
            place = put64(<uint8_t*>PyBytes_AS_STRING(row), log_id)
            place = put64(put64(put64(place, base_offset), last_offset), <uint64_t>timestamp)
            place = put32(put64(put64(place, <uint64_t>running[0]), position[0]), size)
            put32(put64(place, self.segment), <uint32_t>self.at)
            rows.append(row)
            self.at += <uint64_t>FRAME_BYTES + size
        return rows


def encode_append(
    bytes mark,
    uint64_t segment,
    uint64_t at,
    uint32_t durable_to,
    uint64_t log_id,
    entries,
    int64_t running,
    int64_t position,
):
    cdef Frames frames = Frames(mark, segment, at, durable_to, [])
    rows = frames.add(log_id, entries, &running, &position)
    return frames.buffers, rows, frames.at, running, position


def encode_appends(
    bytes mark,
    uint64_t segment,
    uint64_t at,
    uint32_t durable_to,
    dict logs,
    find_log,
    appends,
    list buffers,
    list rows,
):
    cdef Frames frames = Frames(mark, segment, at, durable_to, buffers)
    cdef int64_t running, position
    outcomes = []
    for append in appends:
        refusal = None
        try:
            log_id, entries = append.log_id, append.entries
            log = logs.get(log_id)
            if log is None:
                log = find_log(log_id)
            if entries[0].base_offset != log.end_offset:
                raise StorageFailed(GAP)
            running, position = log.running_timestamp, log.position
            rows.append((log_id, frames.add(log_id, entries, &running, &position)))
            log.running_timestamp, log.position = running, position
            log.end_offset = entries[-1].last_offset + 1
            log.size += append.size
        except StorageError as error:
            refusal = error.with_traceback(None)
        outcomes.append((append, None, refusal))
    return frames.at, outcomes


include "_appends.pxi"
include "_reads.pxi"


cdef struct Slot:
    # The fields of a row needed to read its entry.
    uint64_t log_id
    uint64_t base_offset
    uint64_t last_offset
    int64_t timestamp
    uint32_t size
    uint64_t segment
    uint32_t at


cdef bint read_row(bytes row, Slot* slot) except -1:
    """Whether the row has a place in the journal, which an entry of format 1 does not have."""
    cdef const uint8_t* fields
    cdef bint has_place
    if row is None:
        raise TypeError("a row is not None")
    fields = <const uint8_t*>PyBytes_AS_STRING(row)
    has_place = PyBytes_GET_SIZE(row) == ROW_BYTES
    if not has_place and PyBytes_GET_SIZE(row) != INLINE_ROW_BYTES:
        raise ValueError("a row has 64 or 52 bytes")
    fill_slot(fields, has_place, slot)
    return has_place


cdef void fill_slot(const uint8_t* fields, bint has_place, Slot* slot) noexcept nogil:
    slot.log_id, slot.base_offset = get64(fields), get64(fields + 8)
    slot.last_offset, slot.timestamp = get64(fields + 16), <int64_t>get64(fields + 24)
    slot.size = get32(fields + 48)
    slot.segment, slot.at = 0, 0
    if has_place:
        slot.segment, slot.at = get64(fields + 52), get32(fields + 60)


def take_rows(items, uint64_t log_id, uint64_t end, int64_t max_bytes, Py_ssize_t most):
    cdef Slot slot
    cdef bint has_place
    cdef bytes row
    rows = []
    for row, value in items:
        has_place = read_row(row, &slot)
        if slot.log_id != log_id or slot.base_offset >= end:
            break
        max_bytes -= slot.size
        if (rows and max_bytes < 0) or <Py_ssize_t>len(rows) >= most:
            break
        if has_place:
            rows.append(row)
        else:
            rows.append(new_entry(slot.base_offset, slot.last_offset, slot.timestamp, value))
    return rows


def adjacent(list rows not None, Py_ssize_t first, int64_t largest_gap, int64_t largest_read):
    cdef Slot slot
    cdef Py_ssize_t number
    cdef uint64_t segment
    cdef int64_t start, end, gap
    if not read_row(rows[first], &slot):
        raise ValueError(f"the row of a frame has {ROW_BYTES} bytes")
    segment, start = slot.segment, slot.at
    end = start + FRAME_BYTES + slot.size
    for number in range(first + 1, len(rows)):
        row = rows[number]
        if type(row) is not bytes:
            return number, segment, start, end - start
        read_row(row, &slot)
        gap = <int64_t>slot.at - end
        if (
            slot.segment != segment
            or not 0 <= gap <= largest_gap
            or slot.at + <int64_t>slot.size - start > largest_read
        ):
            return number, segment, start, end - start
        end = <int64_t>slot.at + FRAME_BYTES + <int64_t>slot.size
    return len(rows), segment, start, end - start


def read_frames(bytes mark not None, int64_t at, data, list rows not None):
    cdef Py_buffer view
    cdef Py_ssize_t number, intact = 0, count = len(rows)
    cdef int64_t start, payloads = 0
    cdef const uint8_t* expected = <const uint8_t*>PyBytes_AS_STRING(mark)
    cdef Slot* slots
    if PyBytes_GET_SIZE(mark) != MARK_BYTES:
        raise ValueError("a mark has 8 bytes")
    slots = <Slot*>PyMem_Malloc(count * sizeof(Slot))
    if slots == NULL:
        raise MemoryError
    try:
        for number in range(count):
            read_row(rows[number], slots + number)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        if view.len < LARGE_BYTES:
            intact = count_intact(expected, at, <const uint8_t*>view.buf, view.len, slots, count)
        else:
            with nogil:
                intact = count_intact(
                    expected, at, <const uint8_t*>view.buf, view.len, slots, count
                )
        PyBuffer_Release(&view)
        for number in range(intact):
            payloads += slots[number].size
        are_copied = payloads * 8 < view.len * 7
        whole = memoryview(data)
        entries = []
        for number in range(intact):
            start = slots[number].at - at + FRAME_BYTES
            payload = whole[start : start + slots[number].size]
            entries.append(
                new_entry(
                    slots[number].base_offset,
                    slots[number].last_offset,
                    slots[number].timestamp,
                    bytes(payload) if are_copied else payload,
                )
            )
        return entries
    finally:
        PyMem_Free(slots)


cdef Py_ssize_t count_intact(
    const uint8_t* mark,
    int64_t at,
    const uint8_t* data,
    Py_ssize_t size,
    const Slot* slots,
    Py_ssize_t count,
) noexcept nogil:
    cdef Py_ssize_t number
    cdef int64_t start
    for number in range(count):
        start = slots[number].at - at
        if start < 0 or start > size - FRAME_BYTES - <int64_t>slots[number].size:
            return number
        if not is_intact(mark, data + start, data + start + FRAME_BYTES, slots + number):
            return number
    return count


cdef bint is_intact(
    const uint8_t* mark, const uint8_t* frame, const uint8_t* payload, const Slot* slot
) noexcept nogil:
    """Whether the header is that of `slot`, and undamaged, and so is the payload of its size."""
    cdef uint8_t fields[PLACE_BYTES + FIELD_BYTES]
    put32(put64(fields, slot.segment), slot.at)
    memcpy(fields + PLACE_BYTES, frame + START_BYTES, FIELD_BYTES)
    if memcmp(frame, mark, MARK_BYTES) != 0:
        return False
    if get32(frame + MARK_BYTES) != kopgate_crc32(fields, PLACE_BYTES + FIELD_BYTES):
        return False
    if get32(frame + 16) != slot.size or get64(frame + 28) != slot.log_id:
        return False
    if get64(frame + 36) != slot.base_offset or get64(frame + 44) != slot.last_offset:
        return False
    return get32(frame + 12) == kopgate_crc32(payload, slot.size)


def select_run(
    bytes rows not None,
    uint64_t offset,
    uint64_t end,
    int64_t max_bytes,
    int64_t most_bytes,
    int64_t most_gaps,
    Py_ssize_t most,
):
    cdef Run run
    if not find_run(rows, offset, end, max_bytes, most_bytes, most_gaps, most, &run):
        return None
    return run.first, run.stop, run.segment, run.base_offset, run.last_offset, run.size


cdef bint find_run(
    bytes rows,
    uint64_t offset,
    uint64_t end,
    int64_t max_bytes,
    int64_t most_bytes,
    int64_t most_gaps,
    Py_ssize_t most,
    Run* run,
) noexcept:
    """As `select_run`; returns False instead of None."""
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(rows)
    cdef const uint8_t* row
    cdef Py_ssize_t count = PyBytes_GET_SIZE(rows) // ROW_BYTES
    cdef Py_ssize_t first = 0, number = count, middle
    cdef uint64_t segment, last_offset = 0
    cdef int64_t size = 0, gaps = 0, payload, gap, behind
    while first < number:
        middle = (first + number) // 2
        if get64(data + middle * ROW_BYTES + 16) < offset:
            first = middle + 1
        else:
            number = middle
    if first == count or get64(data + first * ROW_BYTES + 8) >= end:
        return False
    segment = get64(data + first * ROW_BYTES + 52)
    behind = get32(data + first * ROW_BYTES + 60)
    while number < count and number - first < most:
        row = data + number * ROW_BYTES
        payload = get32(row + 48)
        if get64(row + 8) >= end or (number > first and size + payload > max_bytes):
            break
        if get64(row + 52) != segment or size + payload > most_bytes:
            return False
        gap = <int64_t>get32(row + 60) - behind
        gaps += gap if 0 <= gap <= RUN_GAP else RUN_GAP
        if gaps > most_gaps:
            break
        behind += gap + FRAME_BYTES + payload
        size += payload
        last_offset = get64(row + 16)
        number += 1
    if number == count and last_offset + 1 < end:
        return False
    run.first, run.stop, run.segment, run.size = first, number, segment, size
    run.base_offset, run.last_offset = get64(data + first * ROW_BYTES + 8), last_offset
    return True


def read_run(
    int descriptor, bytes mark not None, bytes rows not None, Py_ssize_t first, Py_ssize_t stop
):
    cdef Py_ssize_t number, count = stop - first, size = 0
    cdef const uint8_t* expected = <const uint8_t*>PyBytes_AS_STRING(mark)
    cdef uint8_t* payloads
    cdef Slot* slots
    cdef bint is_read
    if PyBytes_GET_SIZE(mark) != MARK_BYTES:
        raise ValueError("a mark has 8 bytes")
    if first < 0 or count < 0 or stop * ROW_BYTES > PyBytes_GET_SIZE(rows):
        raise ValueError("there are no such rows")
    slots = <Slot*>PyMem_Malloc(count * sizeof(Slot))
    if slots == NULL:
        raise MemoryError
    try:
        for number in range(count):
            fill_slot(
                <const uint8_t*>PyBytes_AS_STRING(rows) + (first + number) * ROW_BYTES,
                True,
                slots + number,
            )
            size += slots[number].size
        found = PyBytes_FromStringAndSize(NULL, size)
        payloads = <uint8_t*>PyBytes_AS_STRING(found)
        if size < LARGE_BYTES:
            is_read = read_payloads(descriptor, expected, slots, count, payloads)
        else:
            with nogil:
                is_read = read_payloads(descriptor, expected, slots, count, payloads)
        return found if is_read else None
    finally:
        PyMem_Free(slots)


cdef bint read_payloads(
    int descriptor, const uint8_t* mark, const Slot* slots, Py_ssize_t count, uint8_t* payloads
) noexcept nogil:
    """Whether the payloads of the slots, in one segment, were read from memory, undamaged."""
    cdef uint8_t headers[RUN_FRAMES * FRAME_BYTES]
    cdef uint8_t skipped[RUN_GAP]
    cdef iovec parts[3 * RUN_FRAMES]
    cdef uint8_t* payload
    cdef uint8_t* header
    cdef int64_t position, gap
    cdef Py_ssize_t begun = 0, number
    cdef int used
    while begun < count:
        number = begun
        position = slots[begun].at
        used = 0
        payload = payloads
        while number < count and number - begun < RUN_FRAMES:
            gap = <int64_t>slots[number].at - position
            if gap < 0 or gap > RUN_GAP:
                break
            if gap:
                parts[used].iov_base, parts[used].iov_len = skipped, gap
                used += 1
            parts[used].iov_base = headers + (number - begun) * FRAME_BYTES
            parts[used].iov_len = FRAME_BYTES
            parts[used + 1].iov_base, parts[used + 1].iov_len = payload, slots[number].size
            used += 2
            payload += slots[number].size
            position += gap + FRAME_BYTES + <int64_t>slots[number].size
            number += 1
        if kopgate_read_cached(descriptor, parts, used, slots[begun].at) != (
            position - <int64_t>slots[begun].at
        ):
            return False
        header = headers
        while begun < number:
            if not is_intact(mark, header, payloads, slots + begun):
                return False
            payloads += slots[begun].size
            header += FRAME_BYTES
            begun += 1
    return True


def entries_of(bytes rows not None, Py_ssize_t first, Py_ssize_t stop, bytes payloads not None):
    cdef Slot slot
    cdef Py_ssize_t number, at = 0
    if first < 0 or stop * ROW_BYTES > PyBytes_GET_SIZE(rows):
        raise ValueError("there are no such rows")
    whole = memoryview(payloads)
    entries = []
    for number in range(first, stop):
        fill_slot(<const uint8_t*>PyBytes_AS_STRING(rows) + number * ROW_BYTES, True, &slot)
        payload = whole[at : at + slot.size]
        at += slot.size
        entries.append(new_entry(slot.base_offset, slot.last_offset, slot.timestamp, payload))
    return entries
