# Loops over messages of magic 0 and 1; included by _kernel.pyx.

cdef struct Message:
    # A message with a valid length. `fields` is the position of the key length.
    int64_t offset
    int64_t timestamp
    Py_ssize_t end
    Py_ssize_t fields
    Py_ssize_t key_at
    Py_ssize_t value_at
    int32_t key_size
    int32_t value_size
    int magic
    int attributes

cdef struct Summary:
    int64_t max_timestamp
    int64_t first_offset
    int64_t last_offset
    Py_ssize_t count
    Py_ssize_t wrappers
    Py_ssize_t largest
    Py_ssize_t written
    Py_ssize_t at
    int magic
    bint is_ordinal
    bint has_null_key
    bint has_append_time

cdef inline int headline(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t start, int magic, Message *out
) noexcept nogil:
    """Read length, magic (must equal `magic` unless that is -1), offset and attributes."""
    cdef int32_t claimed
    if size - start < LOG_OVERHEAD + SMALLEST_V0:
        return TRUNCATED
    claimed = <int32_t>get32(data + start + 8)
    if claimed < SMALLEST_V0:
        return SIZE
    out.magic = data[start + MAGIC_AT]
    if out.magic > 1:
        return MAGIC
    if magic >= 0 and out.magic != magic:
        return MIXED
    if out.magic == 1 and claimed < SMALLEST_V1:
        return SIZE
    if claimed > size - start - LOG_OVERHEAD:
        return TRUNCATED
    out.end = start + LOG_OVERHEAD + claimed
    out.offset = <int64_t>get64(data + start)
    out.attributes = data[start + ATTRIBUTES_AT]
    out.fields = start + (TIMESTAMP_AT + 8 if out.magic else TIMESTAMP_AT)
    return OK

cdef inline int verify(
    const uint8_t *data, Py_ssize_t size, Py_ssize_t start, int magic, bint is_inner,
    Message *out
) noexcept nogil:
    """Read the header as `headline` does and verify the rest of the message."""
    cdef int fault = headline(data, size, start, magic, out)
    cdef uint32_t checksum
    if fault:
        return fault
    checksum = kopgate_crc32(data + start + CRC_FROM, out.end - start - CRC_FROM)
    if checksum != get32(data + start + CRC_AT):
        return CHECKSUM
    out.key_size = <int32_t>get32(data + out.fields)
    out.key_at = out.fields + 4
    if out.key_size < -1 or out.key_size > out.end - 4 - out.key_at:
        return FIELDS
    out.value_at = out.key_at + (out.key_size if out.key_size > 0 else 0) + 4
    out.value_size = <int32_t>get32(data + out.value_at - 4)
    if out.value_size < -1:
        return FIELDS
    if (out.value_size if out.value_size > 0 else 0) != out.end - out.value_at:
        return FIELDS
    if out.attributes & CODEC_MASK > LZ4:
        return CODEC
    if is_inner and out.attributes & CODEC_MASK:
        return NESTED
    out.timestamp = <int64_t>get64(data + start + TIMESTAMP_AT) if out.magic else -1
    return OK

cdef void begin(Summary *out, int magic) noexcept nogil:
    out.magic = magic
    out.max_timestamp = out.first_offset = out.last_offset = -1
    out.count = out.wrappers = out.largest = out.written = out.at = 0
    out.is_ordinal = True
    out.has_null_key = out.has_append_time = False

cdef int scan_all(
    const uint8_t *data, Py_ssize_t size, int magic, bint is_inner, Summary *out
) noexcept nogil:
    cdef Message one
    cdef int fault
    begin(out, magic)
    while out.at < size:
        fault = verify(data, size, out.at, out.magic, is_inner, &one)
        if fault:
            return fault
        out.magic = one.magic
        if one.end - out.at > out.largest:
            out.largest = one.end - out.at
        out.last_offset = one.offset
        if one.offset != out.count:
            out.is_ordinal = False
        if one.magic and one.attributes & APPEND_TIME_BIT:
            out.has_append_time = True
        if one.attributes & CODEC_MASK:
            out.wrappers += 1
        else:
            if one.timestamp > out.max_timestamp:
                out.max_timestamp = one.timestamp
            if one.key_size < 0:
                out.has_null_key = True
        out.count += 1
        out.at = one.end
    return OK

cdef int skip_plain(const uint8_t *data, Py_ssize_t size, Py_ssize_t *at) noexcept nogil:
    cdef Message one
    cdef int fault
    while at[0] < size:
        fault = headline(data, size, at[0], -1, &one)
        if fault:
            return fault
        if one.attributes & CODEC_MASK:
            break
        at[0] = one.end
    return OK

cdef int find_cut(
    const uint8_t *data, Py_ssize_t size, int64_t offset, int64_t max_bytes, Py_ssize_t *start,
    Py_ssize_t *last
) noexcept nogil:
    cdef Message one
    cdef int fault
    start[0] = last[0] = 0
    while last[0] < size:
        fault = headline(data, size, last[0], -1, &one)
        if fault:
            return fault
        if one.offset >= offset:
            break
        last[0] = one.end
    start[0] = last[0]
    while last[0] < size:
        fault = headline(data, size, last[0], -1, &one)
        if fault:
            return fault
        if one.end - start[0] > max_bytes and last[0] > start[0]:
            break
        last[0] = one.end
    return OK

cdef int stamp_all(
    uint8_t *data, Py_ssize_t size, int64_t base_offset, bint has_time, int64_t append_time,
    Summary *out
) noexcept nogil:
    cdef Message one
    cdef int fault
    begin(out, -1)
    while out.at < size:
        fault = headline(data, size, out.at, -1, &one)
        if fault:
            return fault
        put64(data + out.at, <uint64_t>base_offset + <uint64_t>out.count)
        if one.magic and has_time:
            data[out.at + ATTRIBUTES_AT] = <uint8_t>(one.attributes | APPEND_TIME_BIT)
            put64(data + out.at + TIMESTAMP_AT, <uint64_t>append_time)
            put32(
                data + out.at + CRC_AT,
                kopgate_crc32(data + out.at + CRC_FROM, one.end - out.at - CRC_FROM),
            )
        out.count += 1
        out.at = one.end
    return OK

cdef int down_older(
    const uint8_t *data, Py_ssize_t size, int64_t shift, uint8_t *into, Summary *out
) noexcept nogil:
    """Convert magic 1 to magic 0. `into` must hold `size` bytes."""
    cdef Message one
    cdef int fault
    cdef int64_t offset
    cdef Py_ssize_t length
    cdef uint8_t *to = into
    begin(out, 1)
    while out.at < size:
        fault = verify(data, size, out.at, 1, True, &one)
        if fault:
            return fault
        if sum_overflows(one.offset, shift, &offset) or offset <= out.last_offset:
            return OFFSET
        if out.count == 0:
            out.first_offset = offset
        out.last_offset = offset
        out.count += 1
        length = one.end - one.fields
        put64(to, <uint64_t>offset)
        put32(to + 8, <uint32_t>(length + TIMESTAMP_AT - LOG_OVERHEAD))
        to[MAGIC_AT] = 0
        to[ATTRIBUTES_AT] = 0
        memcpy(to + TIMESTAMP_AT, data + one.fields, length)
        put32(to + CRC_AT, kopgate_crc32(to + CRC_FROM, length + TIMESTAMP_AT - CRC_FROM))
        to += length + TIMESTAMP_AT
        out.at = one.end
    out.written = to - into
    return OK
