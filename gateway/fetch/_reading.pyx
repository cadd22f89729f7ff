# cython: language_level=3
"""A Fetch whose next records are in memory, compiled, for consumers of format 2.

The reference is `fetch_records` of `gateway.handlers.fetch` with `FetchReader.read_at_once`: the
results are the same. What is not the common case is left to them, with what has been read so far.
"""

cimport cython
from libc.stdint cimport int64_t

from gateway.coroutines import SLICE_ROWS, TimeSlices
from gateway.fetch.conversion_calls import V2_WITH_ZSTD, V2_WITHOUT_ZSTD
from gateway.fetch.entry_loops import loops
from gateway.fetch.fetch_reader import (
    BYTES_PER_ROW,
    ENTRIES_PER_ROW,
    FIRST_WITH_ZSTD,
    FetchPass,
    FetchReader,
)
from gateway.fetch.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from gateway.protocol.errors import KafkaError
from gateway.protocol.wire.fetch_codec import FetchResponse, PartitionFetched
from gateway.security.acls import AclOperation
from storage.log import StorageError

#: Version of the signatures; `gateway.handlers.fetch` expects the same number.
INTERFACE = 1

cdef int64_t slice_rows = SLICE_ROWS
cdef int64_t bytes_per_row = BYTES_PER_ROW, entries_per_row = ENTRIES_PER_ROW
cdef int64_t no_session = NO_SESSION, initial_epoch = INITIAL_EPOCH, final_epoch = FINAL_EPOCH
cdef int64_t first_with_zstd = FIRST_WITH_ZSTD
cdef object read_operation = AclOperation.READ
cdef object whole_batches = loops.whole_batches, are_batches = loops.are_batches


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Reading:
    """As a `FetchReader` with its `FetchPass`.

    `unused` are the entries of the next partition that are left to it, with the partition.
    """

    cdef object request, caller, magic, unused
    cdef list order
    cdef dict rows
    cdef int64_t most_bytes, sufficient_bytes, size, counted
    cdef bint with_zstd

    def __init__(self, request, caller):
        self.request, self.caller = request, caller
        self.with_zstd = <int64_t>request.version >= first_with_zstd
        self.magic = V2_WITH_ZSTD if self.with_zstd else V2_WITHOUT_ZSTD
        self.rows = {}

    cdef bint count(self, int64_t rows) noexcept:
        """As `TimeSlices.count`."""
        self.counted += rows
        return self.counted >= slice_rows

    cdef bint read(self, list order) except -1:
        """As `FetchReader.read_at_once`: returns False if a coroutine has to continue."""
        cdef int64_t wanted = self.request.max_bytes
        broker = self.caller.broker
        outgoing = broker.outgoing
        self.order = order
        self.most_bytes = outgoing.reserve(min(wanted, <int64_t>broker.settings.fetch_max_bytes))
        try:
            for cached in order:
                if self.count(1):
                    return False
                try:
                    row = self.read_one(cached)
                except (KafkaError, StorageError):
                    # Reading again fails again, and returns the error.
                    return False
                if row is None:
                    return False
                self.rows[cached] = row
        finally:
            outgoing.release(self.most_bytes)
        wanted = self.request.min_bytes
        self.sufficient_bytes = min(wanted, self.most_bytes // 2 + 1)
        return True

    cdef read_one(self, cached):
        """As `FetchReader._read_one_at_once`. Errors, too, are left to the coroutine."""
        cdef int64_t start_offset, end_offset, offset, epoch, limit
        topics = self.caller.broker.topics
        topic, index = <tuple?>cached.key
        if not self.caller.may_use_topic(read_operation, topic):
            return None
        partition = topics.get_open_partition(topic, index)
        if partition is None:
            return None
        if cached.partition is not partition:
            cached.attach(partition, topics.require(topic).topic.topic_id)
        log, requested = partition.log, cached.requested
        start_offset, end_offset = log.start_offset, log.end_offset
        offset, epoch = requested.fetch_offset, requested.current_leader_epoch
        if (
            partition.has_resigned
            or log.status.end_reason is not None
            or (epoch >= 0 and epoch != <int64_t>log.leader_epoch)
            or <int64_t>requested.last_fetched_epoch >= 0
            or not start_offset <= offset <= end_offset
        ):
            return None
        cached.log_size = log.size
        records = []
        limit = min(<int64_t>requested.max_bytes, self.most_bytes - self.size)
        if offset < end_offset and (limit > 0 or self.size == 0):
            if partition.skip_empty(offset, self.magic) != offset:
                return None
            records = self.read_records(partition, log, offset, max(limit, 0))
            if records is None:
                return None
        return PartitionFetched(
            index,
            0,
            end_offset,
            end_offset,
            start_offset,
            records,
            () if self.request.isolation_level == 1 else None,
        )

    cdef list read_records(self, partition, log, int64_t offset, int64_t limit):
        """As `FetchReader._read_memory`. Returns None, and sets `unused`, if something else has to
        be done before.
        """
        cdef int64_t size, count
        run = log.read_run(offset, limit, at_least_one=self.size == 0)
        if run is None:
            entries = log.read_resident(offset, limit)
            if entries is None:
                self.unused = partition, None
                return None
            records, size = whole_batches(entries, offset, limit, with_zstd=self.with_zstd)
            self.count(size // bytes_per_row + <int64_t>len(entries) // entries_per_row)
        else:
            payload, count, entries, records = run.payload, run.count, None, []
            size = len(payload)
            self.count(size // bytes_per_row + count // entries_per_row)
            if (
                count > 0
                and offset <= <int64_t>run.base_offset
                and size <= limit
                and are_batches(payload, count, with_zstd=self.with_zstd)
            ):
                records = [payload]
            else:
                entries = run.entries()
        if records:
            self.size += size
        elif entries:
            self.unused = partition, entries
            return None
        return records

    cdef go_on(self, fetch, session, bint is_read):
        """Return the coroutine `fetch`, which goes on with what has been read."""
        slices, result = TimeSlices(self.caller.broker.clock), None
        slices.count(self.counted)
        reader = FetchReader(self.caller, self.request, None, slices)
        if is_read:
            result = FetchPass(self.sufficient_bytes, self.rows, self.size)
        elif self.order is not None:
            reader.continue_with(self.rows, self.size, self.order, self.unused)
        return fetch(session, self.request, self.caller, reader, result)


cdef class FetchWork:
    """The functions of `gateway.handlers.fetch` for what is not compiled, and MAX_READ_AT_ONCE.

    `fetch` is the coroutine.
    """

    cdef object find_session, check_room, fetch, refused
    cdef Py_ssize_t most_at_once

    def __init__(self, find_session, check_room, fetch, refused, most_at_once):
        self.find_session, self.check_room, self.fetch = find_session, check_room, fetch
        self.refused, self.most_at_once = refused, most_at_once

    def serve(self, request, caller):
        """As `fetch_records`."""
        cdef Reading reading
        cdef bint is_read = False, is_released = True
        try:
            session = self.find_session(request, caller)
        except KafkaError as failure:
            return self.refused(request, caller, failure)
        try:
            reading = Reading(request, caller)
            if caller.usage is None and self.update(session, request):
                if len(session.partitions) != session.counted_partitions:
                    self.check_room(session, request, caller)
                is_read = reading.read(list(session.pending))
            if not is_read or not (
                reading.size >= reading.sufficient_bytes or <int64_t>request.max_wait_ms <= 0
            ):
                is_released = False
                return reading.go_on(self.fetch, session, is_read)
            reply = reply_of(session, request, reading.rows)
            caller.traffic.fetched(request, reply)
            return reply
        except KafkaError as failure:
            return self.refused(request, caller, failure)
        finally:
            if is_released:
                session.is_in_use = False
                if <int64_t>session.session_id == no_session or session.is_closed:
                    session.close()

    cdef bint update(self, session, request) except -1:
        """As `_update_session`, if few partitions are to be read. Otherwise nothing has changed."""
        cdef Py_ssize_t count = 0
        topics = request.topics
        if (
            len(session.pending) > self.most_at_once
            or len(topics) > self.most_at_once
            or request.forgotten
        ):
            return False
        for topic in topics:
            count += len(topic.partitions)
        if count > self.most_at_once:
            return False
        for topic in topics:
            name = topic.topic
            for requested in topic.partitions:
                session.update((name, requested.index), requested)
        return True


cdef reply_of(session, request, dict rows):
    """As `_add_row` for each row; none has an error."""
    cdef int64_t epoch = request.session_epoch
    cdef bint is_full = epoch == final_epoch or epoch == initial_epoch
    cdef bint has_session = <int64_t>session.session_id != no_session
    cdef dict topics = {}
    pending = session.pending
    for cached, row in rows.items():
        records, end_offset, start_offset = row.records, row.high_watermark, row.log_start_offset
        if (
            is_full
            or records
            or end_offset != cached.sent_high_watermark
            or start_offset != cached.sent_start_offset
        ):
            topic = (<tuple?>cached.key)[0]
            if topic in topics:
                topics[topic].append(row)
            else:
                topics[topic] = [row]
        cached.sent_high_watermark, cached.sent_start_offset = end_offset, start_offset
        if not has_session:
            continue
        if records:
            pending[cached] = None
            pending.move_to_end(cached)
        elif not cached.has_unread_records:
            pending.pop(cached, None)
    return FetchResponse(list(topics.items()), session_id=session.session_id)
