"""The settings of the gateway: a typed, immutable model.

Names are Kafka's where Kafka has the setting; descriptions state the reason for each limit.
`Settings(...)` uses only its arguments; `gateway.settings.layers.load` combines flags, environment
and file.

The module exceeds the usual length because it is one table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.settings.addresses import (
    Endpoint,
    SecurityProtocol,
    StoreAddress,
    parse_admin,
    parse_endpoint,
    parse_name,
    parse_namespace,
    parse_store,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
INT16_MAX, INT32_MAX = (1 << 15) - 1, (1 << 31) - 1

#: Keys of the store have at most 480 bytes; 20 of them identify the partition.
MAX_GROUP_ID_BYTES = 460

Level = Literal["debug", "info", "warning", "error"]
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]


def _read_list(value: Any) -> Any:
    """Read a TOML list, or `a,b` from the environment or a flag."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return tuple(value) if isinstance(value, list) else value


def _read_table(value: Any) -> Any:
    """Read a TOML table, or `NAME:VALUE,NAME:VALUE` from the environment or a flag."""
    if not isinstance(value, str):
        return value
    pairs = [item.partition(":") for item in value.split(",") if item.strip()]
    table = {name.strip(): rest.strip() for name, _, rest in pairs}
    if len(table) != len(pairs) or not all(colon for _, colon, _ in pairs):
        raise ValueError(f"{value!r} is not NAME:VALUE,NAME:VALUE with unique names")
    return table


def _from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("expected a file name")
    return Path(text)


Endpoints = Annotated[
    tuple[Annotated[Endpoint, _from_text(parse_endpoint)], ...],
    BeforeValidator(_read_list),
    NoDecode,
]
File = Annotated[Path, _from_text(_read_path)]
Protocols = Annotated[
    Mapping[str, Annotated[SecurityProtocol, Field(strict=False)]],
    BeforeValidator(_read_table),
    NoDecode,
]
Levels = Annotated[Mapping[str, Level], BeforeValidator(_read_table), NoDecode]
Mechanisms = Annotated[tuple[Literal["PLAIN"], ...], BeforeValidator(_read_list), NoDecode]
Name = Annotated[str, _from_text(parse_name)]
Namespaces = Annotated[
    tuple[Annotated[str, _from_text(parse_namespace)], ...], BeforeValidator(_read_list), NoDecode
]
CleanupPolicy = Annotated[
    tuple[Literal["delete", "compact"], ...], BeforeValidator(_read_list), NoDecode
]


class Settings(BaseSettings):
    """All settings. Times are in milliseconds, sizes in bytes; -1 means no limit where allowed."""

    model_config = SettingsConfigDict(
        env_prefix="KOPGATE_", extra="forbid", frozen=True, strict=True, validate_default=True
    )

    # Identity and listeners
    node_id: int = Field(0, ge=0, le=INT32_MAX, description="Kafka's broker id of this gateway.")
    listeners: Endpoints = Field(
        (parse_endpoint("PLAINTEXT://127.0.0.1:9092"),),
        description=(
            "Listeners, each `NAME://HOST:PORT`. Port 0 selects a free port; IPv6 addresses are in "
            "brackets. Loopback by default, so that a listener without authentication is not "
            "exposed to a network by accident."
        ),
    )
    advertised: Endpoints = Field(
        (),
        description=(
            "Addresses given to clients, as `NAME://HOST:PORT` per listener; port 0 stands for the "
            "bound port. By default the bound address, which must then not be 0.0.0.0 or [::]."
        ),
    )
    listener_security_protocol_map: Protocols = Field(
        {},
        description=(
            "Security protocol of each listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. "
            "Listeners with these names need no entry."
        ),
    )
    store: Annotated[StoreAddress, _from_text(parse_store), NoDecode] = Field(
        parse_store("lmdb:./data"),
        description="The store that holds the topics: `lmdb:DIRECTORY`, `pulsar://HOST:PORT` or "
        "`pulsar+ssl://HOST:PORT` (several brokers separated by commas).",
    )

    # TLS
    ssl_certificate_file: File | None = Field(
        None,
        description=(
            "PEM file with the server's certificate, followed by its chain. Reloaded when it "
            "changes."
        ),
    )
    ssl_key_file: File | None = Field(
        None, description="PEM file with the certificate's private key. Reloaded when it changes."
    )
    ssl_key_password_file: File | None = Field(
        None,
        description=(
            "File with the key's passphrase in its first line. A file, so that the passphrase is "
            "not visible in process lists."
        ),
    )
    ssl_ca_file: File | None = Field(
        None, description="PEM file with the authorities that sign client certificates."
    )
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="Whether TLS clients must present a certificate. As in Kafka."
    )
    ssl_min_version: TlsVersion = Field(
        "TLSv1.2",
        description=(
            "Oldest TLS version accepted. Clients on Java 7 or older use TLSv1 by default; "
            "enabling it also enables its weak signature algorithms."
        ),
    )

    # Authentication
    users_file: File | None = Field(
        None,
        description=(
            "File with user names and scrypt hashes, written by `kopgate users`. Reloaded when it "
            "changes."
        ),
    )
    sasl_enabled_mechanisms: Mechanisms = Field(
        ("PLAIN",), description="SASL mechanisms offered by SASL listeners."
    )
    sasl_server_max_receive_size: int = Field(
        64 * KIB,
        ge=1 * KIB,
        le=100 * MIB,
        description=(
            "Maximum size of a SASL token: enough for the largest Kerberos tickets; passwords need "
            "much less. Kafka's default is 512 KiB."
        ),
    )
    sasl_check_threads: int = Field(
        2,
        ge=1,
        le=64,
        description=(
            "Concurrent password checks, about 50 ms and 16 MiB each. With two, many simultaneous "
            "logins leave the other cores free."
        ),
    )
    sasl_max_waiting_checks: int = Field(
        200,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of queued password checks, about five seconds' worth. Connections "
            "beyond it are closed; clients retry."
        ),
    )
    connection_failed_authentication_delay_ms: int = Field(
        100,
        ge=0,
        le=1 * MINUTE,
        description=(
            "Delay before a connection is closed after a failed authentication, to slow down "
            "guessing. Kafka's default."
        ),
    )
    connection_authentication_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description=(
            "Connections that are not authenticated within this time are closed. librdkafka gives "
            "up after 30 s, too."
        ),
    )

    # Connections
    max_connections: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections, about 10 KiB each when idle. The limit on open "
            "files must allow them."
        ),
    )
    max_connections_per_ip: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections per IP address. As high as the total by default, "
            "because many clients often share one NAT address."
        ),
    )
    connections_max_idle_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Connections idle for this long are closed. Kafka's default; Java clients close theirs "
            "after 9 min."
        ),
    )
    socket_request_max_bytes: int = Field(
        100 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description=(
            "Maximum size of a request. A larger one closes the connection. Kafka's default."
        ),
    )
    request_receive_timeout_ms: int = Field(
        2 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Maximum time to receive a request after its first byte, since its memory is in use "
            "meanwhile. Enough for 100 MiB at 1 MB/s."
        ),
    )
    max_in_flight_bytes_per_connection: int = Field(
        16 * MIB,
        ge=1 * KIB,
        description=(
            "Maximum bytes of in-flight requests per connection; beyond it the connection is not "
            "read (one larger request is still accepted). Java producers have five requests of 1 "
            "MiB in flight, so 16 MiB does not slow them down."
        ),
    )
    max_in_flight_bytes: int = Field(
        512 * MIB,
        ge=1 * KIB,
        description=(
            "Maximum bytes of in-flight requests of all connections. Five requests of the maximum "
            "size by default."
        ),
    )
    max_in_flight_requests_per_connection: int = Field(
        100,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of in-flight requests per connection; beyond it the connection is not "
            "read. Far above the five of Java clients, so that it only stops excessive pipelining."
        ),
    )
    partition_open_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description=(
            "How long a request waits for a partition that is being opened; opening continues "
            "afterwards. Shorter than the request timeout of every client, including 10 s of the "
            "oldest: the client receives NOT_LEADER_OR_FOLLOWER and retries."
        ),
    )
    partition_open_backoff_max_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description="Maximum backoff before a partition that repeatedly fails to open or is fenced "
        "repeatedly is opened again. Short enough that recovery is not delayed noticeably.",
    )
    shutdown_timeout_ms: int = Field(
        8 * SECOND,
        ge=0,
        le=10 * MINUTE,
        description=(
            "Maximum time to send outstanding responses at shutdown. Below 10 s, after which "
            "container runtimes kill the process."
        ),
    )

    # Topics
    auto_create_topics_enable: bool = Field(
        True,
        description=(
            "Whether Metadata and Produce requests create missing topics. Kafka's default; old "
            "applications rely on it."
        ),
    )
    num_partitions: int = Field(
        1,
        ge=1,
        description="Number of partitions of a topic created without a number. Kafka's default.",
    )
    max_partitions_per_topic: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of partitions per topic; limits what one request can allocate to about "
            "10 MB."
        ),
    )
    log_retention_ms: int = Field(
        7 * 24 * HOUR,
        ge=-1,
        description="Default of the topic config `retention.ms`. Kafka's default, a week.",
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description=(
            "Default of the topic config `retention.bytes` (per partition). Kafka's default."
        ),
    )
    log_retention_check_interval_ms: int = Field(
        5 * MINUTE,
        ge=1,
        le=24 * HOUR,
        description="How often retention is applied. Kafka's default.",
    )
    log_cleaner_backoff_ms: int = Field(
        15 * SECOND,
        ge=1,
        le=24 * HOUR,
        description=(
            "How often compacted topics are checked for records to remove. Kafka's default. A "
            "partition without new records costs 5 us."
        ),
    )
    log_cleanup_policy: CleanupPolicy = Field(
        ("delete",), description="Default of the topic config `cleanup.policy`. Kafka's default."
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        "CreateTime",
        description="Default of the topic config `message.timestamp.type`. Kafka's default.",
    )
    log_message_downconversion_enable: bool = Field(
        True,
        description=(
            "Default of the topic config `message.downconversion.enable`. Enabled, because serving "
            "old consumers is the purpose of the gateway."
        ),
    )
    message_max_bytes: int = Field(
        1 * MIB + 12,
        ge=0,
        le=INT32_MAX,
        description=(
            "Default of the topic config `max.message.bytes`, the maximum size of a batch. Kafka's "
            "default."
        ),
    )
    producer_id_expiration_ms: int = Field(
        24 * HOUR,
        ge=1,
        description="Idempotent producers idle for this long are forgotten. Kafka's default.",
    )
    max_producer_ids_per_partition: int = Field(
        10_000,
        ge=1,
        description=(
            "Maximum number of idempotent producers remembered per partition, about 1 KB each. The "
            "one idle longest is forgotten first, unless it has in-flight batches."
        ),
    )

    # Fetching and conversion
    fetch_max_bytes: int = Field(
        55 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description=(
            "Maximum record bytes in a Fetch response. Kafka's default; Java clients request 50 "
            "MiB."
        ),
    )
    max_incremental_fetch_session_cache_slots: int = Field(
        1_000,
        ge=0,
        le=1_000_000,
        description=(
            "Maximum number of incremental fetch sessions (KIP-227). Consumers without one send "
            "full requests. Kafka's default."
        ),
    )
    conversion_threads: int = Field(
        2,
        ge=1,
        le=256,
        description="Threads that convert records for old consumers. They run without the GIL.",
    )
    conversion_cache_bytes: int = Field(
        64 * MIB,
        ge=0,
        description=(
            "Size of the cache of converted batches, so that several old consumers at the end of "
            "the log cost one conversion. 64 batches of 1 MiB by default."
        ),
    )
    max_decompressed_bytes: int = Field(
        100 * MIB,
        ge=1 * MIB,
        le=INT32_MAX,
        description=(
            "Maximum size to which a batch may decompress; protects against decompression bombs. "
            "As large as an uncompressed request may be."
        ),
    )

    # Consumer groups
    group_min_session_timeout_ms: int = Field(
        6 * SECOND,
        ge=0,
        le=INT32_MAX,
        description="Minimum session timeout that a member may request. Kafka's default.",
    )
    group_max_session_timeout_ms: int = Field(
        30 * MINUTE,
        ge=1,
        le=INT32_MAX,
        description="Maximum session timeout that a member may request. Kafka's default.",
    )
    group_initial_rebalance_delay_ms: int = Field(
        3 * SECOND,
        ge=0,
        le=1 * HOUR,
        description=(
            "How long an empty group waits for more members before its first rebalance, so that a "
            "starting application is assigned once. Kafka's default."
        ),
    )
    group_max_size: int = Field(
        10_000,
        ge=1,
        le=INT32_MAX,
        description=(
            "Maximum number of members of a group. As many as partitions of a topic: more would "
            "have nothing to read."
        ),
    )
    group_max_pending_members: int = Field(
        10_000,
        ge=1,
        description=(
            "Maximum number of new members per group that received a member id and have not joined "
            "with it yet, about 300 bytes each."
        ),
    )
    group_member_max_bytes: int = Field(
        1 * MIB,
        ge=1 * KIB,
        le=100 * MIB,
        description=(
            "Maximum size of a member's JoinGroup metadata, and of its assignment. Kafka allows "
            "that much for a whole group."
        ),
    )
    max_group_bytes: int = Field(
        256 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum memory of all groups and their members, about 2 KiB each plus their metadata. "
            "Beyond it new members are refused."
        ),
    )
    max_bytes_per_group: int = Field(
        32 * MIB,
        ge=64 * KIB,
        description=(
            "Maximum memory of one group, enough for ten thousand members with 1 KiB each. A group "
            "is stored, sent to its leader and assigned as a whole."
        ),
    )
    group_consumer_session_timeout_ms: int = Field(
        45 * SECOND,
        ge=1 * SECOND,
        le=INT32_MAX,
        description=(
            "Session timeout of members of the consumer protocol (KIP-848), which do not choose it "
            "themselves. Kafka's default."
        ),
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5 * SECOND,
        ge=100,
        le=INT32_MAX,
        description=(
            "Heartbeat interval sent to members of the consumer protocol; determines how fast "
            "partitions move. Kafka's default."
        ),
    )
    group_consumer_assignment_interval_ms: int = Field(
        1 * SECOND,
        ge=0,
        le=1 * MINUTE,
        description=(
            "Minimum time between two assignments of a group of the consumer protocol, so that a "
            "thousand members joining together cost few assignments. After a slow assignment the "
            "interval is twenty times its duration. Default of Kafka 4.3."
        ),
    )
    group_consumer_regex_max_bytes: int = Field(
        2 * KIB,
        ge=1,
        le=64 * KIB,
        description=(
            "Maximum length of a subscription's regular expression. Fits sixty topic names; the "
            "most expensive expression of this length takes 0.1 s to refuse."
        ),
    )
    group_consumer_migration_policy: Literal[
        "bidirectional", "upgrade", "downgrade", "disabled"
    ] = Field(
        "bidirectional",
        description=(
            "Whether a classic group becomes a consumer group when the first member of the "
            "consumer protocol joins (upgrade), and a classic group again when the last one "
            "leaves (downgrade). Kafka's default."
        ),
    )

    # Committed offsets
    group_id_max_bytes: int = Field(
        MAX_GROUP_ID_BYTES,
        ge=1,
        le=MAX_GROUP_ID_BYTES,
        description="Maximum length of a group id. Limited by the size of the store's keys.",
    )
    offset_metadata_max_bytes: int = Field(
        4 * KIB,
        ge=0,
        le=INT16_MAX,
        description=(
            "Maximum length of the metadata of a committed offset, in characters, as in Kafka. "
            "Kafka's default."
        ),
    )
    max_offsets_per_group: int = Field(
        100_000,
        ge=1,
        description=(
            "Maximum number of partitions with committed offsets per group: ten topics of the "
            "maximum size."
        ),
    )
    committed_offsets_max_bytes: int = Field(
        512 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum memory of all committed offsets: 600 bytes each plus metadata and group ids, "
            "about 900,000 offsets. Protects against clients that commit under ever new names."
        ),
    )
    offsets_commit_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description=(
            "Maximum time to store a commit or a change of a group; afterwards the client receives "
            "COORDINATOR_NOT_AVAILABLE and retries. Kafka's default."
        ),
    )
    offsets_retention_minutes: int = Field(
        7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description=(
            "How long offsets are kept after a group has become empty or its members stopped "
            "reading the topic (KIP-211). In minutes, as in Kafka; its default, a week."
        ),
    )
    offsets_retention_check_interval_ms: int = Field(
        10 * MINUTE,
        ge=1,
        le=24 * HOUR,
        description="How often expired offsets are removed. Kafka's default.",
    )

    # The embedded store
    lmdb_initial_map_bytes: int = Field(
        1 * GIB,
        ge=1 * MIB,
        description=(
            "Initial address space (not disk space) of the embedded store. It grows automatically."
        ),
    )
    lmdb_resident_bytes: int = Field(
        64 * MIB,
        ge=0,
        description=(
            "Size of the in-memory cache of the newest batches, so that consumers at the end of "
            "the log need no disk reads."
        ),
    )

    # The store in Apache Pulsar
    pulsar_admin: Annotated[str, _from_text(parse_admin)] | None = Field(
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
            "Whether to take over topics from another running gateway. Disabled by default: two "
            "gateways would keep fencing each other."
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
            "names."
        ),
    )
    pulsar_multi_tenant_metadata: bool = Field(
        False,
        description=(
            "Whether the tables of an authenticated client are in the tenant named by its login, "
            "as in KoP. No SASL mechanism provides a tenant yet, so `true` is accepted only if "
            "no listener requires authentication; it then means the same as `false`, as in KoP."
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

    # The traffic log
    traffic_log: File | None = Field(
        None,
        description="Folder of the traffic log, which records client versions for reports "
        "(docs/traffic-log.md). Disabled by default.",
    )
    traffic_topic: bool = Field(
        False,
        description=(
            "Whether the traffic rows are also written to the topic `__kopgate_traffic`, for "
            "streaming reports. Disabled by default, because it uses space in the store."
        ),
    )
    traffic_log_interval_ms: int = Field(
        1 * MINUTE,
        ge=1 * SECOND,
        le=1 * HOUR,
        description=(
            "How often the usage of a connection is written, and the maximum loss in a crash. A "
            "minute is fine enough for every trend and produces few rows."
        ),
    )
    traffic_log_max_rows_per_connection: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of topics and groups of a connection with rows of their own per "
            "interval, about 500 bytes of memory each; the others are merged into one row per "
            "request and version. Only tools that access all topics exceed the default."
        ),
    )
    traffic_log_queue_lines: int = Field(
        100_000,
        ge=1_000,
        le=10_000_000,
        description=(
            "Maximum number of rows waiting for the disk; further rows are dropped and counted "
            "(`queue full`). Also limits the rows of topics and groups of all connections per "
            "interval to about 70 MB; further ones are merged. Ten per connection by default."
        ),
    )
    traffic_log_queue_bytes: int = Field(
        64 * MIB,
        ge=1 * MIB,
        description=(
            "Maximum bytes of waiting rows, about 450 each. Also limits what waits for the traffic "
            "topic."
        ),
    )
    traffic_log_rotate_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=16 * GIB,
        description=(
            "Size at which a file is finished: 4 to 7 MiB compressed by default; Spark reads "
            "several in one task."
        ),
    )
    traffic_log_rotate_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Age at which a file is finished and compressed. Reports also read the current file; "
            "other tools that read finished files lag by this much. 144 files a day by default."
        ),
    )
    traffic_log_compression_level: int = Field(
        1,
        ge=0,
        le=3,
        description=(
            "gzip level (ISA-L) of finished files. Level 1 makes them about ten times smaller; "
            "higher levels gain little."
        ),
    )
    traffic_log_retention_ms: int = Field(
        90 * 24 * HOUR,
        ge=-1,
        description=(
            "Finished files older than this are deleted; -1 keeps them. Also the initial retention "
            "of the traffic topic. 90 days include clients that connect once a month."
        ),
    )
    traffic_log_retention_bytes: int = Field(
        10 * GIB,
        ge=-1,
        description=(
            "Maximum size of the folder; beyond it the oldest finished files are deleted; -1 means "
            "no limit. The default holds about 80 million connection-minutes: two months of 1,000 "
            "connections."
        ),
    )
    traffic_log_salt_file: File | None = Field(
        None,
        description=(
            "File with a secret in its first line; addresses are hashed with it before they are "
            "written. A file, so that the secret is not visible in process lists. Without it "
            "addresses are written unchanged."
        ),
    )

    # Logs
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Log format, one event per line: `text` for people or `json` for programs.",
    )
    log_level: Level = Field("info", description="Minimum level of events written.")
    log_levels: Levels = Field(
        {},
        description=(
            "Levels of single modules, for example `gateway.protocol.session:debug`; a level "
            "applies to all modules below."
        ),
    )
    log_queue_events: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description=(
            "Maximum number of log lines waiting for a slow stderr, about 2 MB; further lines are "
            "dropped and counted."
        ),
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the arguments, so that `load` can report the origin of each value."""
        return (init_settings,)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        problems = [
            *self._listener_problems(),
            *self._security_problems(),
            *self._pulsar_problems(),
            *self._size_problems(),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def security_protocol(self, listener: str) -> SecurityProtocol:
        """Return the security protocol of a listener.

        Raises KeyError for an unmapped name; the model refuses such listeners.
        """
        return (
            self.listener_security_protocol_map[listener]
            if listener in self.listener_security_protocol_map
            else SecurityProtocol[listener]
        )

    def advertised_for(self, listener: str) -> Endpoint | None:
        """Return the advertised address of a listener; None means the bound address."""
        return next((endpoint for endpoint in self.advertised if endpoint.name == listener), None)

    def _listener_problems(self) -> Iterator[str]:
        names = [endpoint.name for endpoint in self.listeners]
        bound = [(endpoint.host, endpoint.port) for endpoint in self.listeners if endpoint.port]
        told = [endpoint.name for endpoint in self.advertised]
        yield from (f"listeners: duplicate name {name}" for name in _duplicates(names))
        yield from (
            (f"listeners: duplicate address {host}:{port}") for host, port in _duplicates(bound)
        )
        yield from (f"advertised: duplicate name {name}" for name in _duplicates(told))
        yield from (
            f"advertised: no listener is named {name}" for name in sorted(set(told) - set(names))
        )
        yield from (
            f"listener_security_protocol_map: no listener is named {name}"
            for name in sorted(set(self.listener_security_protocol_map) - set(names))
        )
        for endpoint in self.advertised:
            if endpoint.is_wildcard:
                yield (
                    f"advertised: clients cannot connect to {endpoint}, which stands for all "
                    "interfaces; use a host name or address"
                )
        for endpoint in self.listeners:
            if endpoint.is_wildcard and endpoint.name not in told:
                example = (
                    "advertised = "
                    f"[{str(Endpoint(endpoint.name, 'gateway.example.com', endpoint.port))!r}]"
                )
                yield (
                    f"listeners: {endpoint} listens on all interfaces, so an advertised address "
                    f"is required; for example {example}"
                )

    def _security_problems(self) -> Iterator[str]:
        for name in dict.fromkeys(endpoint.name for endpoint in self.listeners):
            try:
                protocol = self.security_protocol(name)
            except KeyError:
                yield (
                    f"listener_security_protocol_map: no entry for {name}, which is not the name "
                    f"of a security protocol; add for example {name} = 'PLAINTEXT'"
                )
                continue
            if protocol.has_tls and not self.ssl_certificate_file:
                yield f"ssl_certificate_file: required by TLS listener {name}"
            if protocol.has_tls and not self.ssl_key_file:
                yield f"ssl_key_file: required by TLS listener {name}"
            if protocol.has_sasl and self.pulsar_multi_tenant_metadata:
                yield (
                    f"pulsar_multi_tenant_metadata: listener {name} requires authentication, and "
                    "no mechanism provides a tenant yet; set it to false (KoP's default is true) "
                    "and set the tenant of all tables in pulsar_metadata_tenant"
                )
            if protocol.has_sasl and not self.users_file:
                yield (
                    f"users_file: required by SASL listener {name}; create one with `kopgate "
                    "users add NAME --file FILE`"
                )
        if self.ssl_client_auth != "none" and not self.ssl_ca_file:
            yield (
                "ssl_ca_file: required to verify client certificates, since ssl_client_auth is "
                f"{self.ssl_client_auth}"
            )

    def _pulsar_problems(self) -> Iterator[str]:
        if self.store.is_pulsar and not self.pulsar_admin:
            yield (
                f"pulsar_admin: required by store {self.store}; set the address of the cluster's "
                "admin API, for example http://HOST:8080"
            )
        if self.pulsar_admin and not self.store.is_pulsar:
            yield (
                f"pulsar_admin: store is {self.store}; to use Pulsar, also set store = "
                "'pulsar://HOST:6650'"
            )
        if self.pulsar_tls_certificate_file and not self.pulsar_tls_key_file:
            yield "pulsar_tls_certificate_file: pulsar_tls_key_file is missing"
        if self.pulsar_tls_key_file and not self.pulsar_tls_certificate_file:
            yield "pulsar_tls_key_file: pulsar_tls_certificate_file is missing"

    def _size_problems(self) -> Iterator[str]:
        for field in ("listeners", "sasl_enabled_mechanisms", "log_cleanup_policy"):
            if not getattr(self, field):
                yield f"{field}: at least one value is required"
        if self.max_in_flight_bytes < self.socket_request_max_bytes:
            yield (
                "max_in_flight_bytes: less than socket_request_max_bytes, so the largest request "
                "cannot be read"
            )
        if self.message_max_bytes > self.socket_request_max_bytes:
            yield (
                "message_max_bytes: more than socket_request_max_bytes, so the largest batch "
                "cannot be sent"
            )
        if -1 < self.traffic_log_retention_bytes < self.traffic_log_rotate_bytes:
            yield (
                "traffic_log_retention_bytes: less than traffic_log_rotate_bytes, so no finished "
                "file could be kept"
            )
        if self.num_partitions > self.max_partitions_per_topic:
            yield "num_partitions: more than max_partitions_per_topic"
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield (
                "group_min_session_timeout_ms: more than group_max_session_timeout_ms, so no "
                "client could join a group"
            )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield (
                "group_consumer_heartbeat_interval_ms: not less than "
                "group_consumer_session_timeout_ms, so every session would expire between "
                "heartbeats"
            )


def _duplicates(items: list[Any]) -> list[Any]:
    return sorted({item for item in items if items.count(item) > 1})
