"""Address of the Pulsar cluster and limits of the store on it, with the reason for each default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MIB = 1 << 20

EntryFormat = Literal["mixed_kafka", "kafka", "pulsar"]


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """Sizes are in bytes. Default names are KoP's."""

    service_url: str
    """`pulsar://HOST:PORT` or `pulsar+ssl://HOST:PORT`; several brokers are separated by commas."""

    admin_url: str
    """`http://HOST:PORT` or `https://HOST:PORT`."""

    token_file: Path | None = None
    """File with a JWT, sent to both addresses; read again when it changes."""

    tls_trust_file: Path | None = None
    """PEM file with the authorities that sign the brokers' certificates; None for the system's."""

    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    """PEM files with the client certificate and its key, if the brokers require one."""

    tenant: str = "public"
    namespace: str = "default"
    """Namespace of topics whose name has no slash."""

    metadata_tenant: str = "public"
    metadata_namespace: str = "__kafka"
    """Namespace of the state tables."""

    allowed_namespaces: tuple[str, ...] = field(default=())
    """Other namespaces, as `tenant/namespace`, whose topics are served under their full names."""

    entry_format: EntryFormat = "mixed_kafka"
    """Format of topics that are created without one."""

    shards: int = 32
    """Number of shards of a new store. A store keeps the number it was created with."""

    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_policy: str = "delete"
    """Defaults for topics that do not set them, from the gateway's settings; -1 means unlimited."""

    message_max_bytes: int = MIB + 12
    """Largest producer batch, unless the topic sets its own; it must fit into a Pulsar message."""

    node: str = "kopgate"
    """Name of this gateway, shown to a process that finds the store in use."""

    takeover: bool = False
    """Take over the store from a process that holds it and does not join clusters."""

    setup: bool = False
    """Create missing tenants, namespaces and policies."""

    checks_at_start: bool = True
    """Check at start that the cluster has everything the gateway needs; takes half a second."""

    send_timeout_seconds: float = 30.0
    """Time for the acknowledgement of a message.

    After that its outcome is unknown and its log is reopened. The client library's default.
    """

    operation_timeout_seconds: float = 30.0
    """Time to create a producer or reader and to look up a broker. The client library's default."""

    connection_timeout_seconds: float = 10.0
    """Time to connect to a broker. The client library's default."""

    close_timeout_seconds: float = 10.0
    """Time for each step of closing, such as waiting for acknowledgements.

    The client library may never return if no broker answers.
    """

    admin_timeout_seconds: float = 30.0
    """Time for one call of the admin API."""

    admin_connections: int = 8
    """Concurrent connections to the admin API.

    A start makes calls for each topic and must not flood a broker.
    """

    admin_answer_bytes: int = 64 * MIB
    """Largest response of the admin API: the names of half a million topics."""

    refresh_seconds: float = 30.0
    """Interval at which the list of topics is refreshed.

    Topics created or deleted by other clients are noticed within this time.
    """

    refresh_topics: int = 1000
    """Known topics whose properties are read again in each refresh, with one call each.

    New and deleted topics are noticed without this.
    """

    permissions_refresh_seconds: float = 30.0
    """Interval at which the permissions of roles are read again, if they are used.

    A revoked permission is effective for this time. KoP's default.
    """

    permissions_max_age_seconds: float = 600.0
    """Age at which permissions that cannot be read again allow nothing.

    A restart of the brokers takes less.
    """

    permissions_max: int = 50_000
    """Permissions of a namespace, at most; about 300 bytes each. To decode these takes 0.1 s."""

    permissions_wildcards: bool = False
    """Whether `*` at the beginning or end of a role stands for any text in grants on a namespace.

    As the brokers' authorizationAllowWildcardsMatching.
    """

    tail_bytes: int = 64 * MIB
    """Cache of the messages appended last, for consumers at the log end; shared by all logs."""

    arriving_bytes: int = 16 * MIB
    """Entries in flight from the client library to the gateway, per topic in the format `pulsar`.

    Above this the library is blocked.
    """

    queue_bytes: int = 256 * MIB
    """Payload waiting for Pulsar's acknowledgement.

    Appends above this are refused and may be retried.
    """

    queue_operations: int = 100_000
    """Messages and puts waiting for Pulsar's acknowledgement, which bounds small ones too."""

    message_bytes: int = 5 * MIB
    """Largest message of the brokers, including some hundred bytes of metadata.

    Used if neither the brokers' configuration nor a trial shows it. The default of maxMessageSize.
    """

    reserve_offsets: int = 1_000_000
    """Offsets that are reserved in a partition's row at a time.

    One small row is written per this many records. At most this many offsets are skipped if the
    gateway is killed and Pulsar has trimmed the whole partition.
    """

    compacted_bytes: int = 32 * MIB
    """Cache of replacement entries for sequential readers: eight pieces of a compaction pass."""

    compacted_windows: int = 10_000
    """Replaced ranges of a partition, each a row of 100 bytes.

    With 4 MiB each this is 40 GiB after compaction.
    """

    compacted_garbage_bytes: int = 64 * MIB
    """Obsolete replacement entries of a partition that may stay in its side topic.

    If there are more than this plus the bytes in use, the side topic is rewritten.
    """

    native_compaction_bytes: int = 100 * MIB
    """New data after which Pulsar compacts a topic in the format `pulsar` with policy `compact`.

    Each compaction reads the whole topic.
    """

    lowered_seconds: float = 20.0
    """Longest time for which a topic's retention is lowered, which normally takes one second.

    A process that was suspended meanwhile gives up the trim.
    """

    settling_seconds: float = 60.0
    """Time after a topic's retention was restored until its protective subscription is removed.

    By then every broker has applied the policy (they take milliseconds), and a process that was
    suspended during a trim has given it up. No request waits for this.
    """

    threads: int = 16
    """Threads for blocking calls of the client library, such as reading. They mostly wait.

    After the loss of a node, another one opens 8 shards and some partitions at a time.
    """

    calls_waiting: int = 20_000
    """Calls that may be queued for those threads; more are refused."""

    readers: int = 64
    """Open readers kept for sequential consumers; the least recently used one is closed first."""

    read_timeout_seconds: float = 10.0
    """Time for reading a message that must exist, or the messages of one read.

    The threads are few, and clients end a fetch after 30 s.
    """

    foreign_messages: int = 100_000
    """Messages of other writers that are skipped at each end of a partition.

    The store's first and last message are not found behind more of them.
    """

    reader_queue_bytes: int = MIB
    """Prefetch of a reader, by the average size of messages read so far: one usual fetch."""

    reader_queue_messages: int = 8
    """Prefetch of a reader that has not read a message yet.

    With the largest messages, 5 MiB, this is 40 MiB.
    """

    index_marks: int = 4096
    """Entries of a log's offset index, about 150 bytes each.

    When it is full, every second entry is dropped.
    """

    table_burst_bytes: int = 4 * MIB
    """Rows of a state table that are stored in one step, and so the largest `put`.

    They are one message; the start fails if the brokers accept less.
    """

    table_queue_bytes: int = 64 * MIB
    """Rows of one state table waiting to be stored.

    Puts above this are refused and may be retried.
    """

    table_rows_at_once: int = 2000
    """Largest number of rows per step that the reactor's thread passes to the client library.

    A row takes 5 us. More rows are passed by a separate, slower thread.
    """

    table_reader_messages: int = 1000
    """Prefetch, in rows, while a table is loaded.

    Rows are small, and a broker counts each row of an entry.
    """

    table_compaction_bytes: int = 64 * MIB
    """New rows after which Pulsar compacts a table's topic, or the table's size if that is larger.

    A start reads at most this much beyond the table itself, and Pulsar rewrites no more bytes than
    were written.
    """

    table_threads: int = 16
    """Threads that wait for the acknowledgement of rows, shared by all tables.

    A table needs one at a time. While a broker does not answer, the tables on it keep theirs.
    """

    table_upkeep_seconds: float = 30.0
    """Interval at which the store checks whether a table's topic needs compaction.

    At 10 MB/s of rows this is five times `table_compaction_bytes`.
    """

    lock_beat_seconds: float = 5.0
    """Interval of the lock holder's heartbeat, and the time in which it notices a takeover.

    Writes 4 MB a day.
    """

    lock_contest_seconds: float = 90.0
    """How long a refused holder tries to reacquire the lock while no other holder announces itself.

    Longer than the 30 to 60 s for which a broker keeps a dead connection
    (keepAliveIntervalSeconds).
    """

    mirror_cursors: bool = False
    """Whether committed offsets of Kafka groups move Pulsar subscriptions of the same name.

    Off by default: an unused subscription keeps Pulsar from deleting unacknowledged messages and
    can stop producers by a backlog quota, which Kafka groups never do.
    """

    mirror_seconds: float = 10.0
    """Longest delay of those subscriptions.

    Operators and alarms check backlogs about once a minute.
    """

    mirror_moves_per_second: int = 20
    """Calls per second that move those subscriptions.

    Each takes a broker about 10 ms, so this is at most a fifth of one core of one broker.
    """

    mirror_waiting: int = 10_000
    """Group partitions waiting to be mirrored, about 300 bytes each.

    At twenty a second these take eight minutes.
    """
