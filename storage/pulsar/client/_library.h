/* Functions of Pulsar's C API (pulsar/c/*.h of apache/pulsar-client-cpp), resolved at run time in
 * the library that pulsar-client has loaded. */

#ifndef KOPGATE_PULSAR_LIBRARY_H
#define KOPGATE_PULSAR_LIBRARY_H

#include <dlfcn.h>
#include <stdint.h>

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
    F(int, pulsar_client_create_reader, (void*, const char*, const void*, void*, void**))      \
    F(void*, pulsar_reader_configuration_create, (void))                                       \
    F(void, pulsar_reader_configuration_free, (void*))                                         \
    F(void, pulsar_reader_configuration_set_receiver_queue_size, (void*, int))                 \
    F(int, pulsar_reader_read_next_with_timeout, (void*, void**, int))                         \
    F(int, pulsar_reader_has_message_available, (void*, int*))                                 \
    F(int, pulsar_reader_close, (void*))                                                       \
    F(void, pulsar_reader_free, (void*))                                                       \
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

#endif
