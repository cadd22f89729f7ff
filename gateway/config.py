"""The settings: one typed, immutable model. A name is Kafka's where Kafka has the notion; every limit says why it is what it is.

A value made in code (`Settings(node_id=1)`) reads nothing but its arguments; `gateway.layers.load` puts flags, environment and file together.

Longer than a module should be, for it is one table: a setting is a row with its limits and the reason for its default, and all of them read as one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.addresses import Endpoint, SecurityProtocol, StoreAddress, parse_endpoint, parse_store

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
INT16_MAX, INT32_MAX = (1 << 15) - 1, (1 << 31) - 1

#: A row of the store has a key of at most 480 bytes; 20 of them name the partition.
LONGEST_GROUP_ID = 460

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


Endpoints = Annotated[tuple[Annotated[Endpoint, _from_text(parse_endpoint)], ...], BeforeValidator(_read_list), NoDecode]
File = Annotated[Path, _from_text(_read_path)]
Protocols = Annotated[Mapping[str, Annotated[SecurityProtocol, Field(strict=False)]], BeforeValidator(_read_table), NoDecode]
Levels = Annotated[Mapping[str, Level], BeforeValidator(_read_table), NoDecode]
Mechanisms = Annotated[tuple[Literal["PLAIN"], ...], BeforeValidator(_read_list), NoDecode]
CleanupPolicy = Annotated[tuple[Literal["delete", "compact"], ...], BeforeValidator(_read_list), NoDecode]


class Settings(BaseSettings):
    """Everything that can be set. Times are milliseconds, sizes bytes; -1 means "no limit" where a field's lower bound is -1."""

    model_config = SettingsConfigDict(env_prefix="KOPGATE_", extra="forbid", frozen=True, strict=True, validate_default=True)

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
        description="Where topics are kept: `lmdb:DIRECTORY`.",
    )

    # TLS
    ssl_certificate_file: File | None = Field(
        None, description="PEM: the server's certificate and then its chain. Read again when it changes."
    )
    ssl_key_file: File | None = Field(None, description="PEM: the certificate's private key. Read again when it changes.")
    ssl_key_password_file: File | None = Field(
        None, description="The first line is the pass phrase of the key. A file, so that no process list shows it."
    )
    ssl_ca_file: File | None = Field(None, description="PEM: the authorities that sign client certificates.")
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="Whether a TLS client must show a certificate. As in Kafka."
    )
    ssl_min_version: TlsVersion = Field(
        "TLSv1.2",
        description="The oldest TLS that is spoken. Clients on Java 7 or older speak TLSv1 unless told otherwise; "
        "allowing that also allows its weak signatures, so it is a choice.",
    )

    # Log-in
    users_file: File | None = Field(None, description="Names and scrypt hashes, written by `kopgate users`. Read again when it changes.")
    sasl_enabled_mechanisms: Mechanisms = Field(("PLAIN",), description="What a SASL listener offers.")
    sasl_server_max_receive_size: int = Field(
        512 * KIB,
        ge=1 * KIB,
        le=100 * MIB,
        description="Largest token of a log-in. Kafka's default; the largest Kerberos tickets are an eighth of it.",
    )
    sasl_check_threads: int = Field(
        2, ge=1, le=64, description="Password checks at a time, of some 50 ms and 16 MiB each: two keep a log-in storm off the other cores."
    )
    sasl_max_waiting_checks: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Password checks that may wait, about five seconds' worth. A connection beyond them is closed; clients try again.",
    )
    connection_failed_authentication_delay_ms: int = Field(
        100, ge=0, le=1 * MINUTE, description="How long a failed log-in waits for its hang-up, to slow guessing. Kafka's default."
    )
    connection_authentication_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description="A connection not logged in by then is closed. librdkafka gives up at 30 s itself, so nobody loses by it.",
    )

    # Connections
    max_connections: int = Field(
        10_000, ge=1, le=1_000_000, description="Open connections in all, some 10 KiB each when idle. Mind the limit on open files."
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
    shutdown_timeout_ms: int = Field(
        8 * SECOND,
        ge=0,
        le=10 * MINUTE,
        description="How long a shutdown may take to send the replies it owes. Below the 10 s after which container runtimes kill.",
    )

    # Topics
    auto_create_topics_enable: bool = Field(
        True, description="Whether asking for a topic makes it. Kafka's default; old applications count on it."
    )
    num_partitions: int = Field(1, ge=1, description="Partitions of a topic that is made without a number. Kafka's default.")
    max_partitions_per_topic: int = Field(
        10_000, ge=1, le=1_000_000, description="What one request can make the gateway allocate, some 10 MB at the most."
    )
    log_retention_ms: int = Field(7 * 24 * HOUR, ge=-1, description="`retention.ms` of a topic that has none. Kafka's default, a week.")
    log_retention_bytes: int = Field(-1, ge=-1, description="`retention.bytes` (per partition) of a topic that has none. Kafka's default.")
    log_retention_check_interval_ms: int = Field(
        5 * MINUTE, ge=1, le=24 * HOUR, description="How often retention is applied. Kafka's default."
    )
    log_cleanup_policy: CleanupPolicy = Field(("delete",), description="`cleanup.policy` of a topic that has none. Kafka's default.")
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = Field(
        "CreateTime", description="`message.timestamp.type` of a topic that has none. Kafka's default."
    )
    log_message_downconversion_enable: bool = Field(
        True, description="`message.downconversion.enable` of a topic that has none. On: serving old consumers is what the gateway is for."
    )
    message_max_bytes: int = Field(
        1 * MIB + 12, ge=0, le=INT32_MAX, description="`max.message.bytes` of a topic that has none: the largest batch. Kafka's default."
    )
    producer_id_expiration_ms: int = Field(
        24 * HOUR, ge=1, description="An idempotent producer silent for so long is forgotten. Kafka's default."
    )
    max_producer_ids_per_partition: int = Field(
        10_000, ge=1, description="Idempotent producers remembered by a partition, some 1 KB each; the longest silent is forgotten first."
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
        2, ge=1, le=256, description="Threads that convert records for old consumers. They run outside the interpreter's lock."
    )
    conversion_cache_bytes: int = Field(
        64 * MIB, ge=0, description="Converted batches kept, so that N old consumers at the tail cost one conversion. 64 batches of 1 MiB."
    )
    max_decompressed_bytes: int = Field(
        100 * MIB,
        ge=1 * MIB,
        le=INT32_MAX,
        description="What one batch may unpack to; the guard against bombs. As much as a client could have sent unpacked.",
    )

    # Consumer groups
    group_min_session_timeout_ms: int = Field(
        6 * SECOND, ge=0, le=INT32_MAX, description="Shortest session that a member may ask for. Kafka's default."
    )
    group_max_session_timeout_ms: int = Field(
        30 * MINUTE, ge=1, le=INT32_MAX, description="Longest session that a member may ask for. Kafka's default."
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
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = Field(
        "bidirectional",
        description="Whether a classic group becomes a consumer group when the first member of the new protocol joins (upgrade), and a classic "
        "one again when the last leaves (downgrade). Kafka's default.",
    )

    # Committed offsets
    group_id_max_bytes: int = Field(
        LONGEST_GROUP_ID, ge=1, le=LONGEST_GROUP_ID, description="Longest name of a group. What the store has room for in a row's key."
    )
    offset_metadata_max_bytes: int = Field(
        4 * KIB,
        ge=0,
        le=INT16_MAX,
        description="Longest note that a client may put beside an offset, in characters, as Kafka counts them. Kafka's default.",
    )
    max_offsets_per_group: int = Field(
        100_000, ge=1, description="Partitions that one group may have committed. As many as ten topics of the largest size have."
    )
    committed_offsets_max_bytes: int = Field(
        512 * MIB,
        ge=1 * MIB,
        description="Memory for the offsets of all groups, 600 bytes each, their notes and groups' names: what clients with ever new names can make "
        "the gateway hold. Some 900,000.",
    )
    offsets_retention_minutes: int = Field(
        7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description="How long the offsets of a group without members are kept, and those of topics that its members no longer read "
        "(KIP-211). Minutes, as in Kafka; its default, a week.",
    )
    offsets_retention_check_interval_ms: int = Field(
        10 * MINUTE, ge=1, le=24 * HOUR, description="How often offsets are looked at for that. Kafka's default."
    )

    # The embedded store
    lmdb_initial_map_bytes: int = Field(
        1 * GIB, ge=1 * MIB, description="Address space (not disk) that the store begins with. It grows by itself."
    )
    lmdb_resident_bytes: int = Field(
        64 * MIB, ge=0, description="Newest batches kept in memory, so that consumers at the tail touch no disk."
    )

    # Logs
    log_format: Literal["text", "json"] = Field("text", description="One line an event, for people or for machines.")
    log_level: Level = Field("info", description="The least that is written.")
    log_levels: Levels = Field(
        {}, description="Levels of parts, for example `gateway.session:debug`; a part's level holds for what is below it."
    )
    log_queue_events: int = Field(
        10_000, ge=100, le=1_000_000, description="Lines that wait for a slow stderr, about 2 MB; beyond it they are dropped, and counted."
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
    def _holds_together(self) -> Self:
        problems = [*self._listener_problems(), *self._security_problems(), *self._size_problems()]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def security_protocol(self, listener: str) -> SecurityProtocol:
        """What the listener of that name asks of a connection. Raises KeyError for a name without one (`Settings` refuses such a listener)."""
        return (
            self.listener_security_protocol_map[listener] if listener in self.listener_security_protocol_map else SecurityProtocol[listener]
        )

    def advertised_for(self, listener: str) -> Endpoint | None:
        """What clients of that listener are told; None for the bound address."""
        return next((endpoint for endpoint in self.advertised if endpoint.name == listener), None)

    def _listener_problems(self) -> Iterator[str]:
        names = [endpoint.name for endpoint in self.listeners]
        bound = [(endpoint.host, endpoint.port) for endpoint in self.listeners if endpoint.port]
        told = [endpoint.name for endpoint in self.advertised]
        yield from (f"listeners: the name {name} is there twice" for name in _twice(names))
        yield from (f"listeners: {host}:{port} is there twice" for host, port in _twice(bound))
        yield from (f"advertised: the name {name} is there twice" for name in _twice(told))
        yield from (f"advertised: there is no listener {name}" for name in sorted(set(told) - set(names)))
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
            if protocol.has_sasl and not self.users_file:
                yield f"users_file: listener {name} asks for a log-in and needs it; make one with `kopgate users add NAME --file FILE`"
        if self.ssl_client_auth != "none" and not self.ssl_ca_file:
            yield f"ssl_ca_file: ssl_client_auth is {self.ssl_client_auth} and needs it, to know whose certificates count"

    def _size_problems(self) -> Iterator[str]:
        for field in ("listeners", "sasl_enabled_mechanisms", "log_cleanup_policy"):
            if not getattr(self, field):
                yield f"{field}: there must be at least one"
        if self.max_in_flight_bytes < self.socket_request_max_bytes:
            yield "max_in_flight_bytes: less than socket_request_max_bytes, so the largest request could never be read"
        if self.message_max_bytes > self.socket_request_max_bytes:
            yield "message_max_bytes: more than socket_request_max_bytes, so the largest batch could never be sent"
        if self.num_partitions > self.max_partitions_per_topic:
            yield "num_partitions: more than max_partitions_per_topic"
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield "group_min_session_timeout_ms: more than group_max_session_timeout_ms, so nobody could join a group"
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield "group_consumer_heartbeat_interval_ms: not less than group_consumer_session_timeout_ms, so every member would be gone in between"


def _twice(items: list[Any]) -> list[Any]:
    return sorted({item for item in items if items.count(item) > 1})
