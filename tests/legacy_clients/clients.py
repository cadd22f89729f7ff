"""Real Kafka clients: the table of clients, their capabilities, and how to run them.

`clients.toml` is the table. `drivers/README.md` describes the command line of the drivers, the
programs between a test and a library. A driver runs in a separate process with a deadline and is
always reaped; a failure includes the tail of its stderr.
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote, unquote_to_bytes

import msgspec

from tests.legacy_clients.install import install
from tests.used_peers import uses

# Limit of one run of a driver, in seconds; it takes a few on an idle machine.
TIMEOUT_SECONDS = 180.0
# Allowed beyond the driver's own timeout: a JVM or an old interpreter starts slowly on a busy
# machine.
GRACE_SECONDS = 120.0
TAIL_CHARACTERS = 3000
# Longer than a busy machine stalls: old clients send heartbeats only while they poll.
SESSION_MS = 30_000
# The default of most libraries is 500 ms, which a test would wait at the end of each partition.
FETCH_WAIT_MS = 100


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table; `clients.toml` explains the fields."""

    name: str
    library: str
    version: str
    driver: str
    install: tuple[str, ...]
    writes: int
    codecs: tuple[str, ...]
    tls: bool
    sasl: tuple[str, ...] = ()
    python: str = ""
    sources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    produces: bool = True
    consumes: bool = True
    groups: Literal["member", "offsets", "none"] = "member"
    reads: int = -1
    decodes: tuple[str, ...] = ()
    sets_timestamps: bool = True
    cannot_send: tuple[str, ...] = ()
    cannot_read: tuple[str, ...] = ()
    gathers_headers: bool = False
    assignors: tuple[str, ...] = ()
    subscribes: int = 0
    reads_subscriptions: int = 3
    unlike_kafka: str = ""
    needs: str = ""
    tells_offsets: bool = True
    tells_refusal: bool = True
    retries_refusal: bool = False
    notes: str = ""

    def __str__(self) -> str:
        return self.name


@cache
def table(file: Path = Path(__file__).parent / "clients.toml") -> dict[str, Client]:
    """All clients by name, in the table's order.

    Raises msgspec.ValidationError for a wrong field name or type.
    """
    rows = msgspec.convert(tomllib.loads(file.read_text())["client"], list[Client])
    named = {row.name: row for row in rows}
    if len(named) != len(rows):
        raise ValueError(f"{file.name}: two rows have the same name")
    return named


def ends_of_libraries(clients: Iterable[Client]) -> frozenset[str]:
    """The names of the oldest and the newest client of each library, for short forms of tests."""
    names: dict[str, list[str]] = {}
    for row in clients:
        names.setdefault(row.library, []).append(row.name)
    return frozenset(name for found in names.values() for name in (found[0], found[-1]))


@dataclass(frozen=True, slots=True)
class Record:
    """A record as sent or received by a client.

    `timestamp` is in ms since the epoch; `offset` is set once it is stored.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The producer's response; the offset is None without acknowledgements (acks 0)."""

    topic: str
    partition: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """`count` records of a partition from offset `start`."""

    topic: str
    partition: int
    start: int
    count: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.start}:{self.count}"


@dataclass(frozen=True, slots=True)
class Security:
    """Name and password of a SASL mechanism, and PEM files for TLS.

    `authority` is the one that the client trusts, `certificate` its own with the key.
    `properties` are the client's own settings, for Java only.
    """

    user: tuple[str, str] | None = None
    authority: Path | None = None
    mechanism: str = "PLAIN"
    certificate: tuple[Path, Path] | None = None
    properties: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        words = ["--sasl", self.mechanism, "--user", ":".join(self.user)] if self.user else []
        words += ["--tls-ca", str(self.authority)] if self.authority else []
        if self.certificate:
            certificate, key = map(str, self.certificate)
            words += ["--tls-certificate", certificate, "--tls-key", key]
        return words + [word for one in self.properties for word in ("--property", one)]


OPEN = Security()


class DriverFailed(Exception):
    """A driver failed or timed out. `output` has the lines that it had printed."""

    def __init__(self, client: Client, verb: str, why: str, output: str, errors: str) -> None:
        super().__init__(f"{client} {verb}: {why}\n{errors[-TAIL_CHARACTERS:]}")
        self.output = output
        self.errors = errors


def produce(
    client: Client,
    bootstrap: str,
    records: Iterable[Record],
    *,
    codec: str = "none",
    acks: str = "all",
    is_idempotent: bool = False,
    linger_ms: int = 5,
    batch_bytes: int = 16384,
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
) -> list[Acknowledged]:
    """Send the records with the real client; return one response per record, in order.

    Raises DriverFailed unless all are acknowledged.
    """
    words = [
        "--codec",
        codec,
        "--acks",
        acks,
        "--linger",
        str(linger_ms),
        "--batch-bytes",
        str(batch_bytes),
    ]
    words += ["--idempotent"] if is_idempotent else []
    given = "".join(map(line_of, records))
    printed = run(
        client,
        "produce",
        bootstrap,
        words,
        given,
        client_id=client.name,
        timeout=timeout,
        security=security,
    )
    answers = [acknowledged_from(line) for line in printed.splitlines()]
    if len(answers) != given.count("\n"):
        raise DriverFailed(
            client,
            "produce",
            f"{len(answers)} answers for {given.count(chr(10))} records",
            printed,
            "",
        )
    return answers


def consume(
    client: Client,
    bootstrap: str,
    spans: Sequence[Span],
    *,
    fetch_bytes: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
) -> list[Record]:
    """Read exactly these spans from manually assigned partitions; ordered within a partition.

    Raises DriverFailed if records are missing.
    """
    words = [
        "--fetch-wait",
        str(FETCH_WAIT_MS),
        *([] if fetch_bytes is None else ["--fetch-bytes", str(fetch_bytes)]),
        *map(str, spans),
    ]
    printed = run(
        client,
        "consume",
        bootstrap,
        words,
        client_id=client.name,
        timeout=timeout,
        security=security,
    )
    return [record_from(line) for line in printed.splitlines()]


def consume_in_group(
    client: Client,
    bootstrap: str,
    group: str,
    topic: str,
    count: int,
    *arguments: str,
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
) -> list[Record]:
    """Join a group, read `count` records from the committed offset, commit and leave.

    Starts at the beginning without a commit. A client whose `groups` is "offsets" takes all
    partitions without joining. Ordered within a partition. Raises DriverFailed if records are
    missing.
    """
    words = [
        "--group",
        group,
        "--session",
        str(SESSION_MS),
        "--fetch-wait",
        str(FETCH_WAIT_MS),
        *arguments,
        f"{topic}:{count}",
    ]
    printed = run(
        client, "group", bootstrap, words, client_id=client.name, timeout=timeout, security=security
    )
    return [record_from(line) for line in printed.splitlines()]


@contextmanager
def producing(
    client: Client,
    bootstrap: str,
    *arguments: str,
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
    errors: IO[str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Run a producer: write lines to `stdin`, read acknowledgements from `stdout`.

    stderr goes to the file `errors`, or to a temporary one, so that nothing blocks on it. The
    process is killed and reaped at the end.
    """
    with nullcontext(errors) if errors else tempfile.TemporaryFile("w+") as written:
        process = subprocess.Popen(
            _argv(client, "produce", bootstrap, arguments, client.name, timeout, security),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def run(
    client: Client,
    verb: str,
    bootstrap: str,
    words: Sequence[str],
    given: str = "",
    *,
    client_id: str = "",
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
) -> str:
    """Run the driver and return its output.

    An empty client id leaves the library's default. Raises DriverFailed for a non-zero exit code or
    a timeout.
    """
    __tracebackhide__ = True
    argv = _argv(client, verb, bootstrap, words, client_id, timeout, security)
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            printed, errors = process.communicate(given, timeout=timeout + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, errors = process.communicate()
            raise DriverFailed(
                client,
                verb,
                f"killed {timeout + GRACE_SECONDS:.0f} s after its start",
                printed,
                errors,
            ) from None
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise DriverFailed(client, verb, f"exit code {process.returncode}", printed, errors)
    return printed


def line_of(record: Record) -> str:
    """A record in the input format of a driver's `produce`."""
    timestamp = "-" if record.timestamp is None else str(record.timestamp)
    headers = (
        ",".join(f"{quote(name, safe='')}={_text(value)}" for name, value in record.headers) or "-"
    )
    return (
        "\t".join(
            (
                record.topic,
                str(record.partition),
                timestamp,
                _text(record.key),
                _text(record.value),
                headers,
            )
        )
        + "\n"
    )


def acknowledged_from(line: str) -> Acknowledged:
    """Parse an output line of a driver's `produce`."""
    topic, partition, offset = line.split("\t")
    return Acknowledged(topic, int(partition), int(offset) if int(offset) >= 0 else None)


def record_from(line: str) -> Record:
    """Parse an output line of a driver's `consume`."""
    topic, partition, offset, timestamp, key, value, headers = line.split("\t")
    pairs = [] if headers == "-" else [one.partition("=") for one in headers.split(",")]
    return Record(
        topic=topic,
        partition=int(partition),
        key=_bytes(key),
        value=_bytes(value),
        timestamp=None if timestamp == "-" else int(timestamp),
        headers=tuple((unquote_to_bytes(name).decode(), _bytes(text)) for name, _, text in pairs),
        offset=int(offset),
    )


def _text(raw: bytes | None) -> str:
    return "-" if raw is None else base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else base64.b64decode(text, validate=True)


def _argv(
    client: Client,
    verb: str,
    bootstrap: str,
    words: Sequence[str],
    client_id: str,
    timeout: float,
    security: Security,
) -> list[str]:
    named = [
        "--bootstrap",
        bootstrap,
        *(["--client-id", client_id] if client_id else []),
        "--timeout",
        str(timeout),
    ]
    uses(client.library, client.version)
    return [*install(client), verb, *named, *client.options, *security.arguments(), *words]
