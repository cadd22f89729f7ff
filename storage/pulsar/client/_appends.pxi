# Part of _library.pyx: an append to a partition, from its sending to its completion, with all state
# in C fields.
#
# The functions return None or False, and have changed nothing, unless it is the common case: one
# entry, whose offset is reserved, and which the broker stores. Then the Python code, which handles
# all cases, takes over. The classes ...State are bases of Python classes; `InFlightMessage`
# replaces the Python class of the same name.

import logging

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdio cimport snprintf

from storage._bridge cimport Completion
from storage._log cimport CachedTailState, Entry, TailCache, new_entry

from storage.pulsar.client.partition_producers import IN_FLIGHT_OVERHEAD
from storage.pulsar.log.entry_messages import ENTRY_FORMAT, MAX_MESSAGE_OVERHEAD

logger = logging.getLogger("storage.pulsar.client.bulk_client")

cdef int64_t MESSAGE_MEMORY = IN_FLIGHT_OVERHEAD, MESSAGE_OVERHEAD = MAX_MESSAGE_OVERHEAD
cdef bytes FORMAT_NAME = ENTRY_FORMAT.encode()

cdef enum:
    # Nine numbers of at most 20 characters, with brackets and commas.
    HEADER_BYTES = 256


cdef struct Fields:
    # Of the header.
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t bytes_before
    int64_t leader_epoch
    int64_t greatest_timestamp
    int64_t entries
    int64_t opening
    # The position; -1 if it is not stored.
    int64_t ledger
    int64_t entry


cdef struct End:
    # Those of a `LogEnd`.
    int64_t offset
    int64_t size
    int64_t greatest_timestamp


cdef made_header(Fields* one):
    return Header(
        one.base_offset,
        one.last_offset,
        one.max_timestamp,
        one.bytes_before,
        one.leader_epoch,
        one.greatest_timestamp,
        one.entries,
        one.opening,
    )


cdef int read_header(Fields* to, header) except -1:
    to.base_offset, to.last_offset = header.base_offset, header.last_offset
    to.max_timestamp, to.bytes_before = header.max_timestamp, header.bytes_before
    to.leader_epoch, to.greatest_timestamp = header.leader_epoch, header.greatest_timestamp
    to.entries, to.opening = header.entries, header.opening
    return 0


cdef int write_header(Fields* one, char* text) noexcept:
    """As `Header.properties`; the text has at most HEADER_BYTES."""
    cdef int size = snprintf(
        text,
        HEADER_BYTES,
        b"[%d,%lld,%lld,%lld,%lld,%lld,%lld,%lld",
        <int>HEADER_VERSION,
        <long long>one.base_offset,
        <long long>one.last_offset,
        <long long>one.max_timestamp,
        <long long>one.bytes_before,
        <long long>one.leader_epoch,
        <long long>one.greatest_timestamp,
        <long long>one.entries,
    )
    if one.opening:
        return snprintf(text + size, HEADER_BYTES - size, b",%lld]", <long long>one.opening)
    return snprintf(text + size, HEADER_BYTES - size, b"]")


# Their modules import this one: they are imported on first use.
cdef object position_class = None
cdef object log_end_class = None


cdef new_position(int64_t ledger, int64_t entry):
    global position_class
    if position_class is None:
        from storage.pulsar.log.offset_index import Position

        position_class = Position
    return position_class(ledger, entry)


cdef made_position(Fields* one):
    return new_position(one.ledger, one.entry)


cdef made_end(End* end):
    global log_end_class
    if log_end_class is None:
        from storage.pulsar.client.exclusive_producer import LogEnd

        log_end_class = LogEnd
    return log_end_class(end.offset, end.size, end.greatest_timestamp)


cdef int read_end(End* to, end) except -1:
    to.offset, to.size = end.offset, end.bytes
    to.greatest_timestamp = end.greatest_timestamp
    return 0


cdef class AppendState


cdef class InFlightMessage(Completion):
    cdef readonly object entries, payload
    cdef readonly int64_t cost
    cdef public bint is_released
    cdef object _properties
    cdef Fields fields
    cdef End log_end
    cdef int result
    # Of a message of the common case.
    cdef AppendState queue

    def __init__(self, header, list entries, bytes payload, dict properties, end):
        read_header(&self.fields, header)
        read_end(&self.log_end, end)
        self.fields.ledger = self.fields.entry = -1
        self.entries, self.payload, self._properties = entries, payload, properties
        self.cost = len(payload) + MESSAGE_MEMORY

    @property
    def header(self):
        return made_header(&self.fields)

    @property
    def end(self):
        return made_end(&self.log_end)

    @property
    def properties(self):
        if self._properties is None:
            self._properties = self.header.properties(self.queue._entry_format.decode())
        return self._properties

    @property
    def position(self):
        return made_position(&self.fields)

    @position.setter
    def position(self, position):
        self.fields.ledger, self.fields.entry = position


cdef class InFlightState:
    """Of an `InFlightLimit`."""

    cdef public int64_t limit_bytes, limit_operations, reserved_bytes, reserved_operations


cdef class ProducerState:
    """Of an `ExclusiveProducer`."""

    cdef public object _producer, _in_flight
    cdef public list _idle
    cdef public InFlightState _room
    cdef public bint is_closed


cdef class AppendState:
    """Of an `AppendQueue`."""

    cdef public object _client, _partition, _status, _on_stored, _pending, _reservation_error
    cdef public bytes _entry_format
    cdef public InFlightState _in_flight_limit
    cdef public ProducerState _producer
    cdef public bint has_stored_epoch, _is_empty
    cdef public int64_t _early, _leader_epoch, _opening
    cdef End next_end, sent_end

    @property
    def next(self):
        return made_end(&self.next_end)

    @next.setter
    def next(self, end):
        read_end(&self.next_end, end)

    @property
    def _sent_end(self):
        return made_end(&self.sent_end)

    @_sent_end.setter
    def _sent_end(self, end):
        read_end(&self.sent_end, end)


cdef class IndexState:
    """Of an `OffsetIndex`."""

    cdef public array.array _offsets, _ledgers, _entries, _bytes, _times, _greatest
    cdef public int64_t _limit, _spacing, _known_until

    cdef bint add_newest(self, Fields* one) except -1:
        """As `OffsetIndex.appended`, for a message in or behind a segment known to its end."""
        cdef Py_ssize_t count = len(self._offsets)
        cdef int64_t distance
        if (
            not count
            or one.base_offset != self._known_until
            or len(self._bytes) != count
            or len(self._greatest) != count
        ):
            return False
        distance = one.bytes_before - self._bytes.data.as_longlongs[count - 1]
        if distance < 0:
            return False
        if distance < self._spacing:
            if one.max_timestamp > self._greatest.data.as_longlongs[count - 1]:
                self._greatest.data.as_longlongs[count - 1] = one.max_timestamp
        elif (
            self._offsets.data.as_longlongs[count - 1] < one.base_offset <= one.last_offset
            and count < self._limit
        ):
            self._offsets.append(one.base_offset)
            self._ledgers.append(one.ledger)
            self._entries.append(one.entry)
            self._bytes.append(one.bytes_before)
            self._times.append(one.greatest_timestamp)
            self._greatest.append(one.max_timestamp)
        else:
            return False
        self._known_until = one.last_offset + 1
        return True


cdef class ReaderState:
    """Of a `PartitionReader`."""

    cdef public IndexState _index
    cdef Fields newest
    cdef bint has_newest

    @property
    def _newest(self):
        if not self.has_newest:
            return None
        return made_header(&self.newest), made_position(&self.newest)

    @_newest.setter
    def _newest(self, newest):
        self.has_newest = newest is not None
        if self.has_newest:
            header, position = newest
            self.newest.ledger, self.newest.entry = position
            read_header(&self.newest, header)


cdef class LogState:
    """Of a `PulsarLog`, which describes the methods."""

    cdef public object status, _tail, _resident
    cdef public AppendState _append_queue
    cdef public ReaderState _reader
    cdef public int64_t leader_epoch, _start_offset
    cdef End log_end

    @property
    def _end(self):
        return made_end(&self.log_end)

    @_end.setter
    def _end(self, end):
        read_end(&self.log_end, end)

    @property
    def start_offset(self):
        return self._start_offset

    @property
    def end_offset(self):
        return self.log_end.offset

    @property
    def _end_bytes(self):
        return self.log_end.size

    @property
    def next_offset(self):
        if self._append_queue is None:
            raise AttributeError("the log is not complete")
        return self._append_queue.next_end.offset

    def append(self, entries):
        if self._append_queue is None:
            raise AttributeError("the log is not complete")
        return append_to(self._append_queue, entries)

    def _on_stored(self, list messages):
        cdef InFlightMessage sent = None
        cdef Entry entry
        cdef ReaderState reader = self._reader
        cdef IndexState index = None if reader is None else reader._index
        if index is None:
            raise AttributeError("the log is not complete")
        for sent in messages:
            if not index.add_newest(&sent.fields):
                index.appended(sent.header, sent.position)
            for entry in sent.entries:
                if type(self._tail) is TailCache:
                    (<TailCache>self._tail).add(self._resident, entry)
                else:
                    self._tail.add(self._resident, entry)
        if sent is None:
            return
        reader.newest = sent.fields
        reader.has_newest = True
        self.log_end = sent.log_end
        if self.status.watchers:
            self.status.notify()
        for sent in messages:
            sent.succeed(None)


def append(AppendState queue not None, entries):
    """`AppendQueue.append`; in the common case, compiled."""
    return append_to(queue, entries)


cdef append_to(AppendState queue, entries):
    sent = send_append(queue, entries)
    return queue.append_any(entries) if sent is None else sent


cdef InFlightMessage send_append(AppendState queue, entries):
    """Send an append of one entry and return it."""
    cdef InFlightMessage sent
    cdef InFlightState room = queue._in_flight_limit
    cdef ProducerState producer = queue._producer
    cdef Entry entry
    cdef End end = queue.next_end
    cdef int64_t size, cost
    cdef Fields* fields
    if (
        len(entries) != 1
        or queue._status.end_reason is not None
        or queue._reservation_error is not None
        or not queue.has_stored_epoch
        or queue._pending
    ):
        return None
    entry = entries[0]
    payload = entry.payload
    if (
        entry.base_offset != end.offset
        or entry.last_offset < end.offset
        or entry.last_offset >= <int64_t>queue._partition.row.reserved - queue._early
        or entry.max_timestamp < -1
        or not (type(payload) is bytes or type(payload) is memoryview)
    ):
        return None
    size = len(payload)
    cost = size + MESSAGE_MEMORY
    if size > <int64_t>queue._client.message_bytes - MESSAGE_OVERHEAD or (
        room.reserved_operations
        and (
            room.reserved_bytes + cost > room.limit_bytes
            or room.reserved_operations >= room.limit_operations
        )
    ):
        return None
    sent = InFlightMessage.__new__(InFlightMessage)
    fields = &sent.fields
    fields.base_offset, fields.last_offset = entry.base_offset, entry.last_offset
    fields.max_timestamp, fields.bytes_before = entry.max_timestamp, end.size
    end.offset = entry.last_offset + 1
    end.size += size
    end.greatest_timestamp = max(end.greatest_timestamp, entry.max_timestamp)
    fields.leader_epoch, fields.greatest_timestamp = queue._leader_epoch, end.greatest_timestamp
    fields.entries, fields.opening = 1, queue._opening
    fields.ledger = fields.entry = -1
    sent.log_end = end
    sent.cost, sent.queue = cost, queue
    if type(producer._producer) is Producer:
        if not post(<Producer>producer._producer, sent, payload, size, queue._entry_format):
            return None
        sent.entries = entries if type(entries) is tuple else (entry,)
        sent.payload = payload
    elif type(payload) is bytes:
        sent.entries, sent.payload = (entry,), payload
    else:
        # The library's binding takes bytes. The tail cache keeps the copy.
        sent.payload = bytes(payload)
        sent.entries = (
            new_entry(entry.base_offset, entry.last_offset, entry.max_timestamp, sent.payload),
        )
    queue.next_end = queue.sent_end = end
    room.reserved_bytes += cost
    room.reserved_operations += 1
    if type(producer._producer) is Producer:
        producer._in_flight.append(sent)
    else:
        producer.send(sent)
    return sent


cdef bint post(
    Producer producer, InFlightMessage sent, payload, int64_t size, bytes entry_format
) except -1:
    """Send the message, whose payload the library copies. False if it is not contiguous bytes."""
    cdef const char* names[2]
    cdef const char* values[2]
    cdef char header[HEADER_BYTES]
    cdef Py_buffer view
    write_header(&sent.fields, header)
    names[0] = FORMAT_NAME
    values[0] = entry_format
    names[1] = HEADER_NAME
    values[1] = header
    if type(payload) is bytes:
        producer.post(sent, PyBytes_AS_STRING(payload), <size_t>size, 2, names, values)
        return True
    try:
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    except BufferError:
        return False
    try:
        if view.len != size:
            return False
        producer.post(sent, <const char*>view.buf, <size_t>size, 2, names, values)
        return True
    finally:
        PyBuffer_Release(&view)


def handle_responses(ProducerState producer not None, list responses):
    """`ExclusiveProducer._handle_responses`; in the common case, compiled."""
    cdef InFlightMessage sent
    cdef list messages = []
    for context, result, ledger, entry in responses:
        if type(context) is not InFlightMessage or result != RESULT_OK:
            producer.handle_any(responses)
            return
        sent = <InFlightMessage>context
        sent.result = RESULT_OK
        sent.fields.ledger, sent.fields.entry = ledger, entry
        messages.append(sent)
    if not complete(messages):
        producer.handle_any(responses)


cdef bint complete(list messages) except -1:
    """Complete the appends, which have responses, as `ExclusiveProducer._handle_responses` does.

    All are of one producer.
    """
    cdef InFlightMessage sent
    cdef AppendState queue
    cdef ProducerState producer
    cdef int64_t released = 0
    cdef Py_ssize_t number, count = len(messages)
    if not count or type(messages[0]) is not InFlightMessage:
        return False
    queue = (<InFlightMessage>messages[0]).queue
    if queue is None or queue._is_empty:
        return False
    producer = queue._producer
    in_flight = producer._in_flight
    if producer.is_closed or len(in_flight) < count:
        return False
    for number in range(count):
        if type(messages[number]) is not InFlightMessage:
            return False
        sent = <InFlightMessage>messages[number]
        if (
            sent.queue is not queue
            or sent.result != RESULT_OK
            or sent.is_released
            or in_flight[number] is not sent
        ):
            return False
        released += sent.cost
    popleft = in_flight.popleft
    for sent in messages:
        sent.is_released = True
        popleft()
    producer._room.reserved_bytes -= released
    producer._room.reserved_operations -= count
    queue._on_stored(messages)
    if producer._idle and not in_flight:
        producer._notify_idle()
    return True


cdef int dispatch(response* one) except -1:
    """Pass each burst of responses, the oldest first, to its producer."""
    cdef dict taken = {}
    cdef list of_producer = None
    cdef void* producer = NULL
    cdef response* following
    cdef InFlightMessage sent
    while one != NULL:
        if one.producer != producer:
            producer = one.producer
            of_producer = taken.setdefault(<object>producer, [])
        context = <object>one.context
        if type(context) is InFlightMessage:
            sent = <InFlightMessage>context
            sent.result = one.result
            sent.fields.ledger, sent.fields.entry = one.ledger, one.entry
            of_producer.append(sent)
        else:
            of_producer.append((context, one.result, one.ledger, one.entry))
        Py_DECREF(<object>one.context)
        Py_DECREF(<object>one.producer)
        following = one.next
        free(one)
        one = following
    context = sent = None
    for owner, of_producer in taken.items():
        try:
            if not complete(of_producer):
                owner.on_responses([response_of(one_of) for one_of in of_producer])
        except Exception:
            logger.exception("bug: responses from Pulsar could not be handled")
    return 0


cdef response_of(one):
    """A response as a tuple."""
    cdef InFlightMessage sent
    if type(one) is not InFlightMessage:
        return one
    sent = <InFlightMessage>one
    return sent, sent.result, sent.fields.ledger, sent.fields.entry


cdef class ResponseDispatcher:
    """Passes each burst of responses to the producers; in the reactor's thread.

    The library's thread wakes the reactor once per burst, without the GIL. `close` dispatches the
    last responses; call it after the client was closed.
    """

    cdef Client client
    cdef object reactor, reactor_calls

    def __init__(self, Client client not None, reactor, reactor_calls):
        self.client, self.reactor, self.reactor_calls = client, reactor, reactor_calls
        reactor.addReader(self)

    def fileno(self):
        return self.client.responses.descriptor

    def doRead(self):
        """Raises nothing: the reactor would not watch it any longer."""
        self.reactor_calls.run(self._dispatch)

    def _dispatch(self):
        dispatch(take_responses(self.client.responses))

    def close(self):
        self.reactor.removeReader(self)
        self.doRead()

    def connectionLost(self, reason):
        """The reactor has ended."""

    def logPrefix(self):
        return "pulsar"


def header_text(header):
    """The text of a header as it is sent, for tests."""
    cdef Fields fields
    cdef char text[HEADER_BYTES]
    read_header(&fields, header)
    write_header(&fields, text)
    return (<const char*>text).decode("ascii")
