# Conversion from and to magic-2 records; included by _kernel.pyx.

cdef inline bint get_varint(
    const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int32_t *value
) noexcept nogil:
    """Read a zigzag varint of at most 32 bits that ends by `end`; False if there is none."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 35:
        byte = data[at[0]]
        at[0] += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int32_t>(<uint32_t>(raw >> 1) ^ (0 - <uint32_t>(raw & 1)))
            return raw <= 0xFFFFFFFFU
        shift += 7
    return False

cdef inline bint get_varlong(
    const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int64_t *value
) noexcept nogil:
    """Read a zigzag varint of at most 64 bits that ends by `end`; False if there is none."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < end and shift < 70:
        byte = data[at[0]]
        at[0] += 1
        if shift == 63 and byte > 1:
            return False
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            return True
        shift += 7
    return False

cdef inline bint get_sized(
    const uint8_t *data, Py_ssize_t *at, Py_ssize_t end, int32_t *size
) noexcept nogil:
    """Read the length (-1: null) of a field that ends by `end` and move `at` to its bytes.

    False if the field does not fit.
    """
    return get_varint(data, at, end, size) and size[0] >= -1 and size[0] <= end - at[0]

cdef inline bint skip_headers(const uint8_t *data, Py_ssize_t *at, Py_ssize_t end) noexcept nogil:
    """Skip the headers, which must fill the record up to `end`; False if they do not."""
    cdef int32_t left, size
    if not get_varint(data, at, end, &left) or left < 0:
        return False
    while left > 0:
        if not get_sized(data, at, end, &size) or size < 0:
            return False
        at[0] += size
        if not get_sized(data, at, end, &size):
            return False
        if size > 0:
            at[0] += size
        left -= 1
    return at[0] == end

cdef int down_records(
    const uint8_t *data, Py_ssize_t size, int64_t count, int64_t base_offset, int64_t last_delta,
    int64_t base_timestamp, bint has_time, int64_t append_time, int magic, bint is_relative,
    uint8_t *into, Summary *out,
) noexcept nogil:
    """Convert magic 2 to magic 0 or 1.

    `into` must hold `size` plus GROWTH_V0 or GROWTH_V1 bytes per record, and `size` must hold
    `count` records of the minimum size.
    """
    cdef Py_ssize_t at = 0, end, key_at, value_at, content
    cdef int64_t delta, timestamp, offset
    cdef int32_t claimed, offset_delta, key_size, value_size, previous = -1
    cdef uint8_t *to = into
    cdef uint8_t *message
    begin(out, magic)
    while out.count < count:
        out.at = at
        if at == size:
            return COUNT
        if not get_varint(data, &at, size, &claimed):
            return TRUNCATED
        if claimed < SMALLEST_RECORD - 1:
            return SIZE
        if claimed > size - at:
            return TRUNCATED
        end = at + claimed
        at += 1
        if not get_varlong(data, &at, end, &delta):
            return FIELDS
        timestamp = append_time
        if not has_time and sum_overflows(base_timestamp, delta, &timestamp):
            return TIMESTAMP
        if not get_varint(data, &at, end, &offset_delta):
            return FIELDS
        if offset_delta <= previous or offset_delta > last_delta:
            return OFFSET
        previous = offset_delta
        if not get_sized(data, &at, end, &key_size):
            return FIELDS
        key_at = at
        at += key_size if key_size > 0 else 0
        if not get_sized(data, &at, end, &value_size):
            return FIELDS
        value_at = at
        at += value_size if value_size > 0 else 0
        if not skip_headers(data, &at, end):
            return FIELDS

        out.last_offset = base_offset + offset_delta
        if out.count == 0:
            out.first_offset = out.last_offset
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        out.count += 1

        message = to
        offset = out.last_offset - out.first_offset if is_relative else out.last_offset
        put64(message, <uint64_t>offset)
        message[MAGIC_AT] = <uint8_t>magic
        message[ATTRIBUTES_AT] = APPEND_TIME_BIT if has_time and magic else 0
        to += TIMESTAMP_AT
        if magic:
            put64(to, <uint64_t>timestamp)
            to += 8
        put32(to, <uint32_t>key_size)
        to += 4
        if key_size > 0:
            memcpy(to, data + key_at, key_size)
            to += key_size
        put32(to, <uint32_t>value_size)
        to += 4
        if value_size > 0:
            memcpy(to, data + value_at, value_size)
            to += value_size
        content = to - message
        put32(message + 8, <uint32_t>(content - LOG_OVERHEAD))
        put32(message + CRC_AT, kopgate_crc32(message + CRC_FROM, content - CRC_FROM))
    out.at = at
    if at != size:
        return COUNT
    out.written = to - into
    return OK

cdef inline uint8_t *put_varint(uint8_t *to, int64_t value) noexcept nogil:
    """Write a zigzag varint: at most 10 bytes, at most 5 for a 32-bit value."""
    cdef uint64_t raw = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    while raw >= 0x80:
        to[0] = <uint8_t>(raw & 0x7F | 0x80)
        to += 1
        raw >>= 7
    to[0] = <uint8_t>raw
    return to + 1

cdef inline int varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    cdef int size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size

cdef int up_newer(
    const uint8_t *data, Py_ssize_t size, int magic, int64_t shift, int64_t base_offset,
    int64_t base_timestamp, bint has_time, int64_t append_time, uint8_t *into, Summary *out,
) noexcept nogil:
    """Convert magic 0 or 1 to magic 2.

    `into` must hold the messages without their overhead, plus RECORD_OVERHEAD bytes per record.
    """
    cdef Message one
    cdef int fault
    cdef int64_t offset, timestamp, delta, body
    cdef Py_ssize_t key_size, value_size
    cdef uint8_t *to = into
    begin(out, magic)
    while out.at < size:
        fault = verify(data, size, out.at, magic, True, &one)
        if fault:
            return fault
        if sum_overflows(one.offset, shift, &offset) or offset <= out.last_offset:
            return OFFSET
        if offset < base_offset or offset - base_offset > INT32_MAX:
            return OFFSET
        if out.count == 0:
            out.first_offset = offset
        out.last_offset = offset
        timestamp = append_time if has_time else one.timestamp
        if timestamp > out.max_timestamp:
            out.max_timestamp = timestamp
        if difference_overflows(timestamp, base_timestamp, &delta):
            return TIMESTAMP
        key_size = one.key_size if one.key_size > 0 else 0
        value_size = one.value_size if one.value_size > 0 else 0
        offset -= base_offset
        body = (
            2 + varint_size(delta) + varint_size(offset) + varint_size(one.key_size)
            + varint_size(one.value_size) + key_size + value_size
        )
        to = put_varint(to, body)
        to[0] = 0
        to = put_varint(to + 1, delta)
        to = put_varint(to, offset)
        to = put_varint(to, one.key_size)
        memcpy(to, data + one.key_at, key_size)
        to = put_varint(to + key_size, one.value_size)
        memcpy(to, data + one.value_at, value_size)
        to += value_size
        to[0] = 0
        to += 1
        out.count += 1
        out.at = one.end
    out.written = to - into
    return OK
