"""Real Kafka clients as tests use them: which there are, what each can do, and one way to run them all.

`clients.toml` is the table, `drivers/README.md` the command line of the programs that stand between a test and a library. A driver is a
process of its own with a deadline; it is always reaped, and a failure carries the last words of its stderr.
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

import msgspec

from tests.legacy_clients.install import install

# Limit of one run of a driver, which takes a few seconds on an idle machine.
TIMEOUT_SECONDS = 180.0
# What a driver may take beyond its own timeout: a JVM or an old interpreter on a busy machine needs seconds to start.
GRACE_SECONDS = 120.0
TAIL_CHARACTERS = 3000
# Longer than a busy machine stalls: old clients send heartbeats only while they poll.
SESSION_MS = 30_000
# What most libraries let a fetch wait is half a second, which a test would pay at the end of each partition.
FETCH_WAIT_MS = 100


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table; its fields are explained at the head of `clients.toml`."""

    name: str
    library: str
    version: str
    driver: str
    install: tuple[str, ...]
    writes: int
    codecs: tuple[str, ...]
    sasl_plain: bool
    tls: bool
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
    notes: str = ""

    def __str__(self) -> str:
        return self.name


@cache
def table(file: Path = Path(__file__).parent / "clients.toml") -> dict[str, Client]:
    """All clients by name, in the table's order; a misspelt or ill-typed field raises msgspec.ValidationError."""
    rows = msgspec.convert(tomllib.loads(file.read_text())["client"], list[Client])
    named = {row.name: row for row in rows}
    if len(named) != len(rows):
        raise ValueError(f"{file.name}: two rows of one name")
    return named


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a client gives or gets it; `timestamp` in ms since the epoch, `offset` only once it is stored."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the producer was told; the offset is None when it was told nothing (acks 0)."""

    topic: str
    partition: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """`count` records of a partition from offset `start` on."""

    topic: str
    partition: int
    start: int
    count: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.start}:{self.count}"


@dataclass(frozen=True, slots=True)
class Security:
    """How to reach a secured listener: user and password for SASL/PLAIN, the PEM file of the authority for TLS."""

    user: tuple[str, str] | None = None
    authority: Path | None = None

    def arguments(self) -> list[str]:
        words = ["--sasl-plain", ":".join(self.user)] if self.user else []
        return words + (["--tls-ca", str(self.authority)] if self.authority else [])


OPEN = Security()


class DriverFailed(Exception):
    """A driver ended with an error or not in time. `output` is what it had printed: acknowledged or consumed lines."""

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
    """Sends the records with the real client; one answer a record, in their order. Raises DriverFailed unless all are acknowledged."""
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
    """Reads exactly the spans, partitions assigned by hand; ordered within a partition. Raises DriverFailed when some do not come."""
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
    *,
    timeout: float = TIMEOUT_SECONDS,
    security: Security = OPEN,
) -> list[Record]:
    """One member's life: it joins, reads `count` records from the commit or the beginning on, commits what follows them, and leaves.

    Whose `groups` is "offsets" takes all partitions without joining. Ordered within a partition. Raises DriverFailed when some do not come.
    """
    words = [
        "--group",
        group,
        "--session",
        str(SESSION_MS),
        "--fetch-wait",
        str(FETCH_WAIT_MS),
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
) -> Iterator[subprocess.Popen[str]]:
    """A producer under the caller's hand: lines go into `stdin`, acknowledgements are read from `stdout` while it runs.

    stderr goes to a temporary file, so that nothing blocks on it; the process is killed and reaped at the end.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            _argv(client, "produce", bootstrap, arguments, client.name, timeout, security),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
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
    """What the driver prints. An empty client id is the library's own. Raises DriverFailed unless its exit code is 0, and in time."""
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
    """A record as a driver's `produce` reads it."""
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
    """What a driver's `produce` prints."""
    topic, partition, offset = line.split("\t")
    return Acknowledged(topic, int(partition), int(offset) if int(offset) >= 0 else None)


def record_from(line: str) -> Record:
    """What a driver's `consume` prints."""
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
    return [*install(client), verb, *named, *client.options, *security.arguments(), *words]
