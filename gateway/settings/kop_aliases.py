"""Settings by the names that they have in KoP, Pulsar's older protocol handler for Kafka: who moves from it keeps those lines of the configuration.

Only what means the same here and there; the values are written alike, too. KoP's other settings are about what this gateway does otherwise or not at all,
and like all unknown names they stop the start.
"""

from __future__ import annotations

#: From KoP's KafkaServiceConfiguration and, of Pulsar's broker, what KoP goes by. Its allowed namespaces go without the prefix, too.
SETTING_BY_KOP_NAME = {
    "allowAutoTopicCreation": "auto_create_topics_enable",
    "allowedNamespaces": "pulsar_allowed_namespaces",
    "brokerClientCertificateFilePath": "pulsar_tls_certificate_file",
    "brokerClientKeyFilePath": "pulsar_tls_key_file",
    "brokerClientTrustCertsFilePath": "pulsar_tls_trust_file",
    "connectionMaxIdleMs": "connections_max_idle_ms",
    "defaultNumPartitions": "num_partitions",
    "entryFormat": "entry_format",
    "failedAuthenticationDelayMs": "connection_failed_authentication_delay_ms",
    "groupInitialRebalanceDelayMs": "group_initial_rebalance_delay_ms",
    "groupMaxSessionTimeoutMs": "group_max_session_timeout_ms",
    "groupMinSessionTimeoutMs": "group_min_session_timeout_ms",
    "kafkaAdvertisedListeners": "advertised",
    "kafkaBrokerId": "node_id",
    "kafkaEnableMultiTenantMetadata": "pulsar_multi_tenant_metadata",
    "kafkaListeners": "listeners",
    "kafkaMetadataNamespace": "pulsar_metadata_namespace",
    "kafkaMetadataTenant": "pulsar_metadata_tenant",
    "kafkaNamespace": "pulsar_namespace",
    "kafkaProtocolMap": "listener_security_protocol_map",
    "kafkaTenant": "pulsar_tenant",
    "kopAllowedNamespaces": "pulsar_allowed_namespaces",
    "kopSslClientAuth": "ssl_client_auth",
    "maxMessageSize": "message_max_bytes",
    "maxQueuedRequests": "max_in_flight_requests_per_connection",
    "offsetMetadataMaxSize": "offset_metadata_max_bytes",
    "offsetsRetentionCheckIntervalMs": "offsets_retention_check_interval_ms",
    "offsetsRetentionMinutes": "offsets_retention_minutes",
    "saslAllowedMechanisms": "sasl_enabled_mechanisms",
}

_BY_LOWER_CASE = {name.lower(): name for name in SETTING_BY_KOP_NAME}


def kop_name_for(name: str) -> str | None:
    """KoP's name that `name` is in small letters, as an environment variable leaves it; None for no such name."""
    return _BY_LOWER_CASE.get(name)
