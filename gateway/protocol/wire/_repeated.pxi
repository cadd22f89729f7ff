# Part of _plain.pyx: what dispatch does for a Fetch with the same header as the last one of its
# connection. Its handler decides everything about it; only the steps around the handler are here.

from types import CoroutineType

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int descriptor, const msghdr* message, int flags)

cdef enum:
    # Buffers of a reply that are sent in one call without a Python object for each.
    MOST_BUFFERS = 96


cdef class RepeatedWork:
    """What is needed besides the route's handler.

    `decode(route, frame, header, scope)` returns the request. `make(size, began, api key, version,
    correlation id, route)` returns what dispatch has for each request. Larger frames than
    `most_bytes` are decoded on another thread. `values` are the classes of `fetch_codec` for a
    request, a topic, a partition, and the reply.
    """

    cdef object decode, make, make_request, make_topic, make_partition, reply_class
    cdef Py_ssize_t most_bytes

    def __init__(self, decode, make, Py_ssize_t most_bytes, tuple values not None):
        self.decode, self.make, self.most_bytes = decode, make, most_bytes
        self.make_request, self.make_topic, self.make_partition, self.reply_class = values

    cdef read(self, route, frame, header, int version):
        """Return the request, as `decode` does without a scope."""
        request = fetch_request(
            frame, header.body, version, self.make_request, self.make_topic, self.make_partition
        )
        return self.decode(route, frame, header, None) if request is None else request

    cdef list write(self, route, reply, int version):
        """Return the body of the reply, as `encode` of the route does."""
        body = fetch_reply(reply, version) if type(reply) is self.reply_class else None
        return route.encode(reply, version) if body is None else body


cdef bint serve_repeated(
    DispatchState state, PlainContext served, const unsigned char* p, Py_ssize_t end
) except -1:
    """Serve these bytes, if they are one request like the last one.

    Otherwise returns False, and has changed nothing.
    """
    cdef RepeatedWork work = served.repeated
    cdef Py_ssize_t size = end - 4
    if (
        size < 0
        or size != <int32_t>be32(p)
        or size >= work.most_bytes
        or size > served.most_bytes
        or not has_header(p + 4, size, served.encoded)
        or state._unanswered
        or not state.may_start_plain(served)
    ):
        return False
    frame = PyByteArray_FromStringAndSize(<const char*>p + 4, size)
    state._turn_began = served.seconds()
    state._flow.arrived(size, 1)
    state._long_poll._has_partial_request = False
    state._is_advancing = True
    try:
        start_repeated(state, served, frame, <int32_t>be32(p + 8))
    finally:
        state._is_advancing = False
    if state._session.is_closed or (state._in_flight and state._in_flight[0].reply is not None):
        state._send()
    if not state._flow.is_paused:
        state._flow.check_limits()
    return True


cdef start_repeated(DispatchState state, PlainContext served, frame, int32_t correlation_id):
    """As `Dispatch._start`."""
    cdef RepeatedWork work = served.repeated
    header, route = served.header, served.route
    request = work.make(
        PyByteArray_GET_SIZE(frame),
        0 if state._ticks is None else state._ticks(),
        header.api_key,
        served.version,
        correlation_id,
        route,
    )
    state._in_flight.append(request)
    state._unanswered += 1
    state._is_serving = True
    refusal = None
    try:
        if state._is_recorded:
            state._traffic.request_started(request, header)
        reply = route.handler(work.read(route, frame, header, served.version), served.caller)
        if type(reply) is CoroutineType:
            state._run(request, reply)
        elif not answer_repeated(
            state, request, reply, work, route, served.version, correlation_id
        ):
            state._served(request, reply)
    except Exception as failure:
        refusal = failure
    if refusal is not None:
        state._failed(request, refusal)


cdef bint answer_repeated(
    DispatchState state,
    request,
    reply,
    RepeatedWork work,
    route,
    int version,
    int32_t correlation_id,
) except -1:
    """As `Dispatch._served`, and send the reply.

    Returns False, and has changed nothing, if it is not the common case.
    """
    cdef list body, buffers
    cdef Py_ssize_t size = 0
    cdef Sink sink
    if (
        state._is_closed
        or state._session.is_closed
        or request.reply is not None
        or len(state._in_flight) != 1
    ):
        return False
    body = work.write(route, reply, version)
    for buffer in body:
        size += len(buffer)
    tagged = bool(route.has_tagged_header)
    head = PyBytes_FromStringAndSize(NULL, 9 if tagged else 8)
    sink.bytes, sink.at = <unsigned char*>PyBytes_AS_STRING(head), 0
    put32(&sink, <int32_t>(size + PyBytes_GET_SIZE(head) - 4))
    put32(&sink, correlation_id)
    if tagged:
        sink.bytes[8] = 0
    size += PyBytes_GET_SIZE(head)
    buffers = [head]
    buffers += body
    state._is_serving = False
    state._unanswered -= 1
    state._in_flight.clear()
    if state._is_recorded:
        state._traffic.request_answered(request, reply, size)
    if not (
        isinstance(state._transport, ConnectionState)
        and (<ConnectionState>state._transport).send_unjoined(buffers)
    ):
        state._transport.write(buffers)
    state._flow.finished(request.size, 1)
    return True


cdef Py_ssize_t send_buffers(int descriptor, list buffers, Py_ssize_t* total) except -2:
    """Send at most MOST_BUFFERS buffers. Returns how many of the `total` bytes were sent, or -1."""
    cdef Py_buffer views[MOST_BUFFERS]
    cdef iovec parts[MOST_BUFFERS]
    cdef msghdr message
    cdef Py_ssize_t sent, number = 0, count = len(buffers)
    total[0] = 0
    memset(&message, 0, sizeof(message))
    try:
        while number < count:
            PyObject_GetBuffer(buffers[number], views + number, PyBUF_SIMPLE)
            parts[number].iov_base, parts[number].iov_len = views[number].buf, views[number].len
            total[0] += views[number].len
            number += 1
        message.msg_iov, message.msg_iovlen = parts, count
        with nogil:
            sent = sendmsg(descriptor, &message, MSG_NOSIGNAL)
    finally:
        while number:
            number -= 1
            PyBuffer_Release(views + number)
    return sent
