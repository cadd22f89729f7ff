# Part of _library.pyx: what a reader has received, as headers, entries and payloads. A run of usual
# messages is checked and turned into entries in one call (`stored_messages.py` has the reference).

cdef int read_numbers(const char* at, int64_t* numbers) noexcept nogil:
    """The integers of a JSON array without spaces; 0 if it is anything else."""
    cdef int count = 0, digits, negative
    cdef int64_t value
    if at[0] != c"[":
        return 0
    while True:
        at += 1
        negative = at[0] == c"-"
        at += negative
        value = digits = 0
        while c"0" <= at[0] <= c"9" and digits < DIGITS:
            value = 10 * value + (at[0] - c"0")
            digits += 1
            at += 1
        if digits == 0 or count == HEADER_NUMBERS:
            return 0
        if digits > 1 and at[-digits] == c"0":
            return 0
        numbers[count] = -value if negative else value
        count += 1
        if at[0] == c"]":
            return count if at[1] == 0 else 0
        if at[0] != c",":
            return 0


cdef bint is_written_by_store(Received* one) noexcept nogil:
    """Whether the numbers are a header as the store writes it; sets those that it leaves out."""
    cdef int64_t* numbers = one.numbers
    if one.count < 6 or numbers[0] != HEADER_VERSION:
        return False
    if one.count < 7:
        numbers[6] = -1
    if one.count < 8:
        numbers[7] = 1
    if one.count < 9:
        numbers[8] = 0
    return (
        0 <= numbers[1] <= numbers[2] + 1
        and numbers[2] >= -1
        and -1 <= numbers[3] <= numbers[6]
        and numbers[4] >= 0
        and numbers[5] >= -1
        and numbers[7] >= 1
        and numbers[8] >= 0
    )


cdef object header_of(Received* one):
    """As `parse_header`, which decides about everything that the store does not write."""
    cdef int64_t* numbers = one.numbers
    if is_written_by_store(one):
        return Header(
            numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6], numbers[7],
            numbers[8],
        )
    try:
        return parse_header({HEADER: one.header.decode()}) if one.header[0] else None
    except UnicodeDecodeError:
        return None


def header_in(bytes text):
    """The header of a message with this property, for tests."""
    cdef Received one
    one.header = text
    one.count = read_numbers(one.header, one.numbers)
    return header_of(&one)


cdef class Payload:
    """The payload of a message, in the library's memory."""

    cdef void* message
    cdef const char* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.data, self.size, 1, flags)

    def __dealloc__(self):
        pulsar_message_free(self.message)


cdef Payload kept_payload(Received* one):
    """The payload with its message, which `one` no longer has."""
    cdef Payload payload = Payload.__new__(Payload)
    payload.message = one.message
    one.message = NULL
    payload.data = one.data
    payload.size = one.size
    return payload


cdef object payload_of(Received* one):
    """Bytes, or a view that keeps the message. To be called once."""
    if one.size < COPIED_BYTES:
        return PyBytes_FromStringAndSize(one.data, one.size)
    return PyMemoryView_FromObject(kept_payload(one))


@cython.final
@cython.no_gc
@cython.freelist(128)
cdef class StoredEntry:
    """As `StoredMessage`, for a message with one entry. Header and position are made on demand."""

    cdef int64_t bytes_before, leader_epoch, greatest_timestamp, opening, ledger, entry_id
    cdef Py_ssize_t size
    cdef readonly Entry entry
    cdef object kept_header
    # Until the position is read from its message; else None.
    cdef Payload unlocated

    @property
    def header(self):
        cdef Entry entry = self.entry
        if self.kept_header is None:
            self.kept_header = Header(
                entry.base_offset, entry.last_offset, entry.max_timestamp, self.bytes_before,
                self.leader_epoch, self.greatest_timestamp, 1, self.opening,
            )
        return self.kept_header

    @property
    def position(self):
        if self.unlocated is not None:
            if not read_position(
                pulsar_message_get_message_id(self.unlocated.message),
                &self.ledger,
                &self.entry_id,
            ):
                raise error_of(RESULT_UNKNOWN_ERROR)
            self.unlocated = None
        return new_position(self.ledger, self.entry_id)

    @property
    def payload(self):
        return self.entry.payload

    def __repr__(self):
        return (
            f"StoredEntry({self.entry.base_offset}-{self.entry.last_offset}, {self.size} bytes)"
        )


cdef StoredEntry stored_entry(Received* one):
    """A message for which `is_written_by_store` is true and that has one entry."""
    cdef StoredEntry made = StoredEntry.__new__(StoredEntry)
    cdef Payload kept
    cdef int64_t* numbers = one.numbers
    made.size = one.size
    if one.size < COPIED_BYTES:
        if not locate(one):
            raise error_of(RESULT_UNKNOWN_ERROR)
        payload = payload_of(one)
    else:
        kept = kept_payload(one)
        if not one.is_located:
            made.unlocated = kept
        payload = PyMemoryView_FromObject(kept)
    made.entry = new_entry(numbers[1], numbers[2], numbers[3], payload)
    made.bytes_before, made.leader_epoch = numbers[4], numbers[5]
    made.greatest_timestamp, made.opening = numbers[6], numbers[8]
    made.ledger, made.entry_id = one.ledger, one.entry
    return made


@cython.final
cdef class ReceivedMessages:
    """The messages of one `Reader.read`, to be used once. Iterating gives `ReceivedMessage`s."""

    cdef Received* found
    cdef int count
    cdef bint is_used

    def __len__(self):
        return self.count

    cdef use(self):
        if self.is_used:
            raise RuntimeError("the messages were taken already")
        self.is_used = True

    def __iter__(self):
        cdef Received* one
        cdef list messages = []
        cdef int number
        self.use()
        for number in range(self.count):
            one = self.found + number
            if not locate(one):
                raise error_of(RESULT_UNKNOWN_ERROR)
            messages.append((header_of(one), one.ledger, one.entry, payload_of(one)))
        return iter(messages)

    def stored(self, int64_t offset, int64_t expected, fence):
        """The messages from the one that contains `offset`, if all are the usual ones: written by
        the store, with one entry, and in order from `expected` on, the offset after the last
        message received before. `fence` is called with writers; it returns the offset from which
        their messages are void.

        Returns the messages, the next expected offset, and ledger id and entry id of the last
        message received; or None if the caller has to look at each message.
        """
        cdef Received* one
        cdef int64_t* numbers
        cdef int64_t epoch = NO_EPOCH, opening = 0, fenced_from = 0
        cdef list messages = []
        cdef int number
        if self.count == 0:
            return None
        for number in range(self.count):
            one = self.found + number
            numbers = one.numbers
            if (
                not is_written_by_store(one)
                or numbers[7] != 1
                or numbers[1] < expected
                or numbers[2] < numbers[1]
            ):
                return None
            if numbers[5] != epoch or numbers[8] != opening:
                epoch, opening = numbers[5], numbers[8]
                fenced_from = min(fence((epoch, opening)), INT64_MAX)
            if numbers[1] >= fenced_from:
                return None
            expected = numbers[2] + 1
        self.use()
        # `one` is the last message.
        if not locate(one):
            raise error_of(RESULT_UNKNOWN_ERROR)
        for number in range(self.count):
            one = self.found + number
            if one.numbers[2] >= offset:
                messages.append(stored_entry(one))
        one = self.found + self.count - 1
        return messages, expected, one.ledger, one.entry

    def __dealloc__(self):
        cdef int number
        for number in range(self.count):
            if self.found[number].message != NULL:
                pulsar_message_free(self.found[number].message)
        free(self.found)


def received_of(list messages, int64_t offset, int64_t expected, fence):
    """What `ReceivedMessages` has of messages with these headers and payloads, at entries 0, 1 and
    so on of ledger 7, for tests. Returns what `stored` returns, or if that is None, all messages.

    Payloads have less than COPIED_BYTES.
    """
    cdef ReceivedMessages received = ReceivedMessages.__new__(ReceivedMessages)
    cdef Received* one
    cdef bytes header, payload
    received.found = <Received*>calloc(len(messages) + 1, sizeof(Received))
    if received.found == NULL:
        raise MemoryError
    for header, payload in messages:
        if len(payload) >= COPIED_BYTES:
            raise ValueError("the payload is too large")
        one = received.found + received.count
        one.header, one.data, one.size = header, payload, len(payload)
        one.count = read_numbers(one.header, one.numbers)
        one.is_located, one.ledger, one.entry = True, 7, received.count
        received.count += 1
    found = received.stored(offset, expected, fence)
    return list(received) if found is None else found


def take(list waiting, list found, int64_t end, int64_t room, most):
    """See `stored_messages.take`."""
    cdef Py_ssize_t had = len(found), taken = 0, size
    cdef int64_t base, last, limit = min(most, INT64_MAX)
    cdef bint is_full = False
    for stored in waiting:
        if had + taken and (room <= 0 or had + taken >= limit):
            break
        if type(stored) is StoredEntry:
            size = (<StoredEntry>stored).size
            base = (<StoredEntry>stored).entry.base_offset
            last = (<StoredEntry>stored).entry.last_offset
        else:
            size = len(stored.payload)
            base, last = stored.header.base_offset, stored.header.last_offset
        is_full = base >= end or (had + taken > 0 and size > room)
        if is_full:
            break
        taken += 1
        room -= size
        is_full = last >= end - 1
        if is_full:
            break
    found += waiting[:taken]
    del waiting[:taken]
    return room, is_full


def entries_of(list messages):
    """See `stored_messages.entries_of`."""
    cdef list entries = []
    for stored in messages:
        if type(stored) is not StoredEntry:
            return None
        entries.append((<StoredEntry>stored).entry)
    return entries
