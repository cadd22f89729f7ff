"""Connections of the admin commands to any Kafka server.

Failures are reported as one line, without a traceback.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
from kafka.errors import KafkaConnectionError, KafkaError

from gateway.cli import passwords
from gateway.cli.kafka_client import AdminClient

Command = TypeVar("Command", bound=Callable[..., Any])

_FAILED_ATTEMPT = re.compile(
    r"Bootstrap \w+ to \S+ failed: (?P<reason>.*?)(?: \(backoff.*)?\Z", re.DOTALL
)

_PREFIXES = re.compile(r"\A(\[Error \d+\] )?([A-Z]\w*[A-Z]\w*(: |\Z))*")
"""Class names and error numbers in front of a message."""
_CONNECTION_CLOSED = re.compile("socket disconnected|Connection reset")
_TIMEOUT = "timed out"

#: Seconds of retries after the server first refused a connection. A server that requires TLS or
#: authentication refuses every attempt, some without a reason at first.
RETRY_REFUSED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to reach a server. TLS is used if `uses_tls` is set; `ca_file` is optional."""

    bootstrap: tuple[tuple[str, int], ...]
    timeout: float
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    uses_tls: bool = False
    ca_file: Path | None = None

    def __str__(self) -> str:
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap
        )


def with_connect_options(command: Command) -> Command:
    """Add the options from which `connect_options_of` builds ConnectOptions."""
    for option in reversed(
        [
            click.option(
                "--bootstrap-server",
                "bootstrap",
                default="127.0.0.1:9092",
                show_default=True,
                metavar="HOST:PORT[,...]",
                help="Servers of the cluster; one is enough.",
            ),
            click.option("--user", metavar="NAME", help="Authenticate with SASL/PLAIN."),
            click.option(
                "--password-file",
                type=click.File("rb"),
                metavar="FILE",
                help="File whose first line is the password; - reads stdin. Default: prompt.",
            ),
            click.option(
                "--tls",
                is_flag=True,
                help="Use TLS with the certificate authorities of this machine.",
            ),
            click.option(
                "--tls-ca",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Use TLS with the certificate authorities in this PEM file.",
            ),
            click.option(
                "--timeout",
                type=click.FloatRange(0.1, 600),
                default=10,
                show_default=True,
                metavar="SECONDS",
                help="Timeout for connecting and for each request.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        ]
    ):
        command = option(command)
    return command


def connect_options_of(
    bootstrap: str,
    user: str | None,
    password_file: BinaryIO | None,
    tls: bool,
    tls_ca: Path | None,
    timeout: float,
) -> ConnectOptions:
    """Build ConnectOptions from command-line options. Raises click's errors."""
    if password_file is not None and user is None:
        raise click.UsageError("--password-file needs --user")
    password = None if user is None else passwords.read(password_file)
    return ConnectOptions(
        tuple(_address(text) for text in bootstrap.split(",")),
        timeout,
        user,
        password,
        tls or tls_ca is not None,
        tls_ca,
    )


@contextmanager
def connected(server: ConnectOptions) -> Iterator[AdminClient]:
    """Yield a client of the server. Errors become ClickExceptions with the reason."""
    _check_reachable(server)
    with _capture_failures() as reasons:
        client = _connect(server, reasons)
        try:
            yield client
        except KafkaError as error:
            raise click.ClickException(f"{server}: {error_text(error)}") from None
        finally:
            client.close()


def with_client(act: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: pass it a client for its connection options, and `as_json`."""

    @with_connect_options
    @wraps(act)
    def run(
        bootstrap: str,
        user: str | None,
        password_file: BinaryIO | None,
        tls: bool,
        tls_ca: Path | None,
        timeout: float,
        as_json: bool,
        **arguments: Any,
    ) -> None:
        with connected(
            connect_options_of(bootstrap, user, password_file, tls, tls_ca, timeout)
        ) as client:
            act(client, as_json, **arguments)

    return run


def error_text(error: KafkaError) -> str:
    """Return the message of an error without the class names and numbers added by the library."""
    text = _PREFIXES.sub("", str(error))
    return text or getattr(type(error), "description", "") or type(error).__name__


def _connect(server: ConnectOptions, reasons: FailureReasons) -> AdminClient:
    try:
        return AdminClient(
            bootstrap_servers=[
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                for host, port in server.bootstrap
            ],
            bootstrap_timeout_ms=int(server.timeout * 1000),
            request_timeout_ms=int(server.timeout * 1000),
            client_id="kopgate",
            security_protocol=("SASL_" if server.user else "")
            + ("SSL" if server.uses_tls else "PLAINTEXT"),
            ssl_context=_ssl_context(server) if server.uses_tls else None,
            sasl_mechanism="PLAIN" if server.user else None,
            sasl_plain_username=server.user,
            sasl_plain_password=server.password,
        )
    except KafkaError as error:
        raise click.ClickException(
            f"{server}: {_explain(server, reasons.last or error_text(error))}"
        ) from None


def _check_reachable(server: ConnectOptions) -> None:
    """Raise ClickException if no server accepts a TCP connection.

    The client itself would retry until its timeout without giving a reason.
    """
    problem = None
    for address in server.bootstrap:
        try:
            socket.create_connection(address, timeout=server.timeout).close()
        except OSError as error:
            problem = problem or error
        else:
            return
    raise click.ClickException(
        f"{server}: cannot connect: {(problem and problem.strerror) or problem}"
    )


def _ssl_context(server: ConnectOptions) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=server.ca_file)
    except ssl.SSLError:
        raise click.ClickException(f"{server.ca_file}: the file has no PEM certificates") from None
    except OSError as error:
        raise click.ClickException(f"{server.ca_file}: {error.strerror}") from None


class FailureReasons(logging.Handler):
    """Keeps the reason of the client's last failed attempt, which its exception lacks.

    Ends the attempts RETRY_REFUSED_SECONDS after the server first refused one; the client itself
    goes on until its timeout. Attempts that time out are not counted, because the server may be
    slow. The library reports an attempt only in its log, so `emit` raises, in the client's own
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.last: str | None = None
        self._clock = clock
        self._first_refused: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        match = _FAILED_ATTEMPT.match(record.getMessage())
        if match:
            reason = _PREFIXES.sub("", match["reason"]) or match["reason"]
            # A closed connection or a timeout may precede or follow the attempt with the real
            # reason.
            if self.last is None or (_is_unspecific(self.last) and not _is_unspecific(reason)):
                self.last = reason
            if _TIMEOUT not in reason:
                now = self._clock()
                if self._first_refused is None:
                    self._first_refused = now
                if now - self._first_refused >= RETRY_REFUSED_SECONDS:
                    raise KafkaConnectionError(reason)


@contextmanager
def _capture_failures() -> Iterator[FailureReasons]:
    """Capture the library's log, from which only the reason of a failure is shown."""
    log, reasons = logging.getLogger("kafka"), FailureReasons()
    before, log.propagate = log.propagate, False
    log.addHandler(reasons)
    try:
        yield reasons
    finally:
        log.removeHandler(reasons)
        log.propagate = before


def _is_unspecific(reason: str) -> bool:
    return bool(_CONNECTION_CLOSED.search(reason)) or _TIMEOUT in reason


def _explain(server: ConnectOptions, reason: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"its certificate is not trusted; pass its CA with --tls-ca ({reason})"
    if "Handshake failed" in reason:
        return f"TLS handshake failed; check that this port uses TLS ({reason})"
    if "Invalid frame length" in reason:
        return "the reply is not Kafka protocol; if the port uses TLS, add --tls or --tls-ca"
    if "IllegalSaslState" in reason:
        return "this port does not use authentication; leave out --user"
    if _CONNECTION_CLOSED.search(reason) and server.user:
        return "connection closed during authentication; check user and password"
    if _CONNECTION_CLOSED.search(reason):
        return "connection closed; the server may require authentication (--user) or " + (
            "no TLS" if server.uses_tls else "TLS (--tls, --tls-ca)"
        )
    return reason


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise click.BadParameter(f"{text!r} is not HOST:PORT", param_hint="--bootstrap-server")
    return host.removeprefix("[").removesuffix("]"), int(port)
