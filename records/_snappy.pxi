# snappy as Kafka clients write it, with the library's functions; included by _kernel.pyx.
#
# The rules and limits are those of codecs.py. The functions used allocate no memory, so they throw
# no C++ exception.

# snappy::GetUncompressedLength, snappy::RawUncompress and snappy::internal::CompressFragment. C++
# returns a bool in one byte.
ctypedef uint8_t (*SnappyLength)(
    const char *packed, size_t packed_bytes, size_t *length
) noexcept nogil
ctypedef uint8_t (*SnappyUnpack)(
    const char *packed, size_t packed_bytes, char *into
) noexcept nogil
ctypedef char *(*SnappyPack)(
    const char *content, size_t content_bytes, char *into, uint16_t *table, int entries
) noexcept nogil

cdef SnappyLength snappy_length = NULL
cdef SnappyUnpack snappy_unpack = NULL
cdef SnappyPack snappy_pack = NULL
cdef size_t snappy_block_bytes = 0

cdef enum:
    XERIAL_MAGIC = 8
    XERIAL_HEADER = 16
    XERIAL_BLOCK = 32 * 1024
    MAX_XERIAL_BLOCKS = 100_000
    SNAPPY_EXPANSION = 22
    # Entries of the compressor's table: a power of two, as many as the block has bytes, within
    # these limits. They are those of all versions.
    SMALLEST_TABLE = 1 << 8
    LARGEST_TABLE = 1 << 14
    # Length, and the varint with the size of a block.
    BLOCK_OVERHEAD = 4 + 3

cdef bint unpack_snappy(
    const uint8_t *data, Py_ssize_t size, int64_t limit, Room *into
) noexcept nogil:
    """Decompress one block, or blocks in the framing of snappy-java, to at most `limit` bytes.

    False for content that `codecs.decompress` refuses.
    """
    cdef Py_ssize_t at = XERIAL_HEADER, block, blocks = 0
    into.used = 0
    if size < XERIAL_MAGIC or memcmp(data, b"\x82SNAPPY\x00", XERIAL_MAGIC) != 0:
        return unpack_snappy_block(data, size, limit, into)
    if size < XERIAL_HEADER:
        return False
    while at < size:
        if size - at < 4:
            return False
        block = get32(data + at)
        at += 4
        blocks += 1
        if block == 0 or block > size - at or blocks > MAX_XERIAL_BLOCKS:
            return False
        if not unpack_snappy_block(data + at, block, limit, into):
            return False
        at += block
    return True

cdef bint unpack_snappy_block(
    const uint8_t *data, Py_ssize_t size, int64_t limit, Room *into
) noexcept nogil:
    """Append a block's content to `into`, of at most `limit` bytes in total."""
    cdef size_t length = 0
    if not snappy_length(<const char *>data, size, &length):
        return False
    if length > SNAPPY_EXPANSION * <size_t>size or <int64_t>length > limit - <int64_t>into.used:
        return False
    if not widen(into, length + 1):
        return False
    if not snappy_unpack(<const char *>data, size, <char *>into.bytes + into.used):
        return False
    into.used += length
    return True

cdef size_t snappy_room(Py_ssize_t size) noexcept nogil:
    """Bytes that `pack_snappy` may write for content of `size` bytes."""
    return XERIAL_HEADER + (size // XERIAL_BLOCK + 1) * (BLOCK_OVERHEAD + snappy_block_bytes)

cdef uint8_t *pack_snappy(
    void *table, const uint8_t *data, Py_ssize_t left, uint8_t *to
) noexcept nogil:
    """Write content in the framing of snappy-java, and return the end."""
    cdef Py_ssize_t piece, rest
    cdef uint8_t *block
    cdef int entries
    memcpy(to, b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01", XERIAL_HEADER)
    to += XERIAL_HEADER
    while left > 0:
        piece = rest = min(left, <Py_ssize_t>XERIAL_BLOCK)
        entries = SMALLEST_TABLE
        while entries < piece and entries < LARGEST_TABLE:
            entries *= 2
        memset(table, 0, entries * sizeof(uint16_t))
        block = to + 4
        to = block
        while rest >= 0x80:
            to[0] = <uint8_t>(rest & 0x7F | 0x80)
            to += 1
            rest >>= 7
        to[0] = <uint8_t>rest
        to = <uint8_t *>snappy_pack(
            <const char *>data, piece, <char *>to + 1, <uint16_t *>table, entries
        )
        put32(block - 4, <uint32_t>(to - block))
        data += piece
        left -= piece
    return to
