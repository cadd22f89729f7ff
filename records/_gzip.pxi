# gzip as Kafka clients write it, with ISA-L's functions; included by _kernel.pyx.
#
# One member with the shortest header. Header, checksum and size are read here, so that only the
# first fields of ISA-L's structures are used: in igzip_lib.h they are the same from 2.24 on.

cdef struct Inflation:
    # The start of inflate_state.
    uint8_t *next_out
    uint32_t avail_out
    uint32_t total_out
    const uint8_t *next_in
    uint64_t read_in
    uint32_t avail_in
    int32_t read_in_length

cdef struct Deflation:
    # The start of isal_zstream.
    const uint8_t *next_in
    uint32_t avail_in
    uint32_t total_in
    uint8_t *next_out
    uint32_t avail_out
    uint32_t total_out
    void *hufftables
    uint32_t level
    uint32_t level_buf_size
    uint8_t *level_buf
    uint16_t end_of_stream
    uint16_t flush
    uint16_t gzip_flag
    uint16_t hist_bits

# isal_inflate_init, isal_inflate_stateless, isal_deflate_stateless_init and isal_deflate_stateless.
ctypedef void (*InflateInit)(Inflation *state) noexcept nogil
ctypedef int (*Inflate)(Inflation *state) noexcept nogil
ctypedef void (*DeflateInit)(Deflation *stream) noexcept nogil
ctypedef int (*Deflate)(Deflation *stream) noexcept nogil

cdef InflateInit gzip_unpack_init = NULL
cdef Inflate gzip_unpack = NULL
cdef size_t gzip_unpack_bytes = 0
cdef DeflateInit gzip_pack_init = NULL
cdef Deflate gzip_pack = NULL
cdef size_t gzip_pack_bytes = 0

cdef enum:
    GZIP_HEADER = 10
    GZIP_TRAILER = 8
    # 258 bytes for two bits.
    GZIP_EXPANSION = 1032
    # Of blocks that are not compressed.
    STORED_BLOCK = 65535
    STORED_OVERHEAD = 5
    # That of codecs.py.
    GZIP_LEVEL = 1
    # ISAL_DEF_LVL1_SMALL: more memory only makes longer blocks.
    GZIP_LEVEL_BYTES = 84 * 1024
    IGZIP_GZIP = 1

cdef bint unpack_gzip(
    Places *on, const uint8_t *data, Py_ssize_t size, int64_t limit, Room *into
) noexcept nogil:
    """Decompress a stream of one member to at most `limit` bytes. False for any other stream."""
    cdef Inflation *state
    cdef int64_t length
    into.used = 0
    # Deflate, and no name, comment or other field.
    if size < GZIP_HEADER + GZIP_TRAILER or memcmp(data, b"\x1f\x8b\x08\x00", 4) != 0:
        return False
    length = get32_little(data + size - 4)
    if length > limit or length > INT32_MAX or length > <int64_t>size * GZIP_EXPANSION:
        return False
    if on.unpack_state == NULL:
        on.unpack_state = calloc(1, gzip_unpack_bytes)
        if on.unpack_state == NULL:
            return False
        gzip_unpack_init(<Inflation *>on.unpack_state)
    if not widen(into, length + 1):
        return False
    state = <Inflation *>on.unpack_state
    state.next_in, state.avail_in = data + GZIP_HEADER, <uint32_t>(size - GZIP_HEADER)
    state.next_out, state.avail_out = into.bytes, <uint32_t>length
    if gzip_unpack(state) or state.total_out != length or state.avail_in != GZIP_TRAILER:
        return False
    if kopgate_crc32(into.bytes, length) != get32_little(data + size - GZIP_TRAILER):
        return False
    into.used = length
    return True

cdef size_t gzip_room(Py_ssize_t size) noexcept nogil:
    """Bytes that `pack_gzip` may write for content of `size` bytes."""
    return GZIP_HEADER + size + STORED_OVERHEAD * (size // STORED_BLOCK + 1) + GZIP_TRAILER

cdef inline size_t level_buffer_at() noexcept nogil:
    # Behind the stream, aligned as that is.
    return (gzip_pack_bytes + 63) & ~<size_t>63

cdef uint8_t *pack_gzip(
    Places *on, const uint8_t *data, Py_ssize_t size, uint8_t *to
) noexcept nogil:
    """Write content as a stream of one member, and return the end; NULL if that fails."""
    cdef Deflation *stream
    if size > INT32_MAX:
        return NULL
    if on.pack_stream == NULL:
        on.pack_stream = calloc(1, level_buffer_at() + GZIP_LEVEL_BYTES)
        if on.pack_stream == NULL:
            return NULL
    stream = <Deflation *>on.pack_stream
    gzip_pack_init(stream)
    stream.next_in, stream.avail_in = data, <uint32_t>size
    stream.next_out, stream.avail_out = to, <uint32_t>gzip_room(size)
    stream.level, stream.level_buf_size = GZIP_LEVEL, GZIP_LEVEL_BYTES
    stream.level_buf = <uint8_t *>on.pack_stream + level_buffer_at()
    stream.end_of_stream, stream.gzip_flag = 1, IGZIP_GZIP
    if gzip_pack(stream):
        return NULL
    return to + stream.total_out
