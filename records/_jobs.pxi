# Down-conversion of many magic-2 batches in one call, without the GIL; included by _kernel.pyx.
#
# Only valid batches that are uncompressed or in gzip, lz4 or snappy are handled here. All others
# are left to the general conversion path, which reports errors; this code reports none, so no
# message here can differ from the plain-Python implementation.

ctypedef int (*Unpack)(const char *packed, char *into, int packed_bytes, int most) noexcept nogil
ctypedef int (*Pack)(
    void *state, const char *content, char *into, int content_bytes, int most, int acceleration
) noexcept nogil

cdef Unpack lz4_unpack = NULL
cdef Pack lz4_pack = NULL
cdef int lz4_state_bytes = 0
# Bit N is set if batches in codec N are handled.
cdef int handled_codecs = 0

cdef enum:
    BATCH_OVERHEAD = 61
    BATCH_CRC_AT = 17
    BATCH_CRC_FROM = 21
    CONTROL_BIT = 0x20

    FRAME_HEADER = 7
    FRAME_BLOCK = 64 * 1024
    LZ4_EXPANSION = 255

    # Bytes of results produced before they are copied out; together with the reused memory this
    # fits in the processor's cache.
    RESULTS_AT_A_TIME = 256 * 1024
    # A run ends after the batch with which it has unpacked RUN_UNPACKS bytes, about 50 ms, in gzip
    # 100 ms, or has used RUN_CPU_MS of CPU time: a hostile gzip stream takes 0.3 us for each of its
    # bytes and unpacks to nothing.
    RUN_UNPACKS = 16 * 1024 * 1024
    RUN_CPU_MS = 200
    # Bytes that a batch may need while it is converted, in addition to those of its result.
    RUN_SPARE = 64 * 1024
    # Limits of memory reuse: bytes kept per buffer of a Desk, and number of idle Desks.
    DESK_KEEPS = 1024 * 1024
    DESKS_KEPT = 4

cdef struct Room:
    # A growing buffer; the first `used` of `size` bytes are in use. If they are those of a bytes
    # object, that is `owner`, else NULL.
    uint8_t *bytes
    size_t size
    size_t used
    PyObject *owner

cdef struct Places:
    Room records
    Room messages
    Room results
    # For lz4 and snappy.
    void *pack_state
    # For gzip.
    void *unpack_state
    void *pack_stream
    # `handled_codecs` at the start of the call: another thread may add one.
    int codecs

cdef struct Task:
    # `made` is the size of the result, -1 if the general conversion path has to handle it.
    Py_buffer view
    Py_ssize_t made

cdef list idle = []

cdef class Desk:
    """Buffers of one call, reused because allocating them costs more than the conversion."""

    cdef Places on

    def __dealloc__(self):
        free(self.on.records.bytes)
        free(self.on.messages.bytes)
        free(self.on.results.bytes)
        free(self.on.pack_state)
        free(self.on.unpack_state)
        free(self.on.pack_stream)

cdef bint widen(Room *room, size_t more) noexcept nogil:
    """Make room for `more` bytes after the used ones; False if memory cannot be allocated."""
    cdef size_t size = room.used + more
    cdef void *bytes
    if size <= room.size:
        return True
    if size < 2 * room.size:
        size = 2 * room.size
    if room.owner != NULL:
        return widen_object(room, size)
    bytes = realloc(room.bytes, size)
    if bytes == NULL:
        return False
    room.bytes = <uint8_t *>bytes
    room.size = size
    return True

cdef bint widen_object(Room *room, size_t size) noexcept with gil:
    """Resize the room's object; on failure the room is left empty."""
    try:
        _PyBytes_Resize(&room.owner, size)
    except MemoryError:
        room.bytes = NULL
        room.size = room.used = 0
        return False
    room.bytes = <uint8_t *>PyBytes_AS_STRING(room.owner)
    room.size = size
    return True

cdef void empty(Room *room) noexcept nogil:
    room.used = 0
    if room.size > DESK_KEEPS:
        free(room.bytes)
        room.bytes = NULL
        room.size = 0

cdef void tidy(Places *on) noexcept nogil:
    empty(&on.records)
    empty(&on.messages)
    empty(&on.results)

cdef Desk taken_desk():
    cdef Desk desk
    try:
        desk = idle.pop()
    except IndexError:
        desk = Desk()
    desk.on.codecs = handled_codecs
    return desk

cdef give_back(Desk desk):
    tidy(&desk.on)
    if len(idle) < DESKS_KEPT:
        idle.append(desk)

cdef Py_ssize_t convert_some(
    Places *on, Task *tasks, Py_ssize_t count, int magic, int64_t limit
) noexcept nogil:
    """Convert tasks, at least one, until RESULTS_AT_A_TIME is reached; return the number done."""
    cdef Py_ssize_t done = 0
    on.results.used = 0
    while done < count and on.results.used < RESULTS_AT_A_TIME:
        tasks[done].made = convert_batch(
            on, <const uint8_t *>tasks[done].view.buf, tasks[done].view.len, magic, limit
        )
        if tasks[done].made > 0:
            on.results.used += tasks[done].made
        done += 1
    return done

cdef Py_ssize_t convert_batch(
    Places *on, const uint8_t *data, Py_ssize_t size, int magic, int64_t limit
) noexcept nogil:
    """Append a stored batch to the results as a message set; return its size or -1."""
    cdef int attributes, codec
    cdef int64_t base_offset, last_delta, count
    cdef Py_ssize_t records = size - BATCH_OVERHEAD
    cdef const uint8_t *content = data + BATCH_OVERHEAD
    cdef bint has_time, is_unpacked, is_plain = False
    cdef Room *into = &on.results
    cdef Summary found
    if records < 0 or data[MAGIC_AT] != 2 or <int32_t>get32(data + 8) != size - LOG_OVERHEAD:
        return -1
    attributes = data[BATCH_CRC_FROM + 1]
    codec = attributes & CODEC_MASK
    if attributes & CONTROL_BIT or not is_handled(codec, on.codecs):
        return -1
    base_offset = <int64_t>get64(data)
    last_delta = <int32_t>get32(data + 23)
    count = <int32_t>get32(data + 57)
    if base_offset < 0 or last_delta < 0 or base_offset > INT64_MAX - last_delta or count <= 0:
        return -1
    if kopgate_crc32c(data + BATCH_CRC_FROM, size - BATCH_CRC_FROM) != get32(data + BATCH_CRC_AT):
        return -1
    if codec:
        if codec == LZ4:
            is_unpacked = unpack_lz4(content, records, limit, &on.records, &is_plain)
        elif codec == SNAPPY:
            is_unpacked = unpack_snappy(content, records, limit, &on.records)
        else:
            is_unpacked = unpack_gzip(on, content, records, limit, &on.records)
        if not is_unpacked:
            return -1
        content = on.records.bytes
        records = on.records.used
        into = &on.messages
    if count > records // SMALLEST_RECORD:
        return -1
    if not widen(into, records + count * (GROWTH_V1 if magic else GROWTH_V0)):
        return -1
    has_time = (attributes & APPEND_TIME_BIT) != 0
    if down_records(
        content, records, count, base_offset, last_delta, <int64_t>get64(data + 27), has_time,
        <int64_t>get64(data + 35), magic, codec and magic, into.bytes + into.used, &found,
    ):
        return -1
    if not codec:
        return found.written
    # Content that the producer could not compress is not compressed here either, unless it has
    # grown much.
    is_plain = is_plain and found.written <= records + records // 8
    return wrap(on, &found, magic, codec, has_time, is_plain)

cdef inline bint is_handled(int codec, int codecs) noexcept nogil:
    return codec == 0 or (codecs >> codec & 1) != 0

cdef struct Run:
    # Messages from `offset` on, of at most `max_bytes`, and what they are from. A compressed batch
    # may unpack to `limit` bytes. `is_full` is set if nothing more fits, `is_short` if the run ends
    # at RUN_UNPACKS or RUN_CPU_MS.
    int magic
    int64_t offset
    int64_t max_bytes
    int64_t limit
    int64_t unpacked
    # CPU time of the thread at the start.
    int64_t begun_ms
    bint at_least_one
    bint is_full
    bint is_short
    int64_t batches
    int64_t offsets
    int64_t stored

cdef Py_ssize_t run_room(
    const uint8_t *data, Py_ssize_t size, int magic, int codecs, Py_ssize_t *batches,
    int64_t *records
) noexcept nogil:
    """Return the bytes that batches take as messages, if a codec does not compress the messages
    less than the records; -1 if there are others than uncompressed ones and those in `codecs`.

    Their numbers are subtracted from `batches` and `records`; -1 if these are too small.
    """
    cdef Py_ssize_t room = 0, whole
    cdef int64_t count
    cdef int attributes, codec
    while size >= BATCH_OVERHEAD and batches[0] > 0:
        whole = LOG_OVERHEAD + <Py_ssize_t><int32_t>get32(data + 8)
        if data[MAGIC_AT] != 2 or whole < BATCH_OVERHEAD or whole > size:
            return -1
        attributes = data[BATCH_ATTRIBUTES_AT]
        codec = attributes & CODEC_MASK
        count = <int32_t>get32(data + BATCH_COUNT_AT)
        records[0] -= count
        if count <= 0 or records[0] < 0:
            return -1
        if attributes & CONTROL_BIT or not is_handled(codec, codecs):
            return -1
        if not codec and count > (whole - BATCH_OVERHEAD) // SMALLEST_RECORD:
            return -1
        room += whole + count * (GROWTH_V1 if magic else GROWTH_V0)
        data += whole
        size -= whole
        batches[0] -= 1
    return -1 if size else room

cdef int64_t thread_cpu_ms() noexcept nogil:
    """CPU time of this thread; 0 if it cannot be read."""
    cdef timespec now
    if clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now):
        return 0
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1000000

cdef int convert_run(
    Places *on, const uint8_t *data, Py_ssize_t size, Run *run
) noexcept nogil:
    """Append batches that `run_room` has seen to the results. Returns -1 if one is not handled.

    The run ends if it `is_full` or `is_short`.
    """
    cdef Room *into = &on.results
    cdef Py_ssize_t made, start, last, whole
    cdef int64_t left
    while size and not run.is_full and not run.is_short:
        if size < BATCH_OVERHEAD:
            return -1
        whole = LOG_OVERHEAD + <Py_ssize_t><int32_t>get32(data + 8)
        if not BATCH_OVERHEAD <= whole <= size:
            return -1
        on.records.used = whole
        made = convert_batch(on, data, whole, run.magic, run.limit)
        if made < 0:
            return -1
        # That of an uncompressed batch is still its size.
        run.unpacked += on.records.used
        run.is_short = run.unpacked >= RUN_UNPACKS or (
            run.limit > 0 and thread_cpu_ms() - run.begun_ms > RUN_CPU_MS
        )
        left = run.max_bytes - <int64_t>into.used
        if made > left or <int64_t>get64(data) < run.offset:
            find_cut(into.bytes + into.used, made, run.offset, max(left, 0), &start, &last)
            run.is_full = made - start > left
            made = last - start
            if made > left and (into.used or not run.at_least_one):
                return 0
            memmove(into.bytes + into.used, into.bytes + into.used + start, made)
        if made:
            run.batches += 1
            run.offsets += <int64_t><int32_t>get32(data + 23) + 1
            run.stored += whole
        into.used += made
        data += whole
        size -= whole
    return 0

cdef bint unpack_lz4(
    const uint8_t *data, Py_ssize_t size, int64_t limit, Room *into, bint *is_plain
) noexcept nogil:
    """Decompress a frame as Kafka clients write it, to at most `limit` bytes.

    `is_plain` is set if no block was compressed. False for any other frame.
    """
    cdef Py_ssize_t at = FRAME_HEADER
    cdef int64_t most, room
    cdef uint32_t block
    cdef int made
    into.used = 0
    is_plain[0] = True
    if size < FRAME_HEADER:
        return False
    # Independent blocks of 64 KiB, 256 KiB, 1 MiB or 4 MiB, no other options, and the checksum of
    # that header.
    if not (
        memcmp(data, b"\x04\x22\x4d\x18\x60\x40\x82", 7) == 0
        or memcmp(data, b"\x04\x22\x4d\x18\x60\x50\xfb", 7) == 0
        or memcmp(data, b"\x04\x22\x4d\x18\x60\x60\x51", 7) == 0
        or memcmp(data, b"\x04\x22\x4d\x18\x60\x70\x73", 7) == 0
    ):
        return False
    most = 1 << (8 + 2 * (data[5] >> 4))
    while size - at >= 4:
        block = get32_little(data + at)
        at += 4
        if block == 0:
            return True
        made = block & INT32_MAX
        if made > size - at or made > most:
            return False
        room = limit - <int64_t>into.used
        if block > INT32_MAX:
            if made > room or not widen(into, made):
                return False
            memcpy(into.bytes + into.used, data + at, made)
            into.used += made
            at += made
        else:
            is_plain[0] = False
            room = min(room, most, <int64_t>made * LZ4_EXPANSION)
            if not widen(into, room + 1):
                return False
            at += made
            made = lz4_unpack(
                <const char *>data + at - made, <char *>into.bytes + into.used, made, <int>room
            )
            if made < 0:
                return False
            into.used += made
    return False

cdef size_t lz4_room(Py_ssize_t size) noexcept nogil:
    """Bytes that `pack_lz4` may write for content of `size` bytes."""
    return FRAME_HEADER + size + 4 * (size // FRAME_BLOCK + 2)

cdef uint8_t *pack_lz4(
    void *state, const uint8_t *data, Py_ssize_t left, int magic, bint is_plain, uint8_t *to
) noexcept nogil:
    """Write content as a frame, with `is_plain` uncompressed, and return the end."""
    cdef Py_ssize_t piece
    cdef int made
    # Consumers of magic 0 expect the historic header checksum: see lz4_header.py.
    memcpy(
        to,
        b"\x04\x22\x4d\x18\x60\x40\x82" if magic else b"\x04\x22\x4d\x18\x60\x40\x1a",
        FRAME_HEADER,
    )
    to += FRAME_HEADER
    while left > 0:
        piece = min(left, FRAME_BLOCK)
        made = 0 if is_plain else lz4_pack(
            state, <const char *>data, <char *>to + 4, <int>piece, <int>piece - 1, 1
        )
        if made > 0:
            put32_little(to, made)
        else:
            made = <int>piece
            put32_little(to, <uint32_t>made | 0x80000000U)
            memcpy(to + 4, data, made)
        to += 4 + made
        data += piece
        left -= piece
    put32_little(to, 0)
    return to + 4

cdef size_t pack_room(int codec, Py_ssize_t size) noexcept nogil:
    """Bytes that content of `size` bytes may take compressed."""
    if codec == LZ4:
        return lz4_room(size)
    return snappy_room(size) if codec == SNAPPY else gzip_room(size)

cdef Py_ssize_t wrap(
    Places *on, Summary *found, int magic, int codec, bint has_time, bint is_plain
) noexcept nogil:
    """Append the converted messages to the results as one wrapper; return its size or -1."""
    cdef Py_ssize_t size = found.written
    cdef const uint8_t *data = on.messages.bytes
    cdef uint8_t *message
    cdef uint8_t *content
    cdef uint8_t *to
    if codec != GZIP and on.pack_state == NULL:
        on.pack_state = malloc(max(<size_t>lz4_state_bytes, LARGEST_TABLE * sizeof(uint16_t)))
        if on.pack_state == NULL:
            return -1
    if not widen(&on.results, TIMESTAMP_AT + 16 + pack_room(codec, size)):
        return -1
    message = on.results.bytes + on.results.used
    put64(message, <uint64_t>found.last_offset)
    message[MAGIC_AT] = <uint8_t>magic
    message[ATTRIBUTES_AT] = <uint8_t>(codec | (APPEND_TIME_BIT if has_time and magic else 0))
    to = message + TIMESTAMP_AT
    if magic:
        put64(to, <uint64_t>found.max_timestamp)
        to += 8
    put32(to, 0xFFFFFFFFU)
    content = to + 8
    if codec == LZ4:
        to = pack_lz4(on.pack_state, data, size, magic, is_plain, content)
    elif codec == SNAPPY:
        to = pack_snappy(on.pack_state, data, size, content)
    else:
        to = pack_gzip(on, data, size, content)
    if to == NULL or to - message > INT32_MAX:
        return -1
    put32(content - 4, <uint32_t>(to - content))
    put32(message + 8, <uint32_t>(to - message - LOG_OVERHEAD))
    put32(message + CRC_AT, kopgate_crc32(message + CRC_FROM, to - message - CRC_FROM))
    return to - message
