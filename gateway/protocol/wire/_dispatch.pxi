# Part of _plain.pyx: what dispatch does for a Produce request like the last one of its connection.
#
# The classes named State hold what the compiled code reads and changes for each request, as fields.
# Their subclasses in Python have all other methods. `gateway.protocol.wire.compiled` has the same
# attributes for Python.

from cpython.buffer cimport PyBUF_READ
from cpython.mem cimport PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EAGAIN, EINTR, ENOBUFS, errno

from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST

from storage.bridge import after_calls

cdef extern from "<sys/socket.h>" nogil:
    int MSG_NOSIGNAL
    ssize_t recv(int descriptor, void* at, size_t size, int flags)
    ssize_t send(int descriptor, const void* at, size_t size, int flags)

cdef enum:
    # As READ_BYTES of `gateway.net.transport`.
    MOST_READ = 262144
    # As MAX_REQUESTS_PER_TURN of `gateway.protocol.dispatch`.
    MOST_AT_ONCE = 100

#: As MAX_TURN_SECONDS of `gateway.protocol.dispatch`.
cdef double MOST_SECONDS = 0.005

#: As that of `gateway.protocol.long_poll`.
MIN_WAIT_SECONDS = 0.001

cdef unsigned char* arrived = <unsigned char*>PyMem_Malloc(MOST_READ)
if arrived == NULL:
    raise MemoryError


cdef class BudgetState:
    cdef public int64_t limit, request_bytes, partial_bytes
    cdef public object unblocked


cdef class OutgoingState:
    cdef public int64_t limit, unsent, reserved

    def reserve(self, int64_t wanted):
        """As `OutgoingBytes.reserve`."""
        cdef int64_t free = self.limit - self.unsent - self.reserved
        if free < 4 or wanted <= 0:
            return 0
        if wanted > free // 4:
            wanted = free // 4
        self.reserved += wanted
        return wanted

    def release(self, int64_t reserved):
        """As `OutgoingBytes.release`."""
        self.reserved -= reserved


cdef class FlowState:
    cdef public BudgetState budget
    cdef public int64_t _bytes, _requests, _max_bytes, _max_requests, partial_bytes
    cdef public object _waiting_size
    cdef public bint is_paused

    cdef arrived(self, int64_t size, int64_t requests):
        """As `ConnectionFlow.requests_arrived`."""
        self._bytes += size
        self._requests += requests
        self.budget.request_bytes += size
        if self.budget.unblocked is self:
            self.budget.unblocked = None

    cdef finished(self, int64_t size, int64_t requests):
        """As `ConnectionFlow.requests_finished`."""
        if self.is_paused:
            self.requests_finished(size, requests)
            return
        self._bytes -= size
        self._requests -= requests
        self.budget.request_bytes -= size

    cdef check_limits(self):
        cdef BudgetState budget = self.budget
        if (
            self._waiting_size is not None
            or self._bytes >= self._max_bytes
            or self._requests >= self._max_requests
            or budget.request_bytes + budget.partial_bytes >= budget.limit
        ):
            self.pause_if_over_limit()


cdef class SessionState:
    cdef public bint is_ready, is_closed
    cdef public object expires_at, scope


cdef class LongPollState:
    cdef public bint _has_partial_request, _overlaps
    cdef public object _limit

    cdef produce_served(self):
        """As `LongPoll.request_started`, for Produce requests that were not queued."""
        if not self._overlaps:
            self._limit = MIN_WAIT_SECONDS


cdef class PlainWork:
    """What the handler of Produce does for plain requests where Python code is needed.

    `write` is the operation that clients need, `most` the number of partitions of one request.
    `queue(partition, records, batch, now, name of the topic)` queues a batch that is not the common
    case: it returns the append or the error. `has_refused(caller)` tells whether batches of
    idempotent producers were refused before. `respond(request, caller)` returns the response, or
    the failure, if not all appends succeeded; `respond_late` is the same for `timed_out`. The
    producers of a partition with `batches` unsaved batches or `bytes` are to be saved.
    """

    cdef object write, queue, has_refused, respond, respond_late
    cdef Py_ssize_t most
    cdef int64_t batches, bytes

    def __init__(
        self,
        write,
        queue,
        has_refused,
        respond,
        respond_late,
        *,
        Py_ssize_t most,
        int64_t batches,
        int64_t bytes,
    ):
        self.write, self.queue, self.has_refused = write, queue, has_refused
        self.respond, self.respond_late = respond, respond_late
        self.most, self.batches, self.bytes = most, batches, bytes


cdef class PlainContext:
    """What plain requests of a connection need, as long as they have the same header.

    `encoded` are the bytes of the header. `count_usage(size)` returns the usage of a Produce; it is
    None for a client without quotas. The context is valid while the version of all clients' usage
    is `usage_version`.
    """

    cdef readonly bytes encoded
    cdef readonly object header, route, caller
    # Of Produce or of Fetch; the other one is None.
    cdef PlainWork work
    cdef RepeatedWork repeated
    cdef SessionState session
    cdef readonly object usage_version
    cdef object broker, usage, count_usage, topics, refused, seconds, now, may_serve
    cdef int version
    cdef bint is_recorded
    cdef Py_ssize_t most_bytes
    # The last topic as it was sent, and as a name or an id. `states` is the table in which it was
    # found; None if it cannot be looked up there.
    cdef bytes sent_topic
    cdef object topic
    cdef dict states

    def __init__(
        self, bytes encoded not None, header, route, caller, bint is_recorded, work,
        count_usage=None,
    ):
        broker = caller.broker
        self.encoded, self.header, self.route, self.caller = encoded, header, route, caller
        self.is_recorded, self.session = is_recorded, caller.session
        self.version = caller.api_version
        self.broker, self.usage, self.count_usage = broker, broker.quota_usage, count_usage
        self.usage_version = self.usage.version
        if isinstance(work, RepeatedWork):
            self.repeated = work
        else:
            self.work = <PlainWork?>work
            self.topics = broker.topics
            self.refused = self.topics.refused_batches.refused
        self.seconds, self.now = broker.clock.seconds, broker.now
        self.most_bytes = broker.settings.socket_request_max_bytes

    cdef bint has_topic_at(self, Source* source) noexcept:
        """Whether the last topic was sent again; then it is read."""
        cdef Py_ssize_t size
        if self.sent_topic is None:
            return False
        size = PyBytes_GET_SIZE(self.sent_topic)
        if not has(source, size):
            return False
        if memcmp(source.bytes + source.at, PyBytes_AS_STRING(self.sent_topic), size) != 0:
            return False
        source.at += size
        return True

    cdef keep_topic(self, topic, const unsigned char* at, Py_ssize_t size):
        self.sent_topic = PyBytes_FromStringAndSize(<const char*>at, size)
        self.topic, self.states = topic, None

    cdef dict open_partitions(self, topic):
        """As `Topics.open_partitions`."""
        cdef dict partitions
        if topic is self.topic and self.states is not None:
            state = self.states.get(topic)
            if state is None or not (self.may_serve is None or self.may_serve()):
                return None
            return state.partitions
        partitions = self.topics.open_partitions(topic)
        if partitions is not None and topic is self.topic:
            self.states, self.may_serve = self.topics.plain_lookup(topic)
        return partitions


cdef class DispatchState:
    cdef public SessionState _session
    cdef public FlowState _flow
    cdef public LongPollState _long_poll
    cdef public object _transport, _traffic, _ticks, _mute, _expiry
    cdef public PlainContext _plain_context
    cdef public list _queued_frames, _in_flight
    cdef public Py_ssize_t _unanswered, _ready_bytes
    cdef public double _turn_began, _expires_at
    cdef public bint _is_serving, _is_writing_held, _is_closed, _is_advancing
    cdef public bint _is_continuation_scheduled, _is_recorded, _is_turn_over

    def serve_chunk(self, chunk):
        """Start the requests at the start of `chunk` that are like the last one.

        Returns how many bytes they take: 0 if there is none. The others are for `frames_received`.
        """
        cdef Py_buffer buffer
        if self._plain_context is None:
            return 0
        PyObject_GetBuffer(chunk, &buffer, PyBUF_SIMPLE)
        try:
            return self.serve_bytes(<const unsigned char*>buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)

    cdef Py_ssize_t serve_bytes(self, const unsigned char* p, Py_ssize_t end) except -1:
        cdef Py_ssize_t position = 0
        cdef int32_t size
        cdef int number = 0
        cdef PlainContext served = self._plain_context
        if served is None or self._queued_frames or self._ready_bytes or self._is_advancing:
            return 0
        if served.repeated is not None:
            return end if serve_repeated(self, served, p, end) else 0
        self._is_advancing = True
        try:
            while end - position >= 4 and number < MOST_AT_ONCE:
                size = <int32_t>be32(p + position)
                if size < 0 or size > served.most_bytes or size > end - position - 4:
                    break
                if not has_header(p + position + 4, size, served.encoded):
                    break
                if not self.may_start_plain(served):
                    break
                if not number:
                    self._turn_began = served.seconds()
                frame = PyByteArray_FromStringAndSize(<const char*>p + position + 4, size)
                self._flow.arrived(size, 1)
                if not self.start_plain(frame, served):
                    self._flow.finished(size, 1)
                    break
                number += 1
                position += 4 + size
                if position < end and served.seconds() > self._turn_began + MOST_SECONDS:
                    self._is_turn_over = True
                    break
            else:
                self._is_turn_over = number == MOST_AT_ONCE and position < end
        finally:
            self._is_advancing = False
        if number:
            self._long_poll.produce_served()
            if self._session.is_closed or (
                self._in_flight and self._in_flight[0].reply is not None
            ):
                self._send()
            if not self._flow.is_paused:
                self._flow.check_limits()
        return position

    def start_again(self, frame):
        """Start a request like the last one. Returns False, and has started nothing, for others."""
        cdef PlainContext served = self._plain_context
        if (
            served is None
            or served.work is None
            or type(frame) is not bytearray
            or not has_header(
                <const unsigned char*>PyByteArray_AS_STRING(frame),
                PyByteArray_GET_SIZE(frame),
                served.encoded,
            )
            or not self.may_start_plain(served)
        ):
            return False
        return self.start_plain(frame, served)

    cdef bint may_start_plain(self, PlainContext served) except -1:
        """As `_may_start`, for a request of a client whose time is not limited.

        A Fetch also waits for all other requests.
        """
        cdef SessionState session = self._session
        return not (
            self._is_serving
            or self._is_closed
            or self._is_writing_held
            or session.is_closed
            or not session.is_ready
            or session.scope is not None
            or (session.expires_at is not None and served.seconds() > session.expires_at)
            or (self._mute is not None and self._mute.is_on)
            or served.usage.version != served.usage_version
        )

    cdef bint start_plain(self, frame, PlainContext served) except -1:
        cdef PlainProduce request = None
        cdef int64_t began = 0
        cdef double deadline
        failure = None
        if self._ticks is not None:
            began = self._ticks()
        try:
            request = plain_produce(
                frame, PyBytes_GET_SIZE(served.encoded), served.version, served.work.most, served
            )
            if request is not None and not request.queue_for(served):
                request = None
        except Exception as bug:
            failure = bug
        if failure is not None:
            self._fail_unstarted(frame, served.header, served.route, began, failure)
            return True
        if request is None:
            # It is not tried for the same frame again.
            self._plain_context = None
            return False
        self._in_flight.append(request)
        self._unanswered += 1
        try:
            request.route, request.began = served.route, began
            if served.count_usage is not None:
                request.usage = served.count_usage(PyByteArray_GET_SIZE(frame))
            if self._is_recorded:
                self._traffic.request_started(request, served.header)
            deadline = request.begin(self._turn_began, self)
            if deadline and (self._expiry is None or deadline < self._expires_at):
                self._expire_at(deadline)
        except Exception as bug:
            self._failed(request, bug)
        return True

    cdef plain_ended(self, PlainProduce request):
        """The appends of a request have ended."""
        cdef Py_ssize_t size
        try:
            if request.usage is not None:
                self.count_plain(request)
            size = 0 if self._is_closed else request.answer()
            if not size:
                self._appended(request, request)
                return
            self._unanswered -= 1
            self._ready_bytes += size
            if self._is_recorded:
                self._traffic.request_answered(request, request, size)
            if not self._is_advancing and not self._is_continuation_scheduled:
                # Once the store has completed the appends of its burst, in one write.
                self._is_continuation_scheduled = True
                if not after_calls(self.continue_after_calls):
                    self._is_continuation_scheduled = False
                    self._continue_later()
        except Exception as bug:
            self._failed(request, bug)

    cdef count_plain(self, PlainProduce request):
        """As `_complete` does, in the common case; in others it counts the usage later."""
        if self._is_closed or not request.is_answerable():
            return
        usage, request.usage = request.usage, None
        request.throttle_ms = request.throttle_time_ms = usage.count_produce(has_reply=True)
        if request.throttle_ms:
            self._mute_or_new().extend(request.throttle_ms)

    def continue_after_calls(self):
        """As `_continue`."""
        self._is_continuation_scheduled = False
        if self._queued_frames or self._is_advancing:
            self._advance()
        elif not self.send_plain():
            self._send()

    cdef bint send_plain(self) except -1:
        """As `_send`, for plain requests of an open session. False if there are others."""
        cdef list buffers = []
        cdef Py_ssize_t freed = 0, answered = 0
        cdef PlainProduce request
        if self._is_closed or self._session.is_closed:
            return False
        for one in self._in_flight:
            if type(one) is not PlainProduce:
                if one.reply is None:
                    break
                return False
            request = <PlainProduce>one
            if request.reply is None:
                break
            buffers += <list?>request.reply
            freed += PyByteArray_GET_SIZE(request.frame)
            answered += 1
        del self._in_flight[:answered]
        self._ready_bytes = 0
        if buffers and not (
            isinstance(self._transport, ConnectionState)
            and (<ConnectionState>self._transport).send_now(buffers)
        ):
            self._transport.write(buffers)
        if answered:
            self._flow.finished(freed, answered)
        return True


cdef class ConnectionState:
    cdef public DispatchState _dispatch
    cdef public object transport
    cdef public double last_active
    cdef public bint _is_closing, _is_logging_in, _has_partial_frame

    cdef bint send_now(self, list buffers) except -1:
        """As `write`, in the common case. Returns False, and has sent nothing, in any other."""
        cdef SocketState socket
        if self._is_logging_in or not isinstance(self.transport, SocketState):
            return False
        socket = <SocketState>self.transport
        if not socket.send_now(buffers):
            return False
        self.last_active = socket.last_sent
        return True

    cdef bint send_unjoined(self, list buffers) except -1:
        """As `send_now`, for large buffers."""
        cdef SocketState socket
        if self._is_logging_in or not isinstance(self.transport, SocketState):
            return False
        socket = <SocketState>self.transport
        if not socket.send_unjoined(buffers):
            return False
        self.last_active = socket.last_sent
        return True


cdef class SocketState:
    cdef public bint connected, disconnecting, _aborting, producerPaused, _is_waiting_to_write
    cdef public object _receive, _unsent
    cdef public double last_sent
    cdef public int _descriptor
    cdef object _seconds
    # The protocol, if it is one.
    cdef ConnectionState _connection

    def use_protocol(self, protocol, int descriptor, seconds):
        """Pass what is received to `protocol`. `seconds` is the reactor's clock."""
        self._connection = protocol if isinstance(protocol, ConnectionState) else None
        self._descriptor, self._seconds = descriptor, seconds

    def doRead(self):
        cdef ConnectionState connection = self._connection
        cdef Py_ssize_t size, served = 0
        cdef int failure
        if connection is None or not self.connected:
            return self._read()
        # With the GIL: it does not block, and to release and take the GIL costs more than it does.
        size = recv(self._descriptor, arrived, MOST_READ, 0)
        failure = errno
        if size < 0:
            return None if failure in (EAGAIN, EINTR, ENOBUFS) else CONNECTION_LOST
        if not size:
            return CONNECTION_DONE
        if not (connection._is_closing or connection._has_partial_frame):
            served = connection._dispatch.serve_bytes(arrived, size)
            if served:
                connection.last_active = connection._dispatch._turn_began
        if served < size:
            self._receive(
                PyMemoryView_FromMemory(<char*>arrived + served, size - served, PyBUF_READ)
            )
        return None

    cdef bint may_send(self) except -1:
        """Whether nothing is to be sent before a reply."""
        return not (
            self._connection is None
            or not self.connected
            or self.disconnecting
            or self._aborting
            or self.producerPaused
            or self._is_waiting_to_write
            or self._unsent is not None
        )

    cdef bint send_unjoined(self, list buffers) except -1:
        """As `send_now`, for large buffers."""
        cdef Py_ssize_t sent, size = 0
        if len(buffers) > MOST_BUFFERS or not self.may_send():
            return False
        sent = send_buffers(self._descriptor, buffers, &size)
        self.last_sent = self._seconds()
        if sent < size:
            self._send_rest(buffers, max(sent, 0))
        return True

    cdef bint send_now(self, list buffers) except -1:
        """As `TcpConnection.send`, if the socket takes everything now."""
        cdef bytes data
        cdef const char* start
        cdef Py_ssize_t size, sent
        if not self.may_send():
            return False
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        start, size = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
        sent = send(self._descriptor, start, size, MSG_NOSIGNAL)
        self.last_sent = self._seconds()
        if sent < size:
            # An error is reported when the reactor finds the socket writable.
            self._send_rest([data], max(sent, 0))
        return True
