# cython: language_level=3, boundscheck=False, wraparound=False
"""The client library through its C API: many messages or responses in one call, without the GIL.

The functions are those of Pulsar's `pulsar/c/*.h`, resolved when this module is imported in the
library that pulsar-client has loaded (`_library.h`). ImportError if one is missing.
"""

import os

import _pulsar

from storage.pulsar.client.partition_producers import error_of
from storage.pulsar.client.unraised_results import AVAILABILITY_TIMEOUTS, answer_within
from storage.pulsar.log.entry_messages import HEADER, Header, parse_header

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from storage._log cimport Entry, new_entry

cdef extern from "<string.h>" nogil:
    char* strdup(const char* text)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* now)
    int CLOCK_MONOTONIC

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* path, int flags)
    int RTLD_NOW
    int RTLD_NOLOAD

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int count, int flags)

cdef extern from "<unistd.h>" nogil:
    int close(int descriptor)

cdef extern from "_library.h" nogil:
    ctypedef struct response_list:
        int descriptor
    ctypedef struct response:
        response* next
        response_list* list
        void* producer
        void* context
        int64_t ledger
        int64_t entry
        int result
    void add_response(response* one)
    response* take_responses(response_list* list)
    const char* resolve_functions(void* library)
    void* pulsar_client_configuration_create()
    void pulsar_client_configuration_free(void*)
    void pulsar_client_configuration_set_auth(void*, void*)
    void pulsar_client_configuration_set_operation_timeout_seconds(void*, int)
    void pulsar_client_configuration_set_io_threads(void*, int)
    void pulsar_client_configuration_set_message_listener_threads(void*, int)
    void pulsar_client_configuration_set_stats_interval_in_seconds(void*, unsigned int)
    void pulsar_client_configuration_set_tls_trust_certs_file_path(void*, const char*)
    void pulsar_client_configuration_set_tls_certificate_file_path(void*, const char*)
    void pulsar_client_configuration_set_tls_private_key_file_path(void*, const char*)
    void pulsar_client_configuration_set_validate_hostname(void*, int)
    void* pulsar_authentication_token_create_with_supplier(char* (*)(void*) noexcept, void*)
    void* pulsar_authentication_tls_create(const char*, const char*)
    void pulsar_authentication_free(void*)
    void* pulsar_client_create(const char*, const void*)
    int pulsar_client_close(void*)
    void pulsar_client_free(void*)
    int pulsar_client_create_producer(void*, const char*, const void*, void**)
    void* pulsar_producer_configuration_create()
    void pulsar_producer_configuration_free(void*)
    void pulsar_producer_configuration_set_access_mode(void*, int)
    void pulsar_producer_configuration_set_initial_sequence_id(void*, int64_t)
    void pulsar_producer_configuration_set_send_timeout(void*, int)
    void pulsar_producer_configuration_set_max_pending_messages(void*, int)
    void pulsar_producer_configuration_set_batching_enabled(void*, int)
    void pulsar_producer_send_async(
        void*, void*, void (*)(int, void*, void*) noexcept nogil, void*
    )
    int pulsar_producer_close(void*)
    void pulsar_producer_free(void*)
    int pulsar_client_create_reader(void*, const char*, const void*, void*, void**)
    void* pulsar_reader_configuration_create()
    void pulsar_reader_configuration_free(void*)
    void pulsar_reader_configuration_set_receiver_queue_size(void*, int)
    int pulsar_reader_read_next_with_timeout(void*, void**, int)
    int pulsar_reader_has_message_available(void*, int*)
    int pulsar_reader_close(void*)
    void pulsar_reader_free(void*)
    void* pulsar_message_create()
    void pulsar_message_set_content(void*, const void*, size_t)
    void pulsar_message_set_property(void*, const char*, const char*)
    const void* pulsar_message_get_data(void*)
    uint32_t pulsar_message_get_length(void*)
    const char* pulsar_message_get_property(void*, const char*)
    void* pulsar_message_get_message_id(void*)
    void pulsar_message_free(void*)
    void* pulsar_message_id_serialize(void*, int*)
    void* pulsar_message_id_deserialize(const void*, uint32_t)
    void pulsar_message_id_free(void*)

#: Version of the signatures; `compiled_client.py` expects the same number.
INTERFACE = 4

cdef enum:
    # pulsar/c/result.h
    RESULT_OK = 0
    RESULT_UNKNOWN_ERROR = 1
    # pulsar/c/producer_configuration.h
    EXCLUSIVE_WITH_FENCING = 3
    # Payloads below this size are copied: the library's memory for a message is about 1 KiB larger
    # than its payload.
    COPIED_BYTES = 8192
    HEADER_VERSION = 1
    HEADER_NUMBERS = 9
    # Longer numbers may not fit into 64 bits.
    DIGITS = 18
    MOST_PROPERTIES = 4
    # No writer has it: -1 is none.
    NO_EPOCH = -2

cdef bytes HEADER_NAME = HEADER.encode()


def resolve(bytes path):
    """Resolve the functions in a loaded shared object or its dependencies.

    Raises ImportError if it is not loaded or one is missing.
    """
    cdef const char* missing
    cdef void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD)
    if library == NULL:
        raise ImportError(f"{path.decode()} is not loaded")
    missing = resolve_functions(library)
    if missing != NULL:
        raise ImportError(f"the client library has no function {missing.decode()}")


resolve(os.fsencode(_pulsar.__file__))


cdef char* token_of(void* supplier) noexcept with gil:
    """The library frees the text, and requires one."""
    cdef bytes text = b""
    try:
        text = (<object>supplier)().encode()
    except BaseException:
        pass
    return strdup(text)


cdef struct Received:
    void* message
    const char* data
    Py_ssize_t size
    # Valid as long as the message.
    const char* header
    # Whether ledger and entry are set (`locate`).
    int is_located
    int64_t ledger
    int64_t entry
    # The numbers in the header, 0 if only `parse_header` can read it.
    int count
    int64_t numbers[HEADER_NUMBERS]


cdef const uint8_t* read_varint(
    const uint8_t* at, const uint8_t* end, uint64_t* value
) noexcept nogil:
    """Returns the byte behind it; NULL if there is none."""
    cdef int shift = 0
    value[0] = 0
    while at < end and shift < 64:
        value[0] |= <uint64_t>(at[0] & 127) << shift
        shift += 7
        at += 1
        if not at[-1] & 128:
            return at
    return NULL


cdef int parse_position(
    const uint8_t* at, Py_ssize_t size, int64_t* ledger, int64_t* entry
) noexcept nogil:
    """Ledger and entry of a serialized message id: MessageIdData in PulsarApi.proto, whose first
    two fields are required. Returns 0 if it is anything else.
    """
    cdef uint64_t found_ledger = 0, found_entry = 0
    cdef const uint8_t* end = at + size
    at = read_varint(at + 1, end, &found_ledger) if size and at[0] == 0x08 else NULL
    if at != NULL:
        at = read_varint(at + 1, end, &found_entry) if at < end and at[0] == 0x10 else NULL
    ledger[0] = <int64_t>found_ledger
    entry[0] = <int64_t>found_entry
    return at != NULL


cdef int read_position(void* id, int64_t* ledger, int64_t* entry) noexcept nogil:
    """As `parse_position`, for a message id, which is freed."""
    cdef int size = 0, is_found
    cdef uint8_t* text = <uint8_t*>pulsar_message_id_serialize(id, &size)
    pulsar_message_id_free(id)
    is_found = parse_position(text, size, ledger, entry)
    free(text)
    return is_found


def position_in(text):
    """The position in a serialized message id or None, for tests."""
    cdef Py_buffer view
    cdef int64_t ledger, entry
    cdef int is_found
    PyObject_GetBuffer(text, &view, PyBUF_SIMPLE)
    is_found = parse_position(<const uint8_t*>view.buf, view.len, &ledger, &entry)
    PyBuffer_Release(&view)
    return (ledger, entry) if is_found else None


cdef int locate(Received* one) noexcept nogil:
    """Read the position of a message whose payload was not taken. Returns 0 if there is none."""
    if not one.is_located:
        one.is_located = read_position(
            pulsar_message_get_message_id(one.message), &one.ledger, &one.entry
        )
    return one.is_located


cdef void on_response(int result, void* id, void* context) noexcept nogil:
    """The library's callback for a sent message.

    An acknowledgement whose position cannot be read counts as a failure.
    """
    cdef response* one = <response*>context
    cdef bint has_position = id != NULL and read_position(id, &one.ledger, &one.entry)
    one.result = result
    if result == RESULT_OK and not has_position:
        one.result = RESULT_UNKNOWN_ERROR
    add_response(one)


include "_received.pxi"


cdef int64_t now_ms() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * 1000 + now.tv_nsec // 1000000


cdef class Client:
    """A client of the library, with the settings of `pulsar_client.connect`.

    `token` is called without arguments in the library's threads, as long as the process lives.
    """

    cdef void* client
    cdef response_list* responses
    cdef int operation_timeout_seconds

    def __cinit__(self):
        self.responses = <response_list*>calloc(1, sizeof(response_list))
        if self.responses == NULL:
            raise MemoryError
        self.responses.descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.responses.descriptor < 0:
            PyErr_SetFromErrno(OSError)

    def __init__(
        self, bytes url, int operation_timeout_seconds, object token, bytes trust,
        bytes certificate, bytes key
    ):
        cdef void* configuration = pulsar_client_configuration_create()
        cdef void* authentication = NULL
        pulsar_client_configuration_set_operation_timeout_seconds(
            configuration, operation_timeout_seconds
        )
        pulsar_client_configuration_set_io_threads(configuration, 1)
        pulsar_client_configuration_set_message_listener_threads(configuration, 1)
        pulsar_client_configuration_set_stats_interval_in_seconds(configuration, 0)
        pulsar_client_configuration_set_validate_hostname(configuration, 1)
        pulsar_client_configuration_set_tls_trust_certs_file_path(configuration, trust)
        if certificate is not None:
            pulsar_client_configuration_set_tls_certificate_file_path(configuration, certificate)
        if key is not None:
            pulsar_client_configuration_set_tls_private_key_file_path(configuration, key)
        if token is not None:
            Py_INCREF(token)
            authentication = pulsar_authentication_token_create_with_supplier(
                token_of, <void*>token
            )
        elif certificate is not None and key is not None:
            authentication = pulsar_authentication_tls_create(certificate, key)
        if authentication != NULL:
            pulsar_client_configuration_set_auth(configuration, authentication)
            pulsar_authentication_free(authentication)
        self.operation_timeout_seconds = operation_timeout_seconds
        self.client = pulsar_client_create(url, configuration)
        pulsar_client_configuration_free(configuration)

    def create_reader(self, bytes topic, bytes start, int queue):
        """A reader behind the message id `start`, as `pulsar.MessageId.serialize` returns it.

        Blocks. Raises the library's errors.
        """
        cdef const char* id_text = start
        cdef const char* topic_text = topic
        cdef uint32_t id_size = <uint32_t>len(start)
        cdef void* id
        cdef void* configuration
        cdef int result
        cdef Reader reader = Reader.__new__(Reader)
        reader.client = self
        reader.name = topic.decode()
        with nogil:
            id = pulsar_message_id_deserialize(id_text, id_size)
            configuration = pulsar_reader_configuration_create()
            pulsar_reader_configuration_set_receiver_queue_size(configuration, queue)
            result = pulsar_client_create_reader(
                self.client, topic_text, id, configuration, &reader.reader
            )
            pulsar_reader_configuration_free(configuration)
            pulsar_message_id_free(id)
        if result != RESULT_OK:
            raise error_of(result)
        return reader

    def create_producer(self, bytes topic, int send_timeout_ms, int pending_messages):
        """The exclusive producer of a topic; it fences the one before.

        Blocks. Raises the library's errors.
        """
        cdef const char* topic_text = topic
        cdef void* configuration
        cdef int result
        cdef Producer producer = Producer.__new__(Producer)
        producer.client = self
        with nogil:
            configuration = pulsar_producer_configuration_create()
            pulsar_producer_configuration_set_access_mode(configuration, EXCLUSIVE_WITH_FENCING)
            # See `PulsarClient.producer`.
            pulsar_producer_configuration_set_initial_sequence_id(configuration, 1)
            pulsar_producer_configuration_set_send_timeout(configuration, send_timeout_ms)
            pulsar_producer_configuration_set_max_pending_messages(
                configuration, pending_messages
            )
            pulsar_producer_configuration_set_batching_enabled(configuration, 0)
            result = pulsar_client_create_producer(
                self.client, topic_text, configuration, &producer.producer
            )
            pulsar_producer_configuration_free(configuration)
        if result != RESULT_OK:
            raise error_of(result)
        return producer

    def close(self):
        """Blocks. Raises the library's errors."""
        cdef int result
        with nogil:
            result = pulsar_client_close(self.client)
        if result != RESULT_OK:
            raise error_of(result)

    def __dealloc__(self):
        # It may wait for a thread that waits for the GIL.
        with nogil:
            pulsar_client_free(self.client)
        # No response is awaited: it would keep its producer, and so this.
        if self.responses != NULL:
            if self.responses.descriptor >= 0:
                close(self.responses.descriptor)
            free(self.responses)


# A producer in a cycle must not lose its client first.
@cython.no_gc_clear
cdef class Producer:
    """The exclusive producer of one topic. `close` may be called in any thread."""

    cdef void* producer
    # Must not be freed before the producer.
    cdef Client client
    #: Called in the reactor's thread with a list of (context, result, ledger id, entry id).
    #: Without an error the result is 0.
    cdef public object on_responses

    def send(self, object context, bytes payload, dict properties):
        """Send a message, which the library copies. `on_responses` is called with `context` and
        the outcome, once. Properties are text without NUL.
        """
        cdef const char* names[MOST_PROPERTIES]
        cdef const char* values[MOST_PROPERTIES]
        cdef int count = 0
        if len(properties) > MOST_PROPERTIES:
            raise ValueError(f"a message has at most {MOST_PROPERTIES} properties")
        for name, value in properties.items():
            names[count] = PyUnicode_AsUTF8(name)
            values[count] = PyUnicode_AsUTF8(value)
            count += 1
        self.post(context, payload, len(payload), count, names, values)

    cdef int post(
        self,
        object context,
        const char* data,
        size_t size,
        int count,
        const char** names,
        const char** values,
    ) except -1:
        """As `send`. Nothing has changed if it raises MemoryError."""
        cdef int number
        cdef void* message
        cdef response* one = <response*>calloc(1, sizeof(response))
        if one == NULL:
            raise MemoryError
        one.list = self.client.responses
        one.producer = <void*>self
        one.context = <void*>context
        one.ledger = one.entry = -1
        # The response keeps both, until it is taken.
        Py_INCREF(self)
        Py_INCREF(context)
        # Without the GIL: the library logs while it holds its locks (`client_log.py`).
        with nogil:
            message = pulsar_message_create()
            pulsar_message_set_content(message, data, size)
            for number in range(count):
                pulsar_message_set_property(message, names[number], values[number])
            pulsar_producer_send_async(self.producer, message, on_response, one)
            pulsar_message_free(message)
        return 0

    def close(self):
        """Blocks. Raises the library's errors."""
        cdef int result
        with nogil:
            result = pulsar_producer_close(self.producer)
        if result != RESULT_OK:
            raise error_of(result)

    def __dealloc__(self):
        if self.producer != NULL:
            with nogil:
                pulsar_producer_free(self.producer)


cdef class Reader:
    """A reader of one topic, for one thread at a time. Its methods block and raise the library's
    errors.
    """

    cdef void* reader
    # Must not be freed before the reader.
    cdef Client client
    cdef str name
    # The next call of `read` raises it.
    cdef int error

    def topic(self):
        return self.name

    def read(self, int64_t room, int64_t end, int wait_ms, int most):
        """The next messages.

        Returns when they have `room` bytes of payload, after a message that reaches the offset
        `end`, after `most` messages, or after `wait_ms`. Raises pulsar.Timeout if there are none.
        An error after some messages, pulsar.Timeout included, is raised by the next call, at once.
        """
        cdef const char* name = HEADER_NAME
        cdef ReceivedMessages received = ReceivedMessages.__new__(ReceivedMessages)
        cdef Received* found = <Received*>malloc(most * sizeof(Received))
        cdef Received* one
        cdef int count = 0, result = self.error
        cdef int64_t left = wait_ms, deadline
        if found == NULL:
            raise MemoryError
        received.found = found
        self.error = RESULT_OK
        with nogil:
            deadline = now_ms() + wait_ms
            while count < most and result == RESULT_OK:
                one = found + count
                result = pulsar_reader_read_next_with_timeout(
                    self.reader, &one.message, <int>left
                )
                if result != RESULT_OK:
                    break
                count += 1
                one.data = <const char*>pulsar_message_get_data(one.message)
                one.size = pulsar_message_get_length(one.message)
                one.header = pulsar_message_get_property(one.message, name)
                one.count = read_numbers(one.header, one.numbers)
                one.is_located = 0
                # The positions of other messages are read on demand.
                if one.size < COPIED_BYTES:
                    locate(one)
                room -= one.size
                if room <= 0 or (one.count > 2 and one.numbers[2] + 1 >= end):
                    break
                left = max(0, deadline - now_ms())
        received.count = count
        if count == 0:
            raise error_of(result)
        self.error = result
        return received

    def has_message_available(self):
        """Raises pulsar.Timeout after `AVAILABILITY_TIMEOUTS`."""
        result, is_available = answer_within(
            AVAILABILITY_TIMEOUTS * self.client.operation_timeout_seconds, self._is_available
        )
        if result != RESULT_OK:
            raise error_of(result)
        return is_available

    def _is_available(self):
        cdef int is_available = 0, result
        with nogil:
            result = pulsar_reader_has_message_available(self.reader, &is_available)
        return result, is_available != 0

    def close(self):
        cdef int result
        with nogil:
            result = pulsar_reader_close(self.reader)
        if result != RESULT_OK:
            raise error_of(result)

    def __dealloc__(self):
        if self.reader != NULL:
            with nogil:
                pulsar_reader_free(self.reader)


include "_appends.pxi"
