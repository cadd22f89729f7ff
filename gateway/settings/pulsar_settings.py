"""Settings: The store in Apache Pulsar."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from gateway.settings.addresses import parse_admin
from gateway.settings.field_types import (
    HOUR,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    File,
    Name,
    Namespaces,
    from_text,
)


class PulsarStoreSettings(BaseModel):
    """The store in Apache Pulsar."""

    model_config = SECTION_CONFIG

    pulsar_admin: Annotated[str, from_text(parse_admin)] | None = Field(
        None,
        description=(
            "Admin API of the cluster in `store`: `http://HOST:8080` or `https://HOST:8443`."
        ),
    )
    pulsar_setup: bool = Field(
        False,
        description=(
            "Whether missing namespaces and policies are created at startup. Disabled by default, "
            "so that a shared cluster is not changed; startup then fails and reports what is "
            "missing and how to create it."
        ),
    )
    pulsar_takeover: bool = Field(
        False,
        description=(
            "Whether to take over the store from a running gateway that serves it alone, such as "
            "one of an older version. That gateway then exits with code 1. Gateways of a cluster "
            "never need this."
        ),
    )
    node_session_timeout_ms: int = Field(
        3_000,
        ge=500,
        le=60_000,
        description=(
            "Time after which a gateway of a cluster that does not answer is replaced by the "
            "others. A gateway whose process ends is replaced earlier, after a missing heartbeat. "
            "The same for all gateways of a cluster."
        ),
    )
    pulsar_token_file: File | None = Field(
        None,
        description=(
            "File with the token (JWT) for Pulsar in its first line. A file, so that the token is "
            "not visible in process lists; reloaded when it changes."
        ),
    )
    pulsar_tls_trust_file: File | None = Field(
        None,
        description=(
            "PEM file with the authorities that sign the brokers' certificates. By default those "
            "of the operating system."
        ),
    )
    pulsar_tls_certificate_file: File | None = Field(
        None,
        description=(
            "PEM file with the certificate that the gateway presents to brokers that request one."
        ),
    )
    pulsar_tls_key_file: File | None = Field(
        None, description="PEM file with the private key of that certificate, without passphrase."
    )
    pulsar_tenant: Name = Field(
        "public", description="Tenant of topics whose names have no slash. KoP's default."
    )
    pulsar_namespace: Name = Field(
        "default", description="Namespace of topics whose names have no slash. KoP's default."
    )
    pulsar_metadata_tenant: Name = Field(
        "public",
        description="Tenant of the gateway's own tables: groups, offsets, ids. KoP's default.",
    )
    pulsar_metadata_namespace: Name = Field(
        "__kafka",
        description=(
            "Namespace of the gateway's own tables. Other Pulsar clients should have no access to "
            "it. KoP's default."
        ),
    )
    pulsar_allowed_namespaces: Namespaces = Field(
        (),
        description=(
            "Further namespaces, as `TENANT/NAMESPACE`, whose topics are served by their full "
            "names, and to which clients can be bound (`pulsar_multi_tenant_metadata`)."
        ),
    )
    pulsar_multi_tenant_metadata: bool = Field(
        False,
        description=(
            "Whether clients are bound to the namespace that their log-in names: they see only its "
            "topics and their own groups. The namespace must be the default one or in "
            "`pulsar_allowed_namespaces`. Disabled by default; KoP's default is true."
        ),
    )
    entry_format: Literal["mixed_kafka", "kafka", "pulsar"] = Field(
        "mixed_kafka",
        description="Default of the topic config `entry.format`: how records are stored in Pulsar. "
        "`mixed_kafka`: batches as produced; `kafka`: batches in format 2 only; `pulsar`: "
        "messages that Pulsar clients can read. As in KoP, whose default is `pulsar`, the "
        "slowest.",
    )
    pulsar_mirror_cursors: bool = Field(
        False,
        description=(
            "Whether commits also move Pulsar subscriptions named after the groups, so that "
            "Pulsar's backlog figures include Kafka groups. Disabled by default: Pulsar keeps "
            "what such a subscription has not read regardless of retention, and a backlog quota "
            "may then block producers."
        ),
    )
    pulsar_send_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=10 * MINUTE,
        description=(
            "Timeout of a message's acknowledgement. Afterwards its outcome is unknown: the "
            "partition is reopened and the producer retries. Default of Pulsar's client; Java "
            "producers wait as long for a response."
        ),
    )
    pulsar_start_timeout_ms: int = Field(
        90 * SECOND,
        ge=0,
        le=1 * HOUR,
        description=(
            "How long startup is retried while the brokers report temporary errors or still hold "
            "topics for a gateway that is gone. A starting broker has no bookies for some seconds, "
            "and detects connections from a lost host after 30 to 60 s."
        ),
    )
    pulsar_operation_timeout_ms: int = Field(
        30 * SECOND,
        ge=1 * SECOND,
        le=10 * MINUTE,
        description=(
            "Timeout of a lookup and of opening a topic on a broker. Default of Pulsar's client."
        ),
    )
    pulsar_admin_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=10 * MINUTE,
        description=(
            "Timeout of one call of the admin API. As Pulsar's own timeout of an operation."
        ),
    )
    pulsar_refresh_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description=(
            "How often the list of topics is refreshed, which finds topics created or deleted "
            "directly in Pulsar. A few calls each time."
        ),
    )
    pulsar_resident_bytes: int = Field(
        64 * MIB,
        ge=0,
        description=(
            "Size of the in-memory cache of the newest batches of all partitions, so that "
            "consumers at the end of the log need no broker."
        ),
    )
    pulsar_readers: int = Field(
        64,
        ge=1,
        le=10_000,
        description=(
            "Maximum number of open readers for consumers that are behind; the least recently used "
            "is closed first. Each prefetches messages, 40 MiB of the largest."
        ),
    )
    pulsar_threads: int = Field(
        8,
        ge=1,
        le=256,
        description=(
            "Concurrent calls of Pulsar's client that open topics or read old batches. They use "
            "little CPU."
        ),
    )
