/* Functions of Pulsar's C API (pulsar/c/*.h of apache/pulsar-client-cpp), resolved at run time in
 * the library that pulsar-client has loaded. */

#ifndef KOPGATE_PULSAR_LIBRARY_H
#define KOPGATE_PULSAR_LIBRARY_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* F(result, name, arguments) */
#define PULSAR_FUNCTIONS(F)                                                                    \
    F(void*, pulsar_client_configuration_create, (void))                                       \
    F(void, pulsar_client_configuration_free, (void*))                                         \
    F(void, pulsar_client_configuration_set_auth, (void*, void*))                              \
    F(void, pulsar_client_configuration_set_operation_timeout_seconds, (void*, int))           \
    F(void, pulsar_client_configuration_set_io_threads, (void*, int))                          \
    F(void, pulsar_client_configuration_set_message_listener_threads, (void*, int))            \
    F(void, pulsar_client_configuration_set_stats_interval_in_seconds, (void*, unsigned int))  \
    F(void, pulsar_client_configuration_set_tls_trust_certs_file_path, (void*, const char*))   \
    F(void, pulsar_client_configuration_set_tls_certificate_file_path, (void*, const char*))   \
    F(void, pulsar_client_configuration_set_tls_private_key_file_path, (void*, const char*))   \
    F(void, pulsar_client_configuration_set_validate_hostname, (void*, int))                   \
    F(void*, pulsar_authentication_token_create_with_supplier, (char* (*)(void*), void*))      \
    F(void*, pulsar_authentication_tls_create, (const char*, const char*))                     \
    F(void, pulsar_authentication_free, (void*))                                               \
    F(void*, pulsar_client_create, (const char*, const void*))                                 \
    F(int, pulsar_client_close, (void*))                                                       \
    F(void, pulsar_client_free, (void*))                                                       \
    F(int, pulsar_client_create_producer, (void*, const char*, const void*, void**))           \
    F(void*, pulsar_producer_configuration_create, (void))                                     \
    F(void, pulsar_producer_configuration_free, (void*))                                       \
    F(void, pulsar_producer_configuration_set_access_mode, (void*, int))                       \
    F(void, pulsar_producer_configuration_set_initial_sequence_id, (void*, int64_t))           \
    F(void, pulsar_producer_configuration_set_send_timeout, (void*, int))                      \
    F(void, pulsar_producer_configuration_set_max_pending_messages, (void*, int))              \
    F(void, pulsar_producer_configuration_set_batching_enabled, (void*, int))                  \
    F(void, pulsar_producer_send_async, (void*, void*, void (*)(int, void*, void*), void*))    \
    F(int, pulsar_producer_close, (void*))                                                     \
    F(void, pulsar_producer_free, (void*))                                                     \
    F(int, pulsar_client_create_reader, (void*, const char*, const void*, void*, void**))      \
    F(void*, pulsar_reader_configuration_create, (void))                                       \
    F(void, pulsar_reader_configuration_free, (void*))                                         \
    F(void, pulsar_reader_configuration_set_receiver_queue_size, (void*, int))                 \
    F(int, pulsar_reader_read_next_with_timeout, (void*, void**, int))                         \
    F(int, pulsar_reader_has_message_available, (void*, int*))                                 \
    F(int, pulsar_reader_close, (void*))                                                       \
    F(void, pulsar_reader_free, (void*))                                                       \
    F(void*, pulsar_message_create, (void))                                                    \
    F(void, pulsar_message_set_content, (void*, const void*, size_t))                          \
    F(void, pulsar_message_set_property, (void*, const char*, const char*))                    \
    F(const void*, pulsar_message_get_data, (void*))                                           \
    F(uint32_t, pulsar_message_get_length, (void*))                                            \
    F(const char*, pulsar_message_get_property, (void*, const char*))                          \
    F(void*, pulsar_message_get_message_id, (void*))                                           \
    F(void, pulsar_message_free, (void*))                                                      \
    F(void*, pulsar_message_id_serialize, (void*, int*))                                       \
    F(void*, pulsar_message_id_deserialize, (const void*, uint32_t))                           \
    F(void, pulsar_message_id_free, (void*))

#define DECLARE(result, name, arguments) static result(*name) arguments;
PULSAR_FUNCTIONS(DECLARE)
#undef DECLARE

/* Resolves all functions, or none. Returns the name of one that is missing, or NULL. */
static const char* resolve_functions(void* library) {
#define CHECK(result, name, arguments) \
    if (!dlsym(library, #name)) return #name;
#define RESOLVE(result, name, arguments) *(void**)&name = dlsym(library, #name);
    PULSAR_FUNCTIONS(CHECK)
    PULSAR_FUNCTIONS(RESOLVE)
#undef CHECK
#undef RESOLVE
    return 0;
}

/* A message that was sent, and later the response to it. */
typedef struct response {
    struct response* next;
    struct response_list* list;
    void* producer;
    void* context;
    int64_t ledger;
    int64_t entry;
    int result;
} response;

/* Responses that the library's thread has added and the reactor has not taken, the newest first. */
typedef struct response_list {
    response* newest;
    /* An eventfd. */
    int descriptor;
} response_list;

/* Adds a response; wakes the reactor if it is the first. Thread-safe. */
static void add_response(response* one) {
    response_list* list = one->list;
    response* next = __atomic_load_n(&list->newest, __ATOMIC_RELAXED);
    uint64_t count = 1;
    do one->next = next;
    while (!__atomic_compare_exchange_n(&list->newest, &next, one, 1, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED));
    /* The reactor may have freed `one`. A write fails only if the counter is at its limit. */
    if (!next && write(list->descriptor, &count, sizeof count) < 0) return;
}

/* Takes all responses, the oldest first. */
static response* take_responses(response_list* list) {
    uint64_t count;
    response *one, *next, *first = NULL;
    /* First the counter: a response that is added from here on writes it again, or is taken. */
    if (read(list->descriptor, &count, sizeof count) < 0) count = 0;
    one = __atomic_exchange_n(&list->newest, NULL, __ATOMIC_ACQUIRE);
    for (; one; one = next) {
        next = one->next;
        one->next = first;
        first = one;
    }
    return first;
}

#endif
