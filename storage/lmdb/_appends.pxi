# Appends and table rows by the flusher, from their queuing to their completion, with all state in C
# fields.
#
# The functions return None or False, and have changed nothing, unless it is the common case. Then
# the Python code, which handles all cases, takes over. The classes ...State are bases of Python
# classes; the others replace the Python classes of the same names.

import logging
import os

from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.errno cimport errno
from libc.string cimport memset

from storage._bridge cimport Completion, ReactorCallQueue
from storage._files cimport FlushThread
from storage._log cimport CachedTailState, LogStatusState, OpenLog, TailCache

from storage.files import MOST_BUFFERS
from storage.lmdb.layout import Place

cdef extern from "<unistd.h>" nogil:
    ssize_t read(int descriptor, void* to, size_t size)
    int close(int descriptor)

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec

cdef extern from "<sys/timerfd.h>" nogil:
    int TFD_CLOEXEC
    int TFD_NONBLOCK
    struct itimerspec:
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(
        int descriptor, int flags, const itimerspec* until, itimerspec* before
    )

logger = logging.getLogger("storage.lmdb.write_queue")

cdef Py_ssize_t MOST_PARTS = MOST_BUFFERS
# Of the journal; set before they are used.
cdef int64_t first_step = 0, largest_step = 0, largest_filled_write = 0


cdef class DurableLog:
    cdef public object log_id
    cdef public int64_t start_offset, end_offset, running_timestamp, position, size

    def __init__(
        self, log_id, start_offset, end_offset, running_timestamp, position, size
    ):
        self.log_id, self.start_offset, self.end_offset = log_id, start_offset, end_offset
        self.running_timestamp, self.position, self.size = running_timestamp, position, size

    cpdef DurableLog copy(self):
        cdef DurableLog copied = DurableLog.__new__(DurableLog)
        copied.log_id, copied.start_offset = self.log_id, self.start_offset
        copied.end_offset, copied.running_timestamp = self.end_offset, self.running_timestamp
        copied.position, copied.size = self.position, self.size
        return copied

    def __reduce__(self):
        return DurableLog, (
            self.log_id,
            self.start_offset,
            self.end_offset,
            self.running_timestamp,
            self.position,
            self.size,
        )

    def __repr__(self):
        return f"DurableLog{self.__reduce__()[1]}"

    def __eq__(self, other):
        return type(other) is DurableLog and self.__reduce__() == other.__reduce__()


cdef class Append(Completion):
    cdef public object log_id, entries, log
    cdef public int64_t size

    def __init__(self, log_id, entries, size, log):
        self.log_id, self.entries, self.size, self.log = log_id, entries, size, log


cdef class Turn:
    cdef PyThread_type_lock _lock
    cdef public bint _is_awaited
    cdef readonly bint is_taken

    def __cinit__(self):
        self._lock = PyThread_allocate_lock()
        if self._lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self._lock != NULL:
            # It must not be freed while it is held.
            PyThread_acquire_lock(self._lock, NOWAIT_LOCK)
            PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    def __enter__(self):
        self._is_awaited = True
        with nogil:
            PyThread_acquire_lock(self._lock, WAIT_LOCK)
        self._is_awaited, self.is_taken = False, True

    def __exit__(self, *_):
        self.give_back()

    cpdef bint take_if_free(self):
        if self._is_awaited or not PyThread_acquire_lock(self._lock, NOWAIT_LOCK):
            return False
        self.is_taken = True
        return True

    cpdef give_back(self):
        if not self.is_taken:
            raise RuntimeError("no thread has the turn")
        self.is_taken = False
        PyThread_release_lock(self._lock)


cdef class StoreState:
    """Of an `LmdbStore`."""

    cdef public object settings
    cdef public TailCache tail
    cdef public dict _changed_logs
    cdef public bint _is_open
    cdef public int64_t _queued_bytes, _queued_operations
    cdef public WriteQueue _queue


cdef class LogState(OpenLog):
    """Of an `LmdbLog`."""

    cdef public StoreState _store
    cdef public CachedTailState _cached_tail
    cdef public LogStatusState status
    cdef public object _log_id, _ahead
    cdef public str _failure
    cdef public int64_t size, _in_flight, _read_from, _read_to, _not_cached, _wanted

    cdef queue_entry(self, Entry entry):
        return queue_append(self, entry, (entry,))


cdef class PendingState:
    """Of a `PendingIndex`."""

    cdef public object rows
    cdef public int64_t count


cdef class WriteQueue:
    cdef object _reactor, _write, _deadline, _on_finished
    cdef list _waiting
    cdef bint _is_writing
    cdef public Py_ssize_t _expected_operations
    cdef Py_ssize_t _burst_operations
    cdef int64_t _burst_bytes
    cdef double _gathering_seconds
    cdef bint _is_gathering
    cdef public FlusherBursts flusher_bursts

    def __init__(self, reactor, settings, write):
        self._reactor, self._write = reactor, write
        self._waiting = []
        self._expected_operations = 1
        self._burst_operations, self._burst_bytes = settings.burst_operations, settings.burst_bytes
        self._gathering_seconds = settings.gathering_seconds

    cpdef add(self, operation):
        self._waiting.append(operation)
        if not self._is_writing and len(self._waiting) >= self._expected_operations:
            self._write_next()

    cpdef burst_written(self, Py_ssize_t appends):
        self._expected_operations = len(self._waiting) + appends

    cpdef outcomes_delivered(self):
        self._is_writing = False
        if self._on_finished is not None or len(self._waiting) >= self._expected_operations:
            self._write_next()
        elif self._expected_operations > 1:
            if self.flusher_bursts is not None:
                self._is_gathering = True
                self.flusher_bursts.timer.start(max(self._gathering_seconds, 1e-9))
            else:
                self._deadline = self._reactor.callLater(
                    self._gathering_seconds, self._stop_waiting
                )

    def finish(self, ended):
        self._on_finished = ended
        self._expected_operations = 1
        if not self._is_writing:
            self._write_next()

    cpdef _stop_waiting(self):
        self._deadline = None
        self._is_gathering = False
        self._expected_operations = 1
        if self._waiting:
            self._write_next()

    cdef _write_next(self):
        cdef list waiting = self._waiting
        cdef Py_ssize_t count = 0, most = min(len(waiting), self._burst_operations)
        cdef int64_t size = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._is_gathering:
            self._is_gathering = False
            self.flusher_bursts.timer.start(0)
        while count < most and size < self._burst_bytes:
            operation = waiting[count]
            size += (
                (<Append>operation).size
                if type(operation) is Append
                else <int64_t>operation.size
            )
            count += 1
        if not count:
            if self._on_finished is not None:
                self._on_finished()
            return
        self._waiting = waiting[count:] if count < len(waiting) else []
        del waiting[count:]
        self._is_writing = True
        if self.flusher_bursts is None or not self.flusher_bursts.begin(waiting):
            self._write(waiting)


cdef class GatheringTimer:
    """Ends the queue's wait for more operations.

    It is one of the kernel: a timer of the reactor takes as much CPU as a small append.
    """

    cdef int _descriptor
    cdef object _reactor
    cdef WriteQueue _queue

    def __cinit__(self):
        self._descriptor = -1

    def __init__(self, reactor, queue):
        self._descriptor = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(errno, os.strerror(errno))
        self._reactor, self._queue = reactor, queue
        reactor.addReader(self)

    def __dealloc__(self):
        if self._descriptor >= 0:
            close(self._descriptor)

    cdef start(self, double seconds):
        """Begin again; 0 ends the timer."""
        cdef itimerspec until
        memset(&until, 0, sizeof(until))
        until.it_value.tv_sec = <long>seconds
        until.it_value.tv_nsec = <long>((seconds - <long>seconds) * 1e9)
        if timerfd_settime(self._descriptor, 0, &until, NULL) != 0:
            raise OSError(errno, os.strerror(errno))

    def doRead(self):
        """Raises nothing: the reactor would not watch it any longer."""
        cdef uint64_t expirations
        try:
            if (
                self._queue is not None
                and read(self._descriptor, &expirations, sizeof(expirations)) > 0
                and self._queue._is_gathering
            ):
                self._queue._stop_waiting()
        except Exception:
            logger.exception("bug: a burst could not be begun")

    def close(self):
        self._reactor.removeReader(self)
        self._queue = None
        close(self._descriptor)
        self._descriptor = -1

    def fileno(self):
        return self._descriptor

    def connectionLost(self, reason):
        """The reactor has ended."""

    def logPrefix(self):
        return "gathering"


cdef class JournalState:
    """Of a `Journal`: its end, and the writes of the flusher behind it."""

    cdef uint64_t end_segment
    cdef int64_t end_at
    cdef public SegmentState _file
    cdef public bytes mark, _folder
    cdef public int64_t held_bytes, segment_bytes, _reserve_bytes, _durable_to
    cdef public int64_t _least_room, _growth
    cdef public bint _syncs_appends, _is_synced, _is_cut, _is_left, is_filling

    @property
    def end(self):
        """A Place, which any thread may read."""
        return Place(self.end_segment, self.end_at)

    @end.setter
    def end(self, end):
        self.end_segment, self.end_at = end

    cpdef int64_t flusher_limit(self) except -1:
        """Up to where `begin_write` can write, if this is the common case; otherwise 0.

        It can make the file larger, unless `fill_ahead` does that at the same time.
        """
        cdef SegmentState file = self._file
        if (
            file is None
            or not self._is_cut
            or self._is_left
            or (self._syncs_appends and not self._is_synced)
        ):
            return 0
        return min(file.size, self.segment_bytes) if self.is_filling else self.segment_bytes

    cdef bint needs_zeros(self, int64_t at, int64_t end):
        """Whether frames from `at` to `end` should be written together with zeros behind them."""
        cdef SegmentState file = self._file
        return self._syncs_appends and end > file.size and end - at <= largest_filled_write

    cdef bint may_lack_zeros(self, int64_t at) except -1:
        """Whether there are few zeros behind the position `at`; `lacks_zeros` decides."""
        cdef SegmentState file = self._file
        return self._syncs_appends and file.size - at < min(
            max(file.size, first_step), largest_step
        )

    cpdef begin_write(self, flusher, list buffers, int64_t at):
        """Begin to write frames from the end to `at`, within the limit.

        `buffers` are bytes, and entries for their payloads.

        Does not block.

        Before `end_write` has ended it, only `read` and `lacks_zeros` may be called, and
        `fill_ahead` if the file does not become larger.
        """
        cdef SegmentState file = self._file
        self._growth = max(at - file.size, 0)
        # As `_reserve` and `_store`.
        self._least_room = max(self._reserve_bytes - self.held_bytes, 0) + self._growth
        if type(flusher) is FlushThread:
            (<FlushThread>flusher).begin_call(
                file._descriptor,
                buffers,
                self.end_at,
                self._folder,
                file.size,
                self._least_room,
                self._syncs_appends,
            )
        else:
            flusher.begin(
                file._descriptor,
                [payload_of(<Entry>one) if type(one) is Entry else one for one in buffers],
                self.end_at,
                self._folder,
                file.size,
                self._least_room,
                self._syncs_appends,
            )
        if self._growth:
            # Not otherwise: `fill_ahead` may change it at the same time.
            file.size = at

    cpdef bint end_write(self, flusher, int64_t at) except -1:
        """End `begin_write`: the journal ends at the position `at`. False if it has not ended yet.

        Raises JournalFailed. Then `clean_up` has to be called.
        """
        cdef int64_t room = 0
        try:
            if type(flusher) is FlushThread:
                if not (<FlushThread>flusher).end_call(&room):
                    return False
            else:
                found = flusher.end()
                if found is None:
                    return False
                room = found
        except OSError as error:
            raise self._flusher_failed(error, 0) from error
        if room < self._least_room:
            raise self._flusher_failed(None, room)
        self._is_synced = self._syncs_appends
        self.end_at = at
        if self._is_synced:
            self._durable_to = at
        return True


cdef class SegmentState:
    """Of a `SegmentFile`."""

    cdef public int _descriptor
    cdef public int64_t size


cdef class FlusherBursts:
    """Bursts of the flusher: appends, and writes of table rows; for the reactor thread.

    Each is encoded at once. It has the turn until the flusher has ended. Then its operations are
    completed, or `fail` is called with them and the error.
    """

    cdef object flusher, reactor, state, settings, fail, deliver, fill_ahead, rows_added, failure
    cdef object table_put, encode_table_rows
    cdef ReactorCallQueue reactor_calls
    cdef JournalState journal
    cdef Turn turn
    cdef WriteQueue queue
    cdef readonly GatheringTimer timer
    cdef int64_t most_rows, most_operations
    # Of the burst that is written, or whose outcomes are to be delivered; and what is written.
    cdef list operations
    cdef Frames staged
    cdef Py_ssize_t appends
    cdef bint has_puts, has_logged

    def __init__(
        self, flusher, reactor, reactor_calls, journal, settings, state, turn, queue, deliver,
        fail, fill_ahead, rows_added,
    ):
        """`deliver` is called with outcomes that are not the common case. `fill_ahead` is called
        when the journal should be filled with zeros, `rows_added` when there are new table rows or
        many rows of entries, before the turn is given back.
        """
        from storage.lmdb.frames import encode_table_rows
        from storage.lmdb.journal import FIRST_STEP, LARGEST_FILLED_WRITE, LARGEST_STEP
        from storage.lmdb.write_burst import TablePut

        global first_step, largest_step, largest_filled_write
        first_step, largest_step = FIRST_STEP, LARGEST_STEP
        largest_filled_write = LARGEST_FILLED_WRITE
        self.flusher, self.reactor, self.reactor_calls = flusher, reactor, reactor_calls
        self.journal, self.state, self.turn, self.queue = journal, state, turn, queue
        self.most_rows = min(settings.index_entries, settings.index_limit)
        # An append has at least two buffers.
        self.most_operations = MOST_BUFFERS // 2
        self.deliver, self.fail, self.fill_ahead = deliver, fail, fill_ahead
        self.settings, self.rows_added = settings, rows_added
        self.table_put, self.encode_table_rows = TablePut, encode_table_rows
        self.timer = GatheringTimer(reactor, queue)
        reactor.addReader(self)

    def close(self):
        """End the flusher, after its last burst."""
        self.timer.close()
        self.reactor.removeReader(self)
        self.flusher.close()

    cpdef bint begin(self, list operations) except -1:
        """Begin a burst, or return False: then the writer thread has to write it.

        It has to write the first rows after a commit, so that it wakes to commit them.
        """
        cdef bint has_begun = False
        if len(operations) > self.most_operations or not self.turn.take_if_free():
            return False
        try:
            has_begun = self._begin(operations)
        except Exception:
            # The writer thread writes the burst. If it cannot either, it answers with its error.
            if not self.has_logged:
                self.has_logged = True
                logger.exception("bug: the flusher could not begin a burst")
        if not has_begun:
            self.turn.give_back()
        return has_begun

    cdef bint _begin(self, list operations) except -1:
        """Encode a burst and pass it to the flusher, in the common case."""
        cdef JournalState journal = self.journal
        cdef int64_t at, limit = journal.flusher_limit()
        cdef list appends = operations
        cdef dict table_rows = None
        cdef bytes payload = None
        cdef Frames staged
        cdef PendingState pending
        state = self.state
        if not limit:
            return False
        pending = state.pending
        if (
            pending.count >= self.most_rows
            or (not pending.count and pending.older is None)
            or state.failing
            or state.is_unresolved
        ):
            return False
        for operation in operations:
            if type(operation) is self.table_put:
                if table_rows is None:
                    table_rows = {}
                table_rows.update(operation.rows)
        if table_rows is not None:
            if not table_rows or not journal._syncs_appends:
                return False
            payload = self.encode_table_rows(table_rows)
            settings = self.settings
            if not pending.has_room(
                table_rows, len(payload), settings.table_rows, settings.table_bytes
            ):
                return False
            appends = [one for one in operations if type(one) is not self.table_put]
        at = journal.end_at
        staged = stage_appends(
            appends,
            state.logs,
            journal.mark,
            journal.end_segment,
            at,
            journal._durable_to,
            limit,
        )
        if staged is None:
            return False
        if payload is not None:
            self._stage_table_rows(staged, table_rows, payload)
        if (
            <int64_t>staged.at > limit
            or len(staged.buffers) > MOST_PARTS
            or journal.needs_zeros(at, <int64_t>staged.at)
        ):
            return False
        if (
            not journal.is_filling
            and <int64_t>staged.at - at <= largest_filled_write
            and journal.may_lack_zeros(<int64_t>staged.at)
            and journal.lacks_zeros
        ):
            self.fill_ahead()
        journal.begin_write(self.flusher, staged.buffers, <int64_t>staged.at)
        self.operations, self.staged = operations, staged
        self.appends, self.has_puts = len(appends), table_rows is not None
        return True

    cdef _stage_table_rows(self, Frames staged, dict rows, bytes payload):
        """Add a frame with table rows."""
        cdef int64_t running = -1, position = 0, number = self.state.next_table_write
        # As `Staging.put_table_rows`.
        staged.add(
            TABLES_LOG_ID, (new_entry(number, number, -1, payload),), &running, &position
        )
        staged.table_rows, staged.table_payload_bytes = rows, len(payload)

    def doRead(self):
        """The flusher has ended. Raises nothing: the reactor would not watch it any longer."""
        cdef Frames staged = self.staged
        if staged is None:
            return
        try:
            if not self.journal.end_write(self.flusher, staged.at):
                return
        except Exception as error:
            operations, self.operations, self.staged = self.operations, None, None
            self.turn.give_back()
            self.fail(operations, error)
            return
        self.staged = None
        try:
            publish(staged, self.state)
        except BaseException as bug:
            # The entries are durable but not readable. Later ones must not be written before a
            # restart has read them.
            self.state.is_unresolved = True
            logger.exception("bug: rows could not be added; writing stops until a restart")
            self.failure = StorageFailed(f"the outcome of the write is not known: {bug!r}")
        else:
            self._note_rows()
        self.turn.give_back()
        try:
            self.reactor_calls.run(self._complete)
        except BaseException:
            logger.exception("bug: the outcomes of a burst could not be delivered")

    cdef _note_rows(self):
        if self.has_puts or <int64_t>self.state.pending.count >= self.most_rows:
            try:
                self.rows_added()
            except BaseException:
                logger.exception("bug: rows could not be set aside; they are committed later")

    def _complete(self):
        cdef list operations = self.operations
        failure, self.operations, self.failure = self.failure, None, None
        self.queue.burst_written(self.appends)
        try:
            if failure is not None or self.has_puts or not complete_appends(operations):
                self.deliver([(one, None, failure) for one in operations])
        finally:
            self.queue.outcomes_delivered()

    def fileno(self):
        return self.flusher.fileno()

    def connectionLost(self, reason):
        """The reactor has ended."""

    def logPrefix(self):
        return "flusher"


cpdef Frames stage_appends(
    list operations,
    dict logs,
    bytes mark,
    uint64_t segment,
    uint64_t at,
    uint32_t durable_to,
    uint64_t limit,
):
    """As `encode_appends`, in the common case: None if it is not, and nothing has changed.

    All operations are appends, none of them is refused, and the frames are within the position
    `limit`. The changed logs are copies.
    """
    cdef uint64_t end = at
    cdef Frames frames
    cdef DurableLog log
    cdef Append append
    cdef dict rows = {}, changed = {}
    cdef list keys
    cdef Entry entry
    for operation in operations:
        if type(operation) is not Append:
            return None
        append = <Append>operation
        end += <uint64_t>append.size + FRAME_BYTES * <uint64_t>len(append.entries)
    if end > limit:
        return None
    frames = Frames(mark, segment, at, durable_to, [])
    frames.has_entries = True
    frames.rows, frames.logs = rows, changed
    for operation in operations:
        append = <Append>operation
        entries = append.entries
        log = changed.get(append.log_id)
        if log is None:
            log = logs.get(append.log_id)
            if log is None:
                return None
            log = log.copy()
            changed[append.log_id] = log
        entry = entries[0]
        if entry.base_offset != log.end_offset:
            return None
        keys = frames.add(append.log_id, entries, &log.running_timestamp, &log.position)
        its_rows = rows.get(append.log_id)
        if its_rows is None:
            rows[append.log_id] = keys
        else:
            (<list>its_rows).extend(keys)
        entry = entries[len(entries) - 1]
        log.end_offset = entry.last_offset + 1
        log.size += append.size
    return frames


cdef publish(Frames staged, state):
    """Make the entries of a burst readable; as `Burst.publish`."""
    cdef PendingState pending = state.pending
    cdef dict rows = <dict?>pending.rows
    cdef Py_ssize_t count = 0
    (<dict?>state.logs).update(staged.logs)
    for log_id, keys in staged.rows.items():
        known = rows.get(log_id)
        if known is None:
            rows[log_id] = keys
        else:
            (<list?>known).extend(<list>keys)
        count += len(<list>keys)
    pending.count += count
    if staged.table_rows is not None:
        state.next_table_write += 1
        pending.add_table_rows(staged.table_rows, staged.segment, staged.table_payload_bytes)


def append(LogState log, entries):
    """`LmdbLog.append`; in the common case, compiled."""
    cdef Append queued = None
    if type(entries) is tuple and len(<tuple>entries) == 1:
        queued = queue_append(log, (<tuple>entries)[0], entries)
    return log.append_any(entries) if queued is None else queued


cdef Append queue_append(LogState log, Entry entry, tuple entries):
    """Queue an append of one entry and return it."""
    cdef int64_t first, last, size
    cdef Append append
    cdef StoreState store = log._store
    if log.status.end_reason is not None or log._failure:
        return None
    first, last = entry.base_offset, entry.last_offset
    if first != log.next_offset or last < first or store._queue is None or not store._is_open:
        return None
    size = payload_size(entry)
    if store._queued_operations:
        settings = store.settings
        if (
            store._queued_bytes + size > <int64_t>settings.queue_bytes
            or store._queued_operations >= <int64_t>settings.queue_operations
        ):
            return None
    append = Append.__new__(Append)
    append.log_id, append.entries, append.size, append.log = log._log_id, entries, size, log
    store._queued_bytes += size
    store._queued_operations += 1
    store._queue.add(append)
    log.next_offset = last + 1
    log._in_flight += 1
    return append


def complete_outcomes(list outcomes):
    """`complete_appends` for outcomes of the writer thread."""
    cdef tuple outcome
    cdef list appends = []
    for outcome in outcomes:
        if type(outcome[0]) is not Append or outcome[2] is not None:
            return False
        appends.append(outcome[0])
    return complete_appends(appends)


cdef bint complete_appends(list appends) except -1:
    """Deliver successful outcomes as `LmdbStore._deliver` and return True, or return False."""
    cdef StoreState store = None
    cdef LogState log
    cdef Append append
    cdef Entry entry
    cdef LogStatusState status
    for append in appends:
        log = append.log
        if log._failure:
            return False
        store = log._store
    if store is None:
        return False
    for append in appends:
        log, entries = append.log, append.entries
        store._queued_bytes -= append.size
        store._queued_operations -= 1
        log._in_flight -= 1
        log.size += append.size
        for entry in entries:
            log.end_offset = entry.last_offset + 1
            store.tail.add(log._cached_tail, entry)
        status = log.status
        if status.watchers:
            store._changed_logs[status] = None
    if store._changed_logs:
        store.notify_changed()
    for append in appends:
        append.succeed(None)
    return True
