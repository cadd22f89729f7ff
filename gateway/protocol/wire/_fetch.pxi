# Part of _plain.pyx: the codec of Fetch. See `gateway.protocol.wire.fetch_codec`.

cdef enum:
    FIRST_FLEXIBLE_FETCH = 12
    # The fixed part of a row in the reply, its lengths and its tagged fields, at most.
    MOST_ROW_BYTES = 64


def fetch_request(frame, Py_ssize_t position, int version, make, make_topic, make_partition):
    """Return the request, or None. `make` and the others create its values.

    See `fetch_codec.read_fetch`.
    """
    cdef Source source
    cdef const unsigned char* p
    cdef int64_t topics, partitions, indexes, size, left = MOST_PARTITIONS
    cdef int32_t replica_id = -1, max_wait_ms, min_bytes, max_bytes = 0x7FFFFFFF
    cdef int32_t session_id = 0, session_epoch = -1
    cdef int isolation_level = 0
    cdef bint compact = version >= FIRST_FLEXIBLE_FETCH
    cdef Py_ssize_t fixed = (
        (4 if version < 15 else 0)
        + 8
        + (4 if version >= 3 else 0)
        + (1 if version >= 4 else 0)
        + (8 if version >= 7 else 0)
    )
    if type(frame) is not bytearray or position < 0:
        return None
    source.bytes = <const unsigned char*>PyByteArray_AS_STRING(frame)
    source.size, source.at = PyByteArray_GET_SIZE(frame), position
    if not has(&source, fixed):
        return None
    p = source.bytes + position
    source.at += fixed
    if version < 15:
        replica_id = <int32_t>be32(p)
        p += 4
    max_wait_ms, min_bytes = <int32_t>be32(p), <int32_t>be32(p + 4)
    p += 8
    if version >= 3:
        max_bytes = <int32_t>be32(p)
        p += 4
    if version >= 4:
        isolation_level = p[0]
        p += 1
    if version >= 7:
        session_id, session_epoch = <int32_t>be32(p), <int32_t>be32(p + 4)
    if not length(&source, compact, True, &topics) or not 0 <= topics <= MOST_TOPICS:
        return None
    rows = []
    for _ in range(topics):
        topic = topic_name(&source, version, compact)
        if topic is None or not length(&source, compact, True, &partitions):
            return None
        if not 0 <= partitions <= left:
            return None
        left -= partitions
        cells = []
        for _ in range(partitions):
            cell = asked_partition(&source, version, compact, make_partition)
            if cell is None:
                return None
            cells.append(cell)
        if compact and not no_tags(&source):
            return None
        rows.append(make_topic(topic, cells))
    forgotten = []
    if version >= 7:
        if not length(&source, compact, True, &topics) or not 0 <= topics <= MOST_TOPICS:
            return None
        left = MOST_PARTITIONS
        for _ in range(topics):
            topic = topic_name(&source, version, compact)
            if topic is None or not length(&source, compact, True, &indexes):
                return None
            if not 0 <= indexes <= left or not has(&source, 4 * indexes):
                return None
            left -= indexes
            cells = []
            for _ in range(indexes):
                cells.append(<int32_t>be32(source.bytes + source.at))
                source.at += 4
            if compact and not no_tags(&source):
                return None
            forgotten.append((topic, cells))
    rack_id = ""
    if version >= 11:
        if not length(&source, compact, False, &size):
            return None
        if size > 0:
            if not has(&source, size):
                return None
            try:
                rack_id = text(&source, size)
            except UnicodeDecodeError:
                return None
    return make(
        version,
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        rows,
        forgotten,
        rack_id,
    )


cdef asked_partition(Source* source, int version, bint compact, make):
    """Return a partition of the request, or None."""
    cdef const unsigned char* p = source.bytes + source.at
    cdef Py_ssize_t size = (
        16 + (8 if version >= 5 else 0) + (4 if version >= 9 else 0) + (4 if version >= 12 else 0)
    )
    cdef int32_t index, leader_epoch = -1, fetched_epoch = -1
    cdef int64_t offset
    if not has(source, size):
        return None
    source.at += size
    if compact and not no_tags(source):
        return None
    index = <int32_t>be32(p)
    p += 4
    if version >= 9:
        leader_epoch = <int32_t>be32(p)
        p += 4
    offset = be64(p)
    p += 8
    if version >= 12:
        fetched_epoch = <int32_t>be32(p)
        p += 4
    if version >= 5:
        # The log start offset of a replica.
        p += 8
    return make(index, offset, <int32_t>be32(p), leader_epoch, fetched_epoch)


def fetch_reply(response, int version):
    """Return the body of the reply as a list of buffers, or None.

    See `fetch_codec.write_fetch_response`.
    """
    cdef Sink sink
    cdef bint compact = version >= FIRST_FLEXIBLE_FETCH
    cdef Py_ssize_t most = 32, start = 0
    cdef int64_t size
    cdef list names = [], buffers = []
    if response.node_endpoints:
        return None
    topics = response.topics
    for topic, rows in topics:
        name = topic if type(topic) is bytes else (<str?>topic).encode()
        if len(name) > 32767:
            return None
        names.append(name)
        most += 16 + len(name) + MOST_ROW_BYTES * <Py_ssize_t>len(rows)
    glue = PyBytes_FromStringAndSize(NULL, most)
    sink.bytes, sink.at = <unsigned char*>PyBytes_AS_STRING(glue), 0
    if version >= 1:
        put32(&sink, response.throttle_time_ms)
    if version >= 7:
        put16(&sink, response.error_code)
        put32(&sink, response.session_id)
    put_length(&sink, len(names), compact, True)
    for name, (topic, rows) in zip(names, topics):
        put_name(&sink, name, type(topic) is bytes, compact)
        put_length(&sink, len(rows), compact, True)
        for row in rows:
            if row.aborted or row.diverging is not None or row.current_leader is not None:
                return None
            put32(&sink, row.index)
            put16(&sink, row.error_code)
            put64(&sink, row.high_watermark)
            if version >= 4:
                put64(&sink, row.last_stable_offset)
            if version >= 5:
                put64(&sink, row.log_start_offset)
            if version >= 4:
                put_length(&sink, -1 if row.aborted is None else 0, compact, True)
            if version >= 11:
                put32(&sink, -1)
            records, size = row.records, 0
            for piece in records:
                size += len(piece)
            if size > 0x7FFFFFFF:
                return None
            put_length(&sink, size, compact, True)
            if size:
                buffers.append(glue_of(&sink, &start))
                buffers.extend(records)
            if compact:
                put_length(&sink, -1, True, False)
        if compact:
            put_length(&sink, -1, True, False)
    if compact:
        put_length(&sink, -1, True, False)
    buffers.append(glue_of(&sink, &start))
    return buffers


cdef glue_of(Sink* sink, Py_ssize_t* start):
    """Return what was written since `start`."""
    cdef Py_ssize_t begun = start[0]
    start[0] = sink.at
    return PyBytes_FromStringAndSize(<const char*>sink.bytes + begun, sink.at - begun)
