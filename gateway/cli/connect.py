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
from typing import Any, BinaryIO

import click
from kafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from gateway.cli import passwords
from gateway.cli.kafka_client import AdminClient

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


SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to reach a server. TLS is used if `uses_tls` is set.

    Without `ca_file` the authorities of this machine are trusted. `key_file` may be None if the
    certificate's file has the key as well.
    """

    bootstrap: tuple[tuple[str, int], ...]
    timeout: float
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    uses_tls: bool = False
    ca_file: Path | None = None
    sasl_mechanism: str = "PLAIN"
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __str__(self) -> str:
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.bootstrap
        )


_FILE = click.Path(path_type=Path)


def _connect_options(*, is_optional: bool) -> list[Callable[[Any], Any]]:
    # A command that can do without a server has another use for --password-file.
    password_flags = ["--user-password-file"] if is_optional else ["--password-file"]
    return [
        click.option(
            "--bootstrap-server",
            "bootstrap",
            default=None if is_optional else "127.0.0.1:9092",
            show_default=not is_optional,
            metavar="HOST:PORT[,...]",
            help="Servers of the cluster; one is enough.",
        ),
        click.option("--user", metavar="NAME", help="Authenticate with SASL as this user."),
        click.option(
            *password_flags,
            "user_password_file",
            type=click.File("rb"),
            metavar="FILE",
            help="File whose first line is the password of --user; - reads stdin. Default: prompt.",
        ),
        click.option(
            "--sasl-mechanism",
            type=click.Choice(SASL_MECHANISMS),
            help="Mechanism to authenticate with.  [default: PLAIN]",
        ),
        click.option(
            "--tls", is_flag=True, help="Use TLS with the certificate authorities of this machine."
        ),
        click.option(
            "--tls-ca",
            type=_FILE,
            metavar="FILE",
            help="Use TLS with the certificate authorities in this PEM file.",
        ),
        click.option(
            "--tls-certificate",
            type=_FILE,
            metavar="FILE",
            help="Use TLS with the client certificate in this PEM file.",
        ),
        click.option(
            "--tls-key",
            type=_FILE,
            metavar="FILE",
            help="PEM file with the certificate's key.  [default: the certificate's file]",
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


def connect_options_of(
    bootstrap: str,
    user: str | None,
    password_file: BinaryIO | None,
    tls: bool,
    tls_ca: Path | None,
    timeout: float,
    *,
    sasl_mechanism: str | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
) -> ConnectOptions:
    """Build ConnectOptions from command-line options. Raises click's errors."""
    if password_file is not None and user is None:
        raise click.UsageError("a password file needs --user")
    if sasl_mechanism is not None and user is None:
        raise click.UsageError("--sasl-mechanism needs --user")
    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--tls-key needs --tls-certificate")
    return ConnectOptions(
        tuple(_address(text) for text in bootstrap.split(",")),
        timeout,
        user,
        None if user is None else passwords.read(password_file, owner=user),
        tls or tls_ca is not None or tls_certificate is not None,
        tls_ca,
        sasl_mechanism or "PLAIN",
        tls_certificate,
        tls_key,
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

    @wraps(act)
    def run(server: ConnectOptions, as_json: bool, **arguments: Any) -> None:
        with connected(server) as client:
            act(client, as_json, **arguments)

    return _with_server(run, is_optional=False)


def with_optional_server(act: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: pass it ConnectOptions, None without --bootstrap-server, and `as_json`.

    The password of --user is then read from --user-password-file.
    """
    return _with_server(act, is_optional=True)


def _with_server(act: Callable[..., None], *, is_optional: bool) -> Callable[..., None]:
    @wraps(act)
    def run(
        bootstrap: str | None,
        user: str | None,
        user_password_file: BinaryIO | None,
        sasl_mechanism: str | None,
        tls: bool,
        tls_ca: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        timeout: float,
        as_json: bool,
        **arguments: Any,
    ) -> None:
        if bootstrap is None:
            if user or user_password_file or sasl_mechanism or tls or tls_ca or tls_certificate:
                raise click.UsageError("options of a connection need --bootstrap-server")
            act(None, as_json, **arguments)
            return
        server = connect_options_of(
            bootstrap,
            user,
            user_password_file,
            tls,
            tls_ca,
            timeout,
            sasl_mechanism=sasl_mechanism,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
        )
        act(server, as_json, **arguments)

    decorated: Callable[..., None] = run
    for option in reversed(_connect_options(is_optional=is_optional)):
        decorated = option(decorated)
    return decorated


def error_text(error: KafkaError) -> str:
    """Return the message of an error without the class names and numbers added by the library."""
    text = _PREFIXES.sub("", str(error))
    if isinstance(error, NodeNotReadyError) and text.isdigit():
        return (
            f"cannot connect to node {text} at its advertised address, which `kopgate cluster "
            "describe` shows"
        )
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
            sasl_mechanism=server.sasl_mechanism if server.user else None,
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
        context = ssl.create_default_context(cafile=server.ca_file)
    except ssl.SSLError:
        raise click.ClickException(f"{server.ca_file}: the file has no PEM certificates") from None
    except OSError as error:
        raise click.ClickException(f"{server.ca_file}: {error.strerror}") from None
    if server.certificate_file is not None:
        _load_certificate(context, server.certificate_file, server.key_file)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    files = str(certificate) if key is None else f"{certificate} and {key}"

    def refuse_passphrase() -> str:
        raise click.ClickException(f"{files}: a key with a passphrase is not supported")

    try:
        context.load_cert_chain(certificate, key, refuse_passphrase)
    except ssl.SSLError:
        raise click.ClickException(
            f"{files}: not a PEM certificate with its key (--tls-certificate, --tls-key)"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{files}: {error.strerror}") from None


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
    if "CERTIFICATE_REQUIRED" in reason:
        return "it requires a client certificate (--tls-certificate, --tls-key)"
    if "Handshake failed" in reason:
        return f"TLS handshake failed; check that this port uses TLS ({reason})"
    if "Invalid frame length" in reason:
        return "the reply is not Kafka protocol; if the port uses TLS, add --tls or --tls-ca"
    if "UnsupportedSaslMechanism" in reason:
        return f"it does not offer {server.sasl_mechanism}; choose another --sasl-mechanism"
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
