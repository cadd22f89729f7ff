# Part of _plain.pyx: a Produce request of the common case as one object, and an append in flight.

import logging

from cpython.mem cimport PyMem_Free, PyMem_Realloc

log = logging.getLogger(__name__)

FAILED_CALLBACK = "bug: a callback of an append failed"

cdef enum:
    TRANSACTIONAL = 0x10
    BATCHES_OF_FORMAT_2 = 16


cdef struct Part:
    Py_ssize_t at, size
    int32_t topic, index, count
    int codec
    bint has_producer


cdef class PlainProduce


cdef class InFlightAppend:
    """As `gateway.partitions.partition.InFlightAppend`, which describes it."""

    cdef readonly object batch
    cdef readonly object end_offset
    cdef object _partition, _queued, _size, _now, _result, _failure
    cdef PlainProduce _request
    cdef list _waiting
    cdef bint _has_ended

    def stored(self, assigned):
        partition, result = self._partition, self._queued
        partition.unsaved_bytes += self._size
        partition.unsaved_batches += 1
        if assigned is not None:
            result = partition.assign(self.batch, result, assigned, self._now)
        if self.batch is not None:
            (<dict?>partition.in_flight).pop(self._queued.base_offset, None)
        self._result = result
        self.end()

    def refused(self, failure):
        self._failure = self._partition.forget_refused(self.batch, self._queued, failure)
        self.end()

    cdef end(self):
        self._has_ended = True
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
        return self._result if self._failure is None else self._failure

    def wait(self):
        return self._partition.wait_for(self)

    def __await__(self):
        return self.wait().__await__()


def in_flight_append(partition, queued, size, batch, now, end_offset):
    """Return an InFlightAppend. See `gateway.partitions.partition`."""
    cdef InFlightAppend append = InFlightAppend.__new__(InFlightAppend)
    append._partition, append._queued, append._size = partition, queued, size
    append.batch, append._now, append.end_offset = batch, now, end_offset
    return append


cdef class PlainProduce:
    """A Produce request with one valid batch for each partition, from its bytes to its reply.

    The handler asks whether the batches may be appended at once (`find`), queues the appends, and
    passes them to `wait`. If all of them succeed, the object is its own reply (`body`).
    """

    cdef readonly int version
    cdef readonly int acks
    cdef readonly int timeout_ms
    cdef readonly object frame
    cdef readonly Py_ssize_t position
    cdef readonly list topics
    cdef readonly list ready
    cdef readonly list appends
    cdef public int32_t throttle_time_ms
    cdef Part* _parts
    cdef Py_ssize_t _count, _missing
    cdef object _caller, _stored, _respond, _then, _outcome
    cdef bint _has_outcome, _is_stored

    def __dealloc__(self):
        PyMem_Free(self._parts)

    cdef reserve(self, Py_ssize_t count):
        parts = <Part*>PyMem_Realloc(self._parts, (self._count + count) * sizeof(Part) or 1)
        if parts == NULL:
            raise MemoryError
        self._parts = parts

    def find(self, list opened, bint has_refused, make_batch):
        """Return (partition, records, batch, name of the topic) for each partition, or None.

        None if a partition is not open, or its batch needs more checks or has a wrong CRC. `opened`
        has the open partitions of each topic by index; `has_refused` tells whether batches of
        idempotent producers were refused before.
        """
        cdef Part* part
        cdef Py_ssize_t number
        cdef const unsigned char* bytes = <const unsigned char*>PyByteArray_AS_STRING(self.frame)
        if len(opened) != len(self.topics):
            raise ValueError("one item for each topic is required")
        view = memoryview(self.frame)
        partitions = []
        for number in range(self._count):
            part = self._parts + number
            partition = (<dict?>opened[part.topic]).get(part.index)
            if partition is None or part.size > <Py_ssize_t>partition.plain_bytes:
                return None
            if part.has_producer and (has_refused or partition.recovery is not None):
                return None
            partitions.append(partition)
        ready = []
        # Last: otherwise `request` would compute the same CRCs again.
        for number in range(self._count):
            part = self._parts + number
            if not has_valid_crc(bytes + part.at, part.size):
                return None
            topic = self.topics[part.topic]
            batch = made(bytes + part.at, make_batch)
            records = view[part.at : part.at + part.size]
            ready.append((partitions[number], records, batch, topic if type(topic) is str else ""))
        self.ready = ready
        return ready

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

    def wait(self, list appends, caller, stored, respond):
        """Wait for the appends: each is an error, or a result with `when_done`.

        If all of them succeed, `stored` is called with each partition. Otherwise `respond(self,
        caller)` returns the response or the failure. Neither may raise.
        """
        if len(appends) != self._count:
            raise ValueError("one item for each partition is required")
        self.appends = appends
        self._caller, self._stored, self._respond = caller, stored, respond
        self._missing = len(appends) + 1
        for append in appends:
            if type(append) is InFlightAppend:
                (<InFlightAppend>append).watch(self)
            elif isinstance(append, BaseException):
                self._missing -= 1
            else:
                append.when_done(self.append_ended)
        self.append_ended()

    cpdef append_ended(self):
        cdef InFlightAppend append
        self._missing -= 1
        if self._missing:
            return
        if all_stored(self.appends):
            for append in self.appends:
                self._stored(append._partition)
            # Not `_outcome`: a reference to itself would keep the request's bytes.
            self._is_stored = True
        else:
            self._outcome = self._respond(self, self._caller)
        self._has_outcome = True
        self._caller = self._stored = self._respond = None
        then, self._then = self._then, None
        if then is not None:
            then()

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
        cdef Sink sink
        cdef InFlightAppend append
        cdef Py_ssize_t topic, end, number = 0, most = 16 + 48 * self._count
        cdef bint compact = self.version >= FIRST_FLEXIBLE
        if not self._is_stored:
            raise ValueError("not every batch is stored")
        names = [name if type(name) is bytes else (<str>name).encode() for name in self.topics]
        for name in names:
            most += 16 + PyBytes_GET_SIZE(name)
        body = PyBytes_FromStringAndSize(NULL, most)
        sink.bytes, sink.at = <unsigned char*>PyBytes_AS_STRING(body), 0
        put_length(&sink, len(names), compact, True)
        for topic in range(len(names)):
            put_name(&sink, names[topic], self.version >= FIRST_WITH_TOPIC_IDS, compact)
            end = number
            while end < self._count and self._parts[end].topic == topic:
                end += 1
            put_length(&sink, end - number, compact, True)
            while number < end:
                append = self.appends[number]
                result = append._result
                put_row(
                    &sink,
                    self._parts[number].index,
                    0,
                    result.base_offset,
                    result.log_append_time,
                    append._partition.log.start_offset,
                    self.version,
                    compact,
                )
                number += 1
            if compact:
                put_length(&sink, -1, True, False)
        put_end(&sink, self.throttle_time_ms, self.version, compact)
        return PyBytes_FromStringAndSize(<const char*>sink.bytes, sink.at)


cdef bint all_stored(list appends) except -1:
    for append in appends:
        if type(append) is not InFlightAppend or (<InFlightAppend>append)._failure is not None:
            return False
    return True


def plain_produce(frame, Py_ssize_t position, int version, Py_ssize_t most):
    """Return a PlainProduce of at most `most` partitions, or None. `position` is that of the body.

    None, too, if its batches have more than MOST_CHECKED_BYTES. `find` checks their CRCs.

    See `gateway.handlers.produce`.
    """
    cdef Source source
    cdef Request head
    cdef Part* part
    cdef int64_t partitions, size, left = MOST_CHECKED_BYTES
    cdef int32_t topic
    cdef const unsigned char* batch
    cdef PlainProduce request
    if version < FIRST_WITH_BATCHES or not begin(&source, &head, frame, position, version):
        return None
    if not -1 <= head.acks <= 1:
        return None
    request = PlainProduce.__new__(PlainProduce)
    request.version, request.acks, request.timeout_ms = version, head.acks, head.timeout_ms
    request.frame, request.position, request.topics = frame, position, []
    for topic in range(<int32_t>head.topics):
        name = topic_name(&source, version, head.compact)
        if name is None or not length(&source, head.compact, True, &partitions):
            return None
        if not 0 <= partitions <= most - request._count:
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
            if head.compact and not no_tags(&source):
                return None
        if head.compact and not no_tags(&source):
            return None
    return request
