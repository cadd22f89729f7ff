"""Where the Pulsar cluster is and the limits of the store on it, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

MIB = 1 << 20

EntryFormat = Literal["mixed_kafka", "kafka", "pulsar"]


@dataclass(frozen=True, slots=True)
class PulsarSettings:
    """Sizes are in bytes. The defaults of names are KoP's."""

    service_url: str
    """`pulsar://HOST:PORT`, or `pulsar+ssl://`; several brokers with commas between."""

    admin_url: str
    """`http://HOST:PORT` or `https://`."""

    token_file: Path | None = None
    """A JWT, read again when it changes; sent to both addresses."""

    tls_trust_file: Path | None = None
    """PEM: the authorities that sign the brokers' certificates; None for the system's."""

    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    """PEM: what this client shows of itself, where brokers ask for it."""

    tenant: str = "public"
    namespace: str = "default"
    """Where a topic lives whose name has no slash."""

    metadata_tenant: str = "public"
    metadata_namespace: str = "__kafka"
    """Where the state tables live."""

    allowed_namespaces: tuple[str, ...] = field(default=())
    """`tenant/namespace` of the others whose topics are served, under their full names."""

    entry_format: EntryFormat = "mixed_kafka"
    """Of topics that are made without one."""

    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    cleanup_policy: str = "delete"
    """Of topics whose configs do not say; the gateway's own settings. -1 is no limit."""

    message_max_bytes: int = MIB + 12
    """The largest batch that the gateway takes of a producer where the topic does not say; a message of Pulsar must have room for it."""

    node: str = "kopgate"
    """Who this is, for whoever finds the store taken."""

    takeover: bool = False
    """Take the store away from the process that has it."""

    setup: bool = False
    """Make the tenants, namespaces and policies that are missing."""

    checks_at_start: bool = True
    """Look whether the cluster has all that the gateway needs, before anything depends on it: half a second."""

    send_timeout_seconds: float = 30.0
    """After so long without an acknowledgement what became of a message is unknown, and its log begins anew. The client library's default."""

    operation_timeout_seconds: float = 30.0
    """For a producer or reader to be made, brokers to be found. The client library's default."""

    connection_timeout_seconds: float = 10.0
    """For a connection to a broker. The client library's default."""

    close_timeout_seconds: float = 10.0
    """For each step of closing: what waits for its acknowledgement, and the client library, which may not come back where no broker answers."""

    admin_timeout_seconds: float = 30.0
    """For one call of the admin API."""

    admin_connections: int = 8
    """Open at a time to the admin API: a start asks about each topic, and a broker must not be flooded."""

    admin_answer_bytes: int = 64 * MIB
    """Largest answer of the admin API that is read: the names of half a million topics."""

    refresh_seconds: float = 30.0
    """How old the list of topics may be: those that somebody else made or deleted are seen after so long."""

    refresh_topics: int = 1000
    """Topics that were known before and are looked at again in each of these rounds, one call each; new and deleted ones show without that."""

    tail_bytes: int = 64 * MIB
    """Messages appended last, kept in memory for the consumers at the tail, over all logs."""

    arriving_bytes: int = 16 * MIB
    """Of each topic in the format `pulsar`, entries on their way from the client library to the gateway; when there are more, the library waits."""

    queue_bytes: int = 256 * MIB
    """Payload that may wait for Pulsar's acknowledgement; more is refused, to be tried again."""

    queue_operations: int = 100_000
    """Messages and puts that may wait for it, so that small ones too are bounded."""

    message_bytes: int = 5 * MIB
    """The largest message that the brokers take, with some hundred bytes that are not payload, where neither their configuration (maxMessageSize, of
    which this is the default) nor trying tells."""

    reserve_offsets: int = 1_000_000
    """Offsets of a partition that are noted as given out, before they are: one small row per so many records, and no more are left out where Pulsar
    has trimmed everything and the gateway was killed."""

    compacted_bytes: int = 32 * MIB
    """Of what compaction wrote, kept in memory for those who read on: eight of the pieces in which it works."""

    compacted_windows: int = 10_000
    """Pieces of a partition that compaction has replaced, each a row of 100 bytes: at 4 MiB each 40 GiB of what it left over."""

    compacted_garbage_bytes: int = 64 * MIB
    """What compaction wrote and replaced again may take so much space, and as much as what is left; then the rest is written anew."""

    native_compaction_bytes: int = 100 * MIB
    """Pulsar compacts a topic in the format `pulsar` whose policy is `compact` when so much came since the last time: each time it reads all that the topic has."""

    lowered_seconds: float = 20.0
    """A topic's retention is lowered for no longer, which takes one second. A process that was stopped in the middle of it finds its time over."""

    settling_seconds: float = 60.0
    """So long after a retention was raised again every broker is taken to know of it (they learn of a policy in milliseconds), and a process that had
    lowered it and was stopped has given it up. Nothing waits for this."""

    threads: int = 8
    """For calls of the client library that block: making producers and readers, reading. They wait much and compute little."""

    calls_waiting: int = 20_000
    """Calls that may wait for those threads; more are refused."""

    readers: int = 64
    """Open readers that are kept for consumers which read on; the one longest unused goes first."""

    read_timeout_seconds: float = 10.0
    """For a message that must be there to come, or for what a read asks for: the threads are few, and a client's own fetch ends after 30 s."""

    foreign_messages: int = 100_000
    """Messages of others at either end of a partition that are looked over for the store's first and last one; behind more these are not found."""

    reader_queue_bytes: int = MIB
    """What a reader fetches ahead, by the size of the messages that it met: a fetch of the usual size, so that the next one finds it here."""

    reader_queue_messages: int = 8
    """What a reader fetches ahead whose messages' size is not known. Of the largest, 5 MiB, that is 40 MiB."""

    index_marks: int = 4096
    """Places of a log that are remembered with their offsets, some 150 bytes each; when there are more, every second one is forgotten."""

    table_burst_bytes: int = 4 * MIB
    """Rows of a state table stored in one step, and so the largest `put`. They are one message: where brokers take less, the start says so."""

    table_queue_bytes: int = 64 * MIB
    """Rows of one state table that may wait to be stored; more is refused, to be tried again."""

    table_rows_at_once: int = 2000
    """Rows of one step that are handed to the client library by the reactor's thread itself, at 5 us each; more are handed over by another, slower one."""

    table_reader_messages: int = 1000
    """Rows that a reader fetches ahead while a table is loaded, which is many small ones; a broker counts each row of an entry."""

    table_compaction_bytes: int = 64 * MIB
    """Pulsar compacts a table's topic when so much was written since the last time, or as much as the table holds if that is more: a start reads
    no more than this beyond what it needs, and no row is written a second time by Pulsar before a new one was."""

    table_upkeep_seconds: float = 30.0
    """How often it is looked whether a table's topic is to be compacted: at 10 MB/s of rows that is five times the bytes above."""

    lock_beat_seconds: float = 5.0
    """How often the holder of the store says that it has it. So long does it take a holder to learn that the store was taken away; 4 MB a day."""

    lock_contest_seconds: float = 90.0
    """How long a holder whom the broker refuses, and who sees no other one, tries to have the lock again: longer than a broker keeps a connection
    that is dead, 30 to 60 s (keepAliveIntervalSeconds)."""

    mirror_cursors: bool = False
    """Whether committed offsets of Kafka groups move subscriptions of the same name. Off: a subscription that nobody moves any more keeps Pulsar from
    deleting what it has not acknowledged, and a backlog quota that it exceeds stops producers; Kafka's groups never did either."""

    mirror_seconds: float = 10.0
    """How far those cursors may be behind: figures of backlog are looked at by people and by alarms of a minute."""

    mirror_moves_per_second: int = 20
    """Each is a call of some 10 ms for a broker, which writes the cursor down: a fifth of one core of one broker at the most."""

    mirror_waiting: int = 10_000
    """Groups' partitions that may wait to be shown, some 300 bytes each; at twenty a second they would take eight minutes."""
