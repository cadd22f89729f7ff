# Part of _plain.pyx: a Produce request of the common case as one object, and an append in flight.

import logging

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memcmp

from storage._bridge cimport Completion, Waiter
from storage._log cimport Entry, OpenLog, RequestBytes, entry_in_request, request_bytes

from gateway.coroutines import when_ended
from records import BatchHeader

log = logging.getLogger(__name__)

FAILED_CALLBACK = "bug: a callback of an append failed"

cdef enum:
    TRANSACTIONAL = 0x10
    BATCHES_OF_FORMAT_2 = 16
    BATCHES_TO_RETAIN = 5
    # Of a request that is not mostly batches, smaller ones are copied once: the store's cache keeps
    # them when the request is freed.
    COPIED_BYTES = 4096


cdef struct Part:
    Py_ssize_t at, size
    int32_t topic, index, count
    int codec
    bint has_producer


cdef class PlainProduce


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class BatchMetadata:
    """As `gateway.partitions.producer_state.BatchMetadata`."""

    cdef readonly int64_t epoch, first_sequence, last_sequence, base_offset, last_offset
    cdef readonly int64_t log_append_time

    def __init__(
        self,
        int64_t epoch,
        int64_t first_sequence,
        int64_t last_sequence,
        int64_t base_offset,
        int64_t last_offset,
        int64_t log_append_time=-1,
    ):
        self.epoch, self.first_sequence, self.last_sequence = epoch, first_sequence, last_sequence
        self.base_offset, self.last_offset = base_offset, last_offset
        self.log_append_time = log_append_time

    def __eq__(self, other):
        return type(other) is BatchMetadata and self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash(self.__reduce__())

    def __reduce__(self):
        return BatchMetadata, (
            self.epoch,
            self.first_sequence,
            self.last_sequence,
            self.base_offset,
            self.last_offset,
            self.log_append_time,
        )

    def __repr__(self):
        return f"BatchMetadata{self.__reduce__()[1]}"


cdef class ProducerStateEntry:
    """As `gateway.partitions.producer_state.ProducerStateEntry`."""

    cdef public list batches
    cdef public int64_t last_seen
    cdef public str topic_name

    def __init__(self, list batches not None, int64_t last_seen, str topic_name not None=""):
        self.batches, self.last_seen, self.topic_name = batches, last_seen, topic_name


cdef class ProducersState:
    """Of a `gateway.partitions.producer_state.ProducerStateManager`."""

    cdef public dict _producers


cdef class OpenPartitionState:
    """The part of `gateway.partitions.partition.Partition` that each append needs."""

    cdef public object log, recovery, _queued_appends
    cdef public ProducersState producers
    cdef public dict in_flight
    cdef public int64_t plain_bytes, unsaved_bytes, unsaved_batches
    cdef public bint keeps_timestamps


@cython.final
cdef class InFlightAppend(Waiter):
    """As `gateway.partitions.partition.InFlightAppend`, which describes it."""

    cdef readonly int64_t end_offset
    cdef OpenPartitionState _partition
    cdef object _batch, _failure
    # With the records; only for batches of producers.
    cdef Entry _entry
    cdef int64_t _queued_offset, _base_offset, _log_append_time, _now
    cdef Py_ssize_t _size
    cdef PlainProduce _request
    cdef list _waiting
    cdef bint _has_producer, _has_ended

    @property
    def batch(self):
        if self._has_producer and self._batch is None and self._entry is not None:
            self._batch = header_of(self._entry.payload)
        return self._batch

    cpdef stored(self, assigned):
        cdef OpenPartitionState partition = self._partition
        try:
            partition.unsaved_bytes += self._size
            partition.unsaved_batches += 1
            if assigned is not None:
                result = partition.assign(self.batch, self.result(), assigned, self._now)
                self._base_offset = result.base_offset
            if self._has_producer:
                partition.in_flight.pop(self._queued_offset, None)
        except Exception as bug:
            self._failure = bug
        self.end()

    cpdef refused(self, failure):
        try:
            self._failure = self._partition.forget_refused(self.batch, self.result(), failure)
        except Exception as bug:
            self._failure = bug
        self.end()

    cdef result(self):
        return self._partition.result(self._base_offset, self._log_append_time)

    cdef end(self):
        self._has_ended = True
        self._entry = None
        request, self._request = self._request, None
        waiting, self._waiting = self._waiting, None
        if request is not None:
            try:
                (<PlainProduce>request).append_ended()
            except Exception:
                log.exception(FAILED_CALLBACK)
        if waiting is not None:
            for call in waiting:
                try:
                    call()
                except Exception:
                    log.exception(FAILED_CALLBACK)

    cdef watch(self, PlainProduce request):
        """Call `request.append_ended`: the first waiter, which needs no list."""
        if self._has_ended or self._request is not None or self._waiting is not None:
            self.when_done(request.append_ended)
        else:
            self._request = request

    def when_done(self, call):
        if self._has_ended:
            call()
        elif self._waiting is None:
            self._waiting = [call]
        else:
            self._waiting.append(call)

    def outcome(self, pending):
        if not self._has_ended:
            return pending
        return self.result() if self._failure is None else self._failure

    def wait(self):
        return self._partition.wait_for(self)

    def __await__(self):
        return self.wait().__await__()


def in_flight_append(partition, queued, size, batch, now, end_offset):
    """Return an InFlightAppend. See `gateway.partitions.partition`."""
    cdef InFlightAppend append = InFlightAppend.__new__(InFlightAppend)
    append._partition, append._batch, append._has_producer = partition, batch, batch is not None
    append._queued_offset = append._base_offset = queued.base_offset
    append._log_append_time = queued.log_append_time
    append._size, append._now, append.end_offset = size, now, end_offset
    return append


cdef header_of(records):
    cdef Py_buffer buffer
    PyObject_GetBuffer(records, &buffer, PyBUF_SIMPLE)
    try:
        return made(<const unsigned char*>buffer.buf, BatchHeader)
    finally:
        PyBuffer_Release(&buffer)


cdef InFlightAppend queue_next(
    OpenPartitionState partition,
    frame,
    RequestBytes request,
    Py_ssize_t at,
    Py_ssize_t size,
    int64_t now,
    str called,
):
    """As `Partition.queue_batch`, for a batch without a producer or the next one of its producer.

    None in any other case; then nothing has changed. The producer's timestamps are kept. `request`
    has the bytes of `frame` if it is mostly batches; otherwise it is None.
    """
    cdef unsigned char* batch = <unsigned char*>PyByteArray_AS_STRING(frame) + at
    cdef int64_t producer_id = be64(batch + 43), base_offset, last_offset, end_offset, timestamp
    cdef int32_t sequence = <int32_t>be32(batch + 53), delta = <int32_t>be32(batch + 23)
    cdef int32_t leader_epoch
    cdef int16_t epoch = be16(batch + 51)
    cdef bint has_producer = producer_id >= 0
    cdef InFlightAppend append
    cdef Sink sink
    cdef list batches
    cdef dict states
    cdef ProducerStateEntry state
    cdef BatchMetadata last
    cdef OpenLog compiled_log = None
    cdef Entry entry
    if partition._queued_appends or not partition.keeps_timestamps:
        return None
    if has_producer:
        states = partition.producers._producers
        state = states.get(producer_id)
        if state is None:
            return None
        known = state.topic_name
        if called is not known and called != known and called and known:
            return None
        batches = state.batches
        if not batches:
            return None
        last = batches[len(batches) - 1]
        if sequence != (last.last_sequence + 1) & 0x7FFFFFFF or epoch != last.epoch:
            return None
    partition_log = partition.log
    if isinstance(partition_log, OpenLog):
        compiled_log = <OpenLog>partition_log
        base_offset, end_offset = compiled_log.next_offset, compiled_log.end_offset
        leader_epoch = <int32_t>compiled_log.leader_epoch
    else:
        base_offset, end_offset = partition_log.next_offset, partition_log.end_offset
        leader_epoch = partition_log.leader_epoch
    sink.bytes, sink.at = batch, 0
    put64(&sink, base_offset)
    sink.at = 12
    put32(&sink, leader_epoch)
    last_offset, timestamp = base_offset + delta, be64(batch + 35)
    if timestamp < 0:
        timestamp = now
    if request is not None:
        entry = entry_in_request(base_offset, last_offset, timestamp, request, at, size)
    else:
        if size <= COPIED_BYTES:
            records = PyBytes_FromStringAndSize(<const char*>batch, size)
        else:
            records = memoryview(frame)[at : at + size]
        entry = new_entry(base_offset, last_offset, timestamp, records)
    waiting = None
    if compiled_log is not None:
        waiting = compiled_log.queue_entry(entry)
    if waiting is None:
        waiting = partition_log.append((entry,))
    append = InFlightAppend.__new__(InFlightAppend)
    append._partition, append._has_producer, append._size = partition, has_producer, size
    append._queued_offset = append._base_offset = base_offset
    append._log_append_time, append._now, append.end_offset = -1, now, end_offset
    if has_producer:
        append._entry = entry
        # As `ProducerStateManager.append`.
        if len(states) > 1:
            states[producer_id] = states.pop(producer_id)
        state.last_seen = now
        if called:
            state.topic_name = called
        last = BatchMetadata.__new__(BatchMetadata)
        last.epoch, last.first_sequence = epoch, sequence
        last.last_sequence = (<int64_t>sequence + delta) & 0x7FFFFFFF
        last.base_offset, last.last_offset, last.log_append_time = base_offset, last_offset, -1
        batches.append(last)
        if len(batches) > BATCHES_TO_RETAIN:
            if compiled_log is not None:
                end_offset = compiled_log.end_offset
            else:
                end_offset = partition_log.end_offset
            while (
                len(batches) > BATCHES_TO_RETAIN
                and (<BatchMetadata?>batches[1]).last_offset < end_offset
            ):
                del batches[0]
        partition.in_flight[base_offset] = append
    if isinstance(waiting, Completion):
        (<Completion>waiting).watch(append)
    else:
        when_ended(waiting, append.stored, append.refused)
    return append


cdef class PlainProduce:
    """A Produce request with one valid batch for each partition, from its bytes to its reply.

    `queue` appends its batches if they may be appended at once. If all appends succeed, the object
    is its own reply (`body`).

    It has the attributes of a request in dispatch, too (`gateway.protocol.dispatch`).
    """

    cdef readonly int version
    cdef readonly int acks
    cdef readonly int timeout_ms
    cdef readonly int32_t correlation_id
    cdef readonly object frame
    cdef readonly Py_ssize_t position
    cdef readonly list topics
    cdef readonly list appends
    cdef public int32_t throttle_time_ms, throttle_ms
    cdef public object route, reply, cancel, usage
    cdef public int64_t began
    cdef public bint is_appending
    cdef public double deadline
    cdef Part* _parts
    cdef Py_ssize_t _count, _missing, _batch_bytes
    cdef list _partitions
    cdef PlainContext _served
    cdef DispatchState _dispatch
    cdef object _then, _outcome
    cdef bint _has_outcome, _is_stored, _has_limit

    api_key = 0
    stopwatch = None

    def __dealloc__(self):
        PyMem_Free(self._parts)

    @property
    def size(self):
        return PyByteArray_GET_SIZE(self.frame)

    @property
    def ready(self):
        """A tuple for each partition, with the partition."""
        return [(partition,) for partition in self._partitions]

    @property
    def on_timeout(self):
        return self.timed_out if self._has_limit else None

    @on_timeout.setter
    def on_timeout(self, call):
        self._has_limit = call is not None

    def timed_out(self):
        """Return the response if the time is over before the appends have ended."""
        if self._served is None:
            raise ValueError("no append is running")
        return self._served.work.respond_late(self, self._served.caller)

    cdef reserve(self, Py_ssize_t count):
        parts = <Part*>PyMem_Realloc(self._parts, (self._count + count) * sizeof(Part) or 1)
        if parts == NULL:
            raise MemoryError
        self._parts = parts

    def queue(self, caller, PlainWork work not None):
        """Queue the batches, or return False and change nothing.

        They are not queued if anything has to be awaited or refused before: the topic is not open
        to the caller, a partition is not open, a batch needs more checks or has a wrong CRC.
        """
        return self.queue_for(PlainContext(b"", None, None, caller, True, work))

    cdef bint queue_for(self, PlainContext served) except -1:
        cdef Part* part
        cdef Py_ssize_t number
        cdef OpenPartitionState partition
        cdef PlainWork work = served.work
        cdef bint has_refused
        cdef const unsigned char* bytes = <const unsigned char*>PyByteArray_AS_STRING(self.frame)
        cdef dict partitions = None
        cdef list found = []
        is_unrestricted = served.broker.authorizer is None and served.session.scope is None
        has_refused = bool(served.refused) and work.has_refused(served.caller)
        topic = -1
        for number in range(self._count):
            part = self._parts + number
            if part.topic != topic:
                topic = part.topic
                name = self.topics[topic]
                if not (is_unrestricted or served.caller.may_use_topic(work.write, name)):
                    return False
                partitions = served.open_partitions(name)
                if partitions is None:
                    return False
            partition = partitions.get(part.index)
            if partition is None or part.size > partition.plain_bytes:
                return False
            if part.has_producer and (has_refused or partition.recovery is not None):
                return False
            found.append(partition)
        # Last: otherwise `request` would compute the same CRCs again.
        for number in range(self._count):
            part = self._parts + number
            if not has_valid_crc(bytes + part.at, part.size):
                return False
        self._partitions = found
        self.append(served.now(), work.queue)
        if served.is_recorded:
            served.caller.traffic.produced_at_once(self)
        self.wait(served)
        return True

    cdef append(self, int64_t now, queue):
        """Queue the batches."""
        cdef Part* part
        cdef Py_ssize_t number
        cdef const unsigned char* bytes = <const unsigned char*>PyByteArray_AS_STRING(self.frame)
        cdef RequestBytes request = None
        if self._batch_bytes * 8 >= PyByteArray_GET_SIZE(self.frame) * 7:
            request = request_bytes(self.frame, self._batch_bytes)
        self.appends = []
        for number in range(self._count):
            part = self._parts + number
            partition, topic = self._partitions[number], self.topics[part.topic]
            called = topic if type(topic) is str else ""
            append = queue_next(
                partition, self.frame, request, part.at, part.size, now, called
            )
            if append is None:
                records = memoryview(self.frame)[part.at : part.at + part.size]
                batch = made(bytes + part.at, BatchHeader)
                append = queue(partition, records, batch, now, called)
            self.appends.append(append)

    def count(self, Py_ssize_t topic, list batches):
        """Return the records and bytes for a topic, by its number.

        Counts its batches in `batches`, as `UsageCounters` has them.
        """
        cdef Part* part
        cdef Py_ssize_t number
        cdef int64_t records = 0, size = 0
        if len(batches) <= (BATCHES_OF_FORMAT_2 | CODEC_MASK):
            raise ValueError("the list is too short")
        for number in range(self._count):
            part = self._parts + number
            if part.topic == topic:
                records += part.count
                size += part.size
                batches[BATCHES_OF_FORMAT_2 | part.codec] += 1
        return records, size

    cdef wait(self, PlainContext served):
        """Wait for the appends: each is an error, or a result with `when_done`."""
        self._served = served
        self._missing = len(self.appends) + 1
        for append in self.appends:
            if type(append) is InFlightAppend:
                (<InFlightAppend>append).watch(self)
            elif isinstance(append, BaseException):
                self._missing -= 1
            else:
                append.when_done(self.append_ended)
        self.append_ended()

    cpdef append_ended(self):
        cdef OpenPartitionState partition
        cdef DispatchState dispatch
        cdef PlainContext served = self._served
        self._missing -= 1
        if self._missing:
            return
        try:
            if all_stored(self.appends):
                for append in self.appends:
                    partition = (<InFlightAppend>append)._partition
                    if (
                        partition.unsaved_batches >= served.work.batches
                        or partition.unsaved_bytes >= served.work.bytes
                    ):
                        served.topics.save_if_due(partition)
                # Not `_outcome`: a reference to itself would keep the request's bytes.
                self._is_stored = True
            else:
                self._outcome = served.work.respond(self, served.caller)
        except Exception as bug:
            # The connection is closed.
            self._outcome = bug
        self._has_outcome = True
        self._served = None
        then, self._then = self._then, None
        dispatch, self._dispatch = self._dispatch, None
        if dispatch is not None:
            dispatch.plain_ended(self)
        if then is not None:
            then()

    cdef double begin(self, double now, DispatchState dispatch) except -1:
        """Become a request of `dispatch`, which learns when the appends have ended.

        Returns the time at which the client is to be answered in any case, 0 if there is none.
        """
        self.is_appending = True
        if self._has_outcome:
            dispatch.plain_ended(self)
            return 0.0
        self._dispatch = dispatch
        if self.acks == 0 or self.timeout_ms <= 0:
            return 0.0
        self._has_limit = True
        self.deadline = now + self.timeout_ms / 1000.0
        return self.deadline

    cdef bint is_answerable(self) noexcept:
        return self._is_stored and self.acks != 0 and self.reply is None

    cdef Py_ssize_t answer(self) except -1:
        """Set `reply` if all appends succeeded. Returns its size, 0 if it is not set."""
        if not self.is_answerable():
            return 0
        reply = self.encoded(True)
        self.reply = [reply]
        self._has_limit = self.is_appending = False
        return PyBytes_GET_SIZE(reply)

    def when_done(self, call):
        """As that of SharedResult, for one caller."""
        if self._has_outcome:
            call()
        else:
            self._then = call

    def outcome(self, pending):
        if not self._has_outcome:
            return pending
        return self if self._is_stored and self.acks else self._outcome

    def body(self):
        """Return the body of the reply, if every append succeeded."""
        return self.encoded(False)

    cdef bytes encoded(self, bint has_header):
        """Encode the reply, or only its body."""
        cdef Sink sink
        cdef InFlightAppend append
        cdef Py_ssize_t topic, end, number = 0, most = 32 + 48 * self._count
        cdef bint compact = self.version >= FIRST_FLEXIBLE
        if not self._is_stored:
            raise ValueError("not every batch is stored")
        names = [name if type(name) is bytes else (<str>name).encode() for name in self.topics]
        for name in names:
            most += 16 + PyBytes_GET_SIZE(name)
        body = PyBytes_FromStringAndSize(NULL, most)
        sink.bytes, sink.at = <unsigned char*>PyBytes_AS_STRING(body), 0
        if has_header:
            sink.at = 4
            put32(&sink, self.correlation_id)
            if compact:
                put_length(&sink, -1, True, False)
        put_length(&sink, len(names), compact, True)
        for topic in range(len(names)):
            put_name(&sink, names[topic], self.version >= FIRST_WITH_TOPIC_IDS, compact)
            end = number
            while end < self._count and self._parts[end].topic == topic:
                end += 1
            put_length(&sink, end - number, compact, True)
            while number < end:
                append = self.appends[number]
                log = append._partition.log
                put_row(
                    &sink,
                    self._parts[number].index,
                    0,
                    append._base_offset,
                    append._log_append_time,
                    (<OpenLog>log).start_offset
                    if isinstance(log, OpenLog)
                    else <int64_t>log.start_offset,
                    self.version,
                    compact,
                )
                number += 1
            if compact:
                put_length(&sink, -1, True, False)
        put_end(&sink, self.throttle_time_ms, self.version, compact)
        end, sink.at = sink.at, 0
        if has_header:
            put32(&sink, <int32_t>(end - 4))
        return PyBytes_FromStringAndSize(<const char*>sink.bytes, end)


cdef bint all_stored(list appends) except -1:
    for append in appends:
        if type(append) is not InFlightAppend or (<InFlightAppend>append)._failure is not None:
            return False
    return True


cdef bint has_header(const unsigned char* frame, Py_ssize_t size, bytes header) noexcept:
    """Whether a frame begins with this header, the correlation id excepted."""
    cdef const char* other = PyBytes_AS_STRING(header)
    cdef Py_ssize_t expected = PyBytes_GET_SIZE(header)
    return (
        10 <= expected <= size
        and memcmp(frame, other, 4) == 0
        and memcmp(frame + 8, other + 8, expected - 8) == 0
    )


cpdef PlainProduce plain_produce(
    frame, Py_ssize_t position, int version, Py_ssize_t most, PlainContext served=None
):
    """Return a PlainProduce of at most `most` partitions, or None. `position` is that of the body.

    None, too, if its batches have more than MOST_CHECKED_BYTES. `queue` checks the CRCs.

    See `gateway.handlers.produce`.
    """
    cdef Source source
    cdef Request head
    cdef Part* part
    cdef int64_t partitions, size, left = MOST_CHECKED_BYTES
    cdef int32_t topic
    cdef Py_ssize_t begun
    cdef const unsigned char* batch
    cdef PlainProduce request
    if version < FIRST_WITH_BATCHES or not begin(&source, &head, frame, position, version):
        return None
    if not -1 <= head.acks <= 1:
        return None
    request = PlainProduce.__new__(PlainProduce)
    request.version, request.acks, request.timeout_ms = version, head.acks, head.timeout_ms
    request.frame, request.position, request.topics = frame, position, []
    if PyByteArray_GET_SIZE(frame) >= 8:
        request.correlation_id = <int32_t>be32(source.bytes + 4)
    for topic in range(<int32_t>head.topics):
        begun = source.at
        if served is not None and served.has_topic_at(&source):
            name = served.topic
        else:
            name = topic_name(&source, version, head.compact)
            if served is not None and name is not None:
                served.keep_topic(name, source.bytes + begun, source.at - begun)
        if name is None or not length(&source, head.compact, True, &partitions):
            return None
        # The topic of no partition is left to the caller, who checks the client's rights to it.
        if not 1 <= partitions <= most - request._count:
            return None
        request.topics.append(name)
        request.reserve(<Py_ssize_t>partitions)
        for _ in range(partitions):
            part = request._parts + request._count
            if not records_of(&source, head.compact, &part.index, &size):
                return None
            part.topic, part.at, part.size = topic, source.at - <Py_ssize_t>size, size
            batch = source.bytes + part.at
            if not is_plain(batch, part.size, version) or be16(batch + 21) & TRANSACTIONAL:
                return None
            left -= size
            if left < 0:
                return None
            part.count, part.codec = <int32_t>be32(batch + 57), be16(batch + 21) & CODEC_MASK
            part.has_producer = be64(batch + 43) >= 0
            request._count += 1
            request._batch_bytes += part.size
            if head.compact and not no_tags(&source):
                return None
        if head.compact and not no_tags(&source):
            return None
    return request
