"""Setting names of KoP, Pulsar's older Kafka protocol handler, accepted as aliases.

Only settings with the same meaning and the same value format have an alias. KoP's other settings
are refused like all unknown names.
"""

from __future__ import annotations

#: Settings by name in KoP's KafkaServiceConfiguration and in the Pulsar broker's configuration that
#: KoP uses. KoP also accepts `allowedNamespaces` without its prefix.
SETTING_BY_KOP_NAME = {
    "allowAutoTopicCreation": "auto_create_topics_enable",
    "allowedNamespaces": "pulsar_allowed_namespaces",
    "authorizationAllowWildcardsMatching": "pulsar_permissions_wildcards",
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
    "kopAuthorizationCacheRefreshMs": "pulsar_permissions_refresh_ms",
    "kopSslClientAuth": "ssl_client_auth",
    "maxMessageSize": "message_max_bytes",
    "maxQueuedRequests": "max_in_flight_requests_per_connection",
    "offsetMetadataMaxSize": "offset_metadata_max_bytes",
    "offsetsRetentionCheckIntervalMs": "offsets_retention_check_interval_ms",
    "offsetsRetentionMinutes": "offsets_retention_minutes",
    "saslAllowedMechanisms": "sasl_enabled_mechanisms",
    "tokenAllowedClockSkewSeconds": "token_allowed_clock_skew_seconds",
    "tokenAudience": "token_audience",
    "tokenAudienceClaim": "token_audience_claim",
    "tokenAuthClaim": "token_auth_claim",
    "tokenPublicKey": "token_public_key",
    "tokenSecretKey": "token_secret_key",
}

_BY_LOWER_CASE = {name.lower(): name for name in SETTING_BY_KOP_NAME}


def kop_name_for(name: str) -> str | None:
    """Return the KoP name with this lower-case form, as in environment variables, or None."""
    return _BY_LOWER_CASE.get(name)
