"""The settings: one typed, immutable model. A name is Kafka's where Kafka has the notion; every limit says why it is what it is.

A value made in code (`Settings(node_id=1)`) reads nothing but its arguments; `gateway.settings.layers.load` puts flags, environment and file together.

Longer than a module should be, for it is one table: a setting is a row with its limits and the reason for its default, and all of them read as one model.
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

#: A row of the store has a key of at most 480 bytes; 20 of them name the partition.
MAX_GROUP_ID_BYTES = 460

Level = Literal["debug", "info", "warning", "error"]
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]


def _read_list(value: Any) -> Any:
    """A list in TOML, `a,b` in the environment or a flag."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return tuple(value) if isinstance(value, list) else value


def _read_table(value: Any) -> Any:
    """A table in TOML, `NAME:VALUE,NAME:VALUE` in the environment or a flag."""
    if not isinstance(value, str):
        return value
    pairs = [item.partition(":") for item in value.split(",") if item.strip()]
    table = {name.strip(): rest.strip() for name, _, rest in pairs}
    if len(table) != len(pairs) or not all(colon for _, colon, _ in pairs):
        raise ValueError(f"{value!r} is not NAME:VALUE,NAME:VALUE with each name once")
    return table


def _from_text(parse: Callable[[str], Any]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("a file name is wanted")
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
    """Everything that can be set. Times are milliseconds, sizes bytes; -1 means "no limit" where a field's lower bound is -1."""

    model_config = SettingsConfigDict(
        env_prefix="KOPGATE_", extra="forbid", frozen=True, strict=True, validate_default=True
    )

    # Who it is and where it listens
    node_id: int = Field(0, ge=0, le=INT32_MAX, description="Kafka's broker id of this gateway.")
    listeners: Endpoints = Field(
        (parse_endpoint("PLAINTEXT://127.0.0.1:9092"),),
        description="`NAME://HOST:PORT` each; port 0 takes a free one, IPv6 stands in brackets. "
        "Loopback by default, for a listener without log-in should not face a network unasked.",
    )
    advertised: Endpoints = Field(
        (),
        description="`NAME://HOST:PORT`, the address that clients of that listener are told to connect to; port 0 stands for the bound port. "
        "By default what the listener is bound to, which 0.0.0.0 and [::] cannot be.",
    )
    listener_security_protocol_map: Protocols = Field(
        {},
        description="Listener name to PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Those four names mean themselves.",
    )
    store: Annotated[StoreAddress, _from_text(parse_store), NoDecode] = Field(
        parse_store("lmdb:./data"),
        description="Where topics are kept: `lmdb:DIRECTORY`, `pulsar://HOST:PORT` or `pulsar+ssl://HOST:PORT` (several brokers with commas between).",
    )

    # TLS
    ssl_certificate_file: File | None = Field(
        None,
        description="PEM: the server's certificate and then its chain. Read again when it changes.",
    )
    ssl_key_file: File | None = Field(
        None, description="PEM: the certificate's private key. Read again when it changes."
    )
    ssl_key_password_file: File | None = Field(
        None,
        description="The first line is the pass phrase of the key. A file, so that no process list shows it.",
    )
    ssl_ca_file: File | None = Field(
        None, description="PEM: the authorities that sign client certificates."
    )
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="Whether a TLS client must show a certificate. As in Kafka."
    )
    ssl_min_version: TlsVersion = Field(
        "TLSv1.2",
        description="The oldest TLS that is spoken. Clients on Java 7 or older speak TLSv1 unless told otherwise; "
        "allowing that also allows its weak signatures, so it is a choice.",
    )

    # Log-in
    users_file: File | None = Field(
        None,
        description="Names and scrypt hashes, written by `kopgate users`. Read again when it changes.",
    )
    sasl_enabled_mechanisms: Mechanisms = Field(
        ("PLAIN",), description="What a SASL listener offers."
    )
    sasl_server_max_receive_size: int = Field(
        64 * KIB,
        ge=1 * KIB,
        le=100 * MIB,
        description="Largest token of a log-in: as much as the largest Kerberos tickets; passwords need far less. Kafka's default is 512 KiB.",
    )
    sasl_check_threads: int = Field(
        2,
        ge=1,
        le=64,
        description="Password checks at a time, of some 50 ms and 16 MiB each: two keep a log-in storm off the other cores.",
    )
    sasl_max_waiting_checks: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Password checks that may wait, about five seconds' worth. A connection beyond them is closed; clients try again.",
    )
    connection_failed_authentication_delay_ms: int = Field(
        100,
        ge=0,
        le=1 * MINUTE,
        description="How long a failed log-in waits for its hang-up, to slow guessing. Kafka's default.",
    )
    connection_authentication_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description="A connection not logged in by then is closed. librdkafka gives up at 30 s itself, so nobody loses by it.",
    )

    # Connections
    max_connections: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Open connections in all, some 10 KiB each when idle. Mind the limit on open files.",
    )
    max_connections_per_ip: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Open connections from one address. As many as in all, since old applications often sit behind one NAT address.",
    )
    connections_max_idle_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description="A connection silent for so long is closed. Kafka's default; Java clients close theirs at 9 min.",
    )
    socket_request_max_bytes: int = Field(
        100 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description="Largest request; beyond it the peer is no Kafka client, or a broken one. Kafka's default.",
    )
    request_receive_timeout_ms: int = Field(
        2 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description="A request that has begun to arrive must be whole by then, or its memory is held for nothing. 100 MiB at 1 MB/s arrive in time.",
    )
    max_in_flight_bytes_per_connection: int = Field(
        16 * MIB,
        ge=1 * KIB,
        description="Requests of one connection that are read but not answered; beyond it reading stops (one larger request is still taken). "
        "The Java client keeps five of 1 MiB on the way, so 16 MiB never holds it up.",
    )
    max_in_flight_bytes: int = Field(
        512 * MIB,
        ge=1 * KIB,
        description="The same over all connections: what all clients together can make the gateway hold. Five requests of the largest size.",
    )
    max_in_flight_requests_per_connection: int = Field(
        100,
        ge=1,
        le=100_000,
        description="Requests of one connection that wait; beyond it reading stops. Far above the five of Java, so that only a runaway pipeline meets it.",
    )
    partition_open_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description="How long a request waits for a partition that is being opened; the opening goes on. Below every client's patience, the 10 s of "
        "the oldest included: it hears NOT_LEADER_OR_FOLLOWER and asks again.",
    )
    partition_open_backoff_max_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description="Longest pause before a partition that cannot be opened, or is lost again and again, is opened anew. Shorter than it takes people "
        "to notice that all is well again.",
    )
    shutdown_timeout_ms: int = Field(
        8 * SECOND,
        ge=0,
        le=10 * MINUTE,
        description="How long a shutdown may take to send the replies it owes. Below the 10 s after which container runtimes kill.",
    )

    # Topics
    auto_create_topics_enable: bool = Field(
        True,
        description="Whether asking for a topic makes it. Kafka's default; old applications count on it.",
    )
    num_partitions: int = Field(
        1, ge=1, description="Partitions of a topic that is made without a number. Kafka's default."
    )
    max_partitions_per_topic: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="What one request can make the gateway allocate, some 10 MB at the most.",
    )
    log_retention_ms: int = Field(
        7 * 24 * HOUR,
        ge=-1,
        description="`retention.ms` of a topic that has none. Kafka's default, a week.",
    )
    log_retention_bytes: int = Field(
        -1,
        ge=-1,
        description="`retention.bytes` (per partition) of a topic that has none. Kafka's default.",
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
        description="How often compacted topics are checked for records to remove. Kafka's default. A partition without new records costs 5 us.",
    )
    log_cleanup_policy: CleanupPolicy = Field(
        ("delete",), description="`cleanup.policy` of a topic that has none. Kafka's default."
    )
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        "CreateTime",
        description="`message.timestamp.type` of a topic that has none. Kafka's default.",
    )
    log_message_downconversion_enable: bool = Field(
        True,
        description="`message.downconversion.enable` of a topic that has none. On: serving old consumers is what the gateway is for.",
    )
    message_max_bytes: int = Field(
        1 * MIB + 12,
        ge=0,
        le=INT32_MAX,
        description="`max.message.bytes` of a topic that has none: the largest batch. Kafka's default.",
    )
    producer_id_expiration_ms: int = Field(
        24 * HOUR,
        ge=1,
        description="An idempotent producer silent for so long is forgotten. Kafka's default.",
    )
    max_producer_ids_per_partition: int = Field(
        10_000,
        ge=1,
        description="Idempotent producers remembered by a partition, some 1 KB each; the longest silent is forgotten first, unless it has batches in flight.",
    )

    # Fetching and conversion
    fetch_max_bytes: int = Field(
        55 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description="Most record bytes in one fetch reply. Kafka's default; Java clients ask for 50 MiB.",
    )
    max_incremental_fetch_session_cache_slots: int = Field(
        1_000,
        ge=0,
        le=1_000_000,
        description="Incremental fetch sessions (KIP-227) kept; a consumer without one sends full requests. Kafka's default.",
    )
    conversion_threads: int = Field(
        2,
        ge=1,
        le=256,
        description="Threads that convert records for old consumers. They run outside the interpreter's lock.",
    )
    conversion_cache_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Converted batches kept, so that N old consumers at the tail cost one conversion. 64 batches of 1 MiB.",
    )
    max_decompressed_bytes: int = Field(
        100 * MIB,
        ge=1 * MIB,
        le=INT32_MAX,
        description="What one batch may unpack to; the guard against bombs. As much as a client could have sent unpacked.",
    )

    # Consumer groups
    group_min_session_timeout_ms: int = Field(
        6 * SECOND,
        ge=0,
        le=INT32_MAX,
        description="Shortest session that a member may ask for. Kafka's default.",
    )
    group_max_session_timeout_ms: int = Field(
        30 * MINUTE,
        ge=1,
        le=INT32_MAX,
        description="Longest session that a member may ask for. Kafka's default.",
    )
    group_initial_rebalance_delay_ms: int = Field(
        3 * SECOND,
        ge=0,
        le=1 * HOUR,
        description="How long a group that was empty waits for more members, so that an application that starts is assigned once. Kafka's default.",
    )
    group_max_size: int = Field(
        10_000,
        ge=1,
        le=INT32_MAX,
        description="Most members of one group. As many as partitions of a topic: more would have nothing to read.",
    )
    group_max_pending_members: int = Field(
        10_000,
        ge=1,
        description="Newcomers of one group that were told an id and have not come back with it, some 300 bytes each. As many as members.",
    )
    group_member_max_bytes: int = Field(
        1 * MIB,
        ge=1 * KIB,
        le=100 * MIB,
        description="What one member may tell its group in JoinGroup, and what it may be assigned. Kafka has room for that much in a whole group.",
    )
    max_group_bytes: int = Field(
        256 * MIB,
        ge=1 * MIB,
        description="What all groups and their members may take in memory, some 2 KiB each and what they say; beyond it nobody new is let in.",
    )
    max_bytes_per_group: int = Field(
        32 * MIB,
        ge=64 * KIB,
        description="What one group may take of that: ten thousand members that say 1 KiB each. It is stored, told its leader and assigned in one go.",
    )
    group_consumer_session_timeout_ms: int = Field(
        45 * SECOND,
        ge=1 * SECOND,
        le=INT32_MAX,
        description="A member of the new protocol (KIP-848) silent for so long is gone: there, the members do not choose. Kafka's default.",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5 * SECOND,
        ge=100,
        le=INT32_MAX,
        description="How often members of the new protocol are told to send a heartbeat, and so how fast partitions change hands. Kafka's default.",
    )
    group_consumer_assignment_interval_ms: int = Field(
        1 * SECOND,
        ge=0,
        le=1 * MINUTE,
        description="The assignments of a group of the new protocol are made anew no more often, so that a thousand members that come at once "
        "cost a few assignments; one that takes long waits twenty times as long. The default of Kafka 4.3.",
    )
    group_consumer_regex_max_bytes: int = Field(
        2 * KIB,
        ge=1,
        le=64 * KIB,
        description="Longest regular expression of a subscription. Sixty names of topics fit; the most costly one of this length takes 0.1 s to refuse.",
    )
    group_consumer_migration_policy: Literal[
        "bidirectional", "upgrade", "downgrade", "disabled"
    ] = Field(
        "bidirectional",
        description="Whether a classic group becomes a consumer group when the first member of the new protocol joins (upgrade), and a classic "
        "one again when the last leaves (downgrade). Kafka's default.",
    )

    # Committed offsets
    group_id_max_bytes: int = Field(
        MAX_GROUP_ID_BYTES,
        ge=1,
        le=MAX_GROUP_ID_BYTES,
        description="Longest name of a group. What the store has room for in a row's key.",
    )
    offset_metadata_max_bytes: int = Field(
        4 * KIB,
        ge=0,
        le=INT16_MAX,
        description="Longest note that a client may put beside an offset, in characters, as Kafka counts them. Kafka's default.",
    )
    max_offsets_per_group: int = Field(
        100_000,
        ge=1,
        description="Partitions that one group may have committed. As many as ten topics of the largest size have.",
    )
    committed_offsets_max_bytes: int = Field(
        512 * MIB,
        ge=1 * MIB,
        description="Memory for the offsets of all groups, 600 bytes each, their notes and groups' names: what clients with ever new names can make "
        "the gateway hold. Some 900,000.",
    )
    offsets_commit_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description="How long a commit, or a change of a group, may take to be stored; then its client hears COORDINATOR_NOT_AVAILABLE and asks again. "
        "Kafka's default.",
    )
    offsets_retention_minutes: int = Field(
        7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description="How long the offsets of a group without members are kept, and those of topics that its members no longer read "
        "(KIP-211). Minutes, as in Kafka; its default, a week.",
    )
    offsets_retention_check_interval_ms: int = Field(
        10 * MINUTE,
        ge=1,
        le=24 * HOUR,
        description="How often offsets are looked at for that. Kafka's default.",
    )

    # The embedded store
    lmdb_initial_map_bytes: int = Field(
        1 * GIB,
        ge=1 * MIB,
        description="Address space (not disk) that the store begins with. It grows by itself.",
    )
    lmdb_resident_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Newest batches kept in memory, so that consumers at the tail touch no disk.",
    )

    # The store in Apache Pulsar
    pulsar_admin: Annotated[str, _from_text(parse_admin)] | None = Field(
        None,
        description="The admin API of the cluster that `store` names: `http://HOST:8080` or `https://HOST:8443`.",
    )
    pulsar_setup: bool = Field(
        False,
        description="Whether to make the namespaces and policies that are missing at the start. Off: what belongs to others is not changed unasked; "
        "the start then says what is missing and how to set it.",
    )
    pulsar_takeover: bool = Field(
        False,
        description="Whether to take the topics away from the gateway that has them. Off: two that both believe to be the one would do so in turns.",
    )
    pulsar_token_file: File | None = Field(
        None,
        description="The first line is the token (JWT) that the gateway shows to Pulsar. A file, so that no process list shows it; read again when it changes.",
    )
    pulsar_tls_trust_file: File | None = Field(
        None,
        description="PEM: the authorities that sign the brokers' certificates. By default those of this machine.",
    )
    pulsar_tls_certificate_file: File | None = Field(
        None,
        description="PEM: what the gateway shows of itself to brokers that ask for a certificate.",
    )
    pulsar_tls_key_file: File | None = Field(
        None, description="PEM: the private key of that certificate, without a pass phrase."
    )
    pulsar_tenant: Name = Field(
        "public", description="Tenant of the topics whose names have no slash. KoP's default."
    )
    pulsar_namespace: Name = Field(
        "default", description="Namespace of the topics whose names have no slash. KoP's default."
    )
    pulsar_metadata_tenant: Name = Field(
        "public",
        description="Tenant of the gateway's own tables: groups, offsets, ids. KoP's default.",
    )
    pulsar_metadata_namespace: Name = Field(
        "__kafka",
        description="Namespace of the gateway's own tables; Pulsar's clients should have no business there. KoP's default.",
    )
    pulsar_allowed_namespaces: Namespaces = Field(
        (),
        description="`TENANT/NAMESPACE` of the others whose topics are served, by their full names.",
    )
    pulsar_multi_tenant_metadata: bool = Field(
        False,
        description="Whether the tables of a client that logs in are in the tenant that its log-in names, as in KoP. No log-in names one yet, so `true` "
        "is taken only where no listener asks for one: there it means the same as `false`, in KoP as here.",
    )
    entry_format: Literal["mixed_kafka", "kafka", "pulsar"] = Field(
        "mixed_kafka",
        description="How records lie in Pulsar, for topics made without an `entry.format`: batches as they were produced, batches in format 2 "
        "only, or messages that Pulsar's own clients read. As in KoP, whose default is the last and the slowest.",
    )
    pulsar_mirror_cursors: bool = Field(
        False,
        description="Whether committed offsets move Pulsar subscriptions of the group's name, so that Pulsar's backlog figures count Kafka's groups. "
        "Off: Pulsar keeps what such a subscription has not read, beyond any retention, and a backlog quota may then stop producers.",
    )
    pulsar_send_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=10 * MINUTE,
        description="A message not acknowledged by then may be stored or not: its partition begins anew, and its producer is told to try again. "
        "The default of Pulsar's client, and Java's producers wait as long for an answer.",
    )
    pulsar_start_timeout_ms: int = Field(
        90 * SECOND,
        ge=0,
        le=1 * HOUR,
        description="How long a start is tried again while the brokers answer that they have trouble of their own, or keep the topics for a gateway that is "
        "gone. A broker that starts is without its bookies for some seconds, and takes a dead host's connection for alive for 30 to 60.",
    )
    pulsar_operation_timeout_ms: int = Field(
        30 * SECOND,
        ge=1 * SECOND,
        le=10 * MINUTE,
        description="For a broker to be found and to open a topic. The default of Pulsar's client.",
    )
    pulsar_admin_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=10 * MINUTE,
        description="For one call of the admin API. As Pulsar's own gives an operation.",
    )
    pulsar_refresh_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description="How old the list of topics may be: those that somebody else makes or deletes in Pulsar are seen after so long. A few calls each time.",
    )
    pulsar_resident_bytes: int = Field(
        64 * MIB,
        ge=0,
        description="Newest batches kept in memory, over all partitions, so that consumers at the tail ask no broker.",
    )
    pulsar_readers: int = Field(
        64,
        ge=1,
        le=10_000,
        description="Open readers for consumers that are behind; the longest unused goes first. Each holds some messages that it read ahead, 40 MiB of the largest.",
    )
    pulsar_threads: int = Field(
        8,
        ge=1,
        le=256,
        description="Calls of Pulsar's client at a time: topics opened and old batches read. They wait much and compute little.",
    )

    # The traffic log
    traffic_log: File | None = Field(
        None,
        description="Folder of the traffic log: who speaks which versions, for reports (docs/traffic-log.md). None by default.",
    )
    traffic_topic: bool = Field(
        False,
        description="Whether the same rows go into the topic `__kopgate_traffic`, for reports that follow. Off: they take room in the store.",
    )
    traffic_log_interval_ms: int = Field(
        1 * MINUTE,
        ge=1 * SECOND,
        le=1 * HOUR,
        description="How often a connection's use is written, and how much of it a crash may lose. A minute: fine enough for every trend, and few lines.",
    )
    traffic_log_max_rows_per_connection: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Topics and groups of one connection that have rows of their own in an interval, some 500 bytes of memory each; the others are merged "
        "into one a request and version. Above what applications read; tools that go through all topics meet it.",
    )
    traffic_log_queue_lines: int = Field(
        100_000,
        ge=1_000,
        le=10_000_000,
        description="Lines that wait for the disk; beyond it they are dropped, and counted (`queue full`). And the rows of topics "
        "and groups that all connections together may have in an interval, beyond which they are merged: some 70 MB. Ten of each connection.",
    )
    traffic_log_queue_bytes: int = Field(
        64 * MIB,
        ge=1 * MIB,
        description="The same in bytes: some 450 a line. And what may wait for the topic.",
    )
    traffic_log_rotate_bytes: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=16 * GIB,
        description="A file that large is finished. Compressed it has some 4 to 7 MiB; Spark reads several in one task.",
    )
    traffic_log_rotate_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description="A file that old is finished, and compressed. Reports take what is being written, too; others that read finished files lag so far. At the default 144 files a day.",
    )
    traffic_log_compression_level: int = Field(
        1,
        ge=0,
        le=3,
        description="Level of gzip for finished files, of Intel's library: 1 makes them some ten times smaller, the others gain little.",
    )
    traffic_log_retention_ms: int = Field(
        90 * 24 * HOUR,
        ge=-1,
        description="Finished files older than that are deleted; -1 keeps them. The topic is made with it, and altered as any topic. A quarter shows who comes once a month.",
    )
    traffic_log_retention_bytes: int = Field(
        10 * GIB,
        ge=-1,
        description="What the folder may hold; beyond it the oldest finished files are deleted; -1 is no limit. Some 80 million connection-minutes: two months of 1,000 connections.",
    )
    traffic_log_salt_file: File | None = Field(
        None,
        description="The first line is a secret with which addresses are hashed before they are written. A file, so that no process list shows it. "
        "Without one they stand there as they are.",
    )

    # Logs
    log_format: Literal["text", "json"] = Field(
        "text", description="One line an event, for people or for machines."
    )
    log_level: Level = Field("info", description="The least that is written.")
    log_levels: Levels = Field(
        {},
        description="Levels of parts, for example `gateway.protocol.session:debug`; a part's level holds for what is below it.",
    )
    log_queue_events: int = Field(
        10_000,
        ge=100,
        le=1_000_000,
        description="Lines that wait for a slow stderr, about 2 MB; beyond it they are dropped, and counted.",
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
        """Only the arguments: a setting made in code depends on no environment, and `load` can say where each value came from."""
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
        """What the listener of that name asks of a connection. Raises KeyError for a name without one (`Settings` refuses such a listener)."""
        return (
            self.listener_security_protocol_map[listener]
            if listener in self.listener_security_protocol_map
            else SecurityProtocol[listener]
        )

    def advertised_for(self, listener: str) -> Endpoint | None:
        """What clients of that listener are told; None for the bound address."""
        return next((endpoint for endpoint in self.advertised if endpoint.name == listener), None)

    def _listener_problems(self) -> Iterator[str]:
        names = [endpoint.name for endpoint in self.listeners]
        bound = [(endpoint.host, endpoint.port) for endpoint in self.listeners if endpoint.port]
        told = [endpoint.name for endpoint in self.advertised]
        yield from (f"listeners: the name {name} is there twice" for name in _duplicates(names))
        yield from (f"listeners: {host}:{port} is there twice" for host, port in _duplicates(bound))
        yield from (f"advertised: the name {name} is there twice" for name in _duplicates(told))
        yield from (
            f"advertised: there is no listener {name}" for name in sorted(set(told) - set(names))
        )
        yield from (
            f"listener_security_protocol_map: there is no listener {name}"
            for name in sorted(set(self.listener_security_protocol_map) - set(names))
        )
        for endpoint in self.advertised:
            if endpoint.is_wildcard:
                yield f"advertised: {endpoint} is every interface, which no client can connect to; name the host that clients reach"
        for endpoint in self.listeners:
            if endpoint.is_wildcard and endpoint.name not in told:
                example = f"advertised = [{str(Endpoint(endpoint.name, 'gateway.example.com', endpoint.port))!r}]"
                yield f"listeners: {endpoint} listens on every interface, so clients must be told where to connect; set for example {example}"

    def _security_problems(self) -> Iterator[str]:
        for name in dict.fromkeys(endpoint.name for endpoint in self.listeners):
            try:
                protocol = self.security_protocol(name)
            except KeyError:
                yield f"listener_security_protocol_map: says nothing of {name}, which is not a security protocol itself; add {name} = 'PLAINTEXT', for example"
                continue
            if protocol.has_tls and not self.ssl_certificate_file:
                yield f"ssl_certificate_file: listener {name} speaks TLS and needs it"
            if protocol.has_tls and not self.ssl_key_file:
                yield f"ssl_key_file: listener {name} speaks TLS and needs it"
            if protocol.has_sasl and self.pulsar_multi_tenant_metadata:
                yield (
                    f"pulsar_multi_tenant_metadata: listener {name} asks for a log-in, and none brings a tenant yet, so there is one place for all "
                    "tables; set it to false (in KoP it is true unless the configuration says otherwise) and say where in pulsar_metadata_tenant"
                )
            if protocol.has_sasl and not self.users_file:
                yield f"users_file: listener {name} asks for a log-in and needs it; make one with `kopgate users add NAME --file FILE`"
        if self.ssl_client_auth != "none" and not self.ssl_ca_file:
            yield f"ssl_ca_file: ssl_client_auth is {self.ssl_client_auth} and needs it, to know whose certificates count"

    def _pulsar_problems(self) -> Iterator[str]:
        if self.store.is_pulsar and not self.pulsar_admin:
            yield f"pulsar_admin: topics of {self.store} are made and found through the cluster's admin API; say where it is, for example http://HOST:8080"
        if self.pulsar_admin and not self.store.is_pulsar:
            yield f"pulsar_admin: the store is {self.store}; for one in Pulsar say store = 'pulsar://HOST:6650', too"
        if self.pulsar_tls_certificate_file and not self.pulsar_tls_key_file:
            yield "pulsar_tls_certificate_file: pulsar_tls_key_file, its private key, is missing"
        if self.pulsar_tls_key_file and not self.pulsar_tls_certificate_file:
            yield "pulsar_tls_key_file: pulsar_tls_certificate_file, the certificate that it belongs to, is missing"

    def _size_problems(self) -> Iterator[str]:
        for field in ("listeners", "sasl_enabled_mechanisms", "log_cleanup_policy"):
            if not getattr(self, field):
                yield f"{field}: there must be at least one"
        if self.max_in_flight_bytes < self.socket_request_max_bytes:
            yield "max_in_flight_bytes: less than socket_request_max_bytes, so the largest request could never be read"
        if self.message_max_bytes > self.socket_request_max_bytes:
            yield "message_max_bytes: more than socket_request_max_bytes, so the largest batch could never be sent"
        if -1 < self.traffic_log_retention_bytes < self.traffic_log_rotate_bytes:
            yield "traffic_log_retention_bytes: less than traffic_log_rotate_bytes, so the file that is being written would leave room for no other"
        if self.num_partitions > self.max_partitions_per_topic:
            yield "num_partitions: more than max_partitions_per_topic"
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield "group_min_session_timeout_ms: more than group_max_session_timeout_ms, so nobody could join a group"
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield "group_consumer_heartbeat_interval_ms: not less than group_consumer_session_timeout_ms, so every member would be gone in between"


def _duplicates(items: list[Any]) -> list[Any]:
    return sorted({item for item in items if items.count(item) > 1})
