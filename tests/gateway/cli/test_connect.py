from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time

import click
import pytest
from click.testing import CliRunner
from kafka.errors import (
    KafkaConnectionError,
    NodeNotReadyError,
    SaslAuthenticationFailedError,
    UnknownTopicOrPartitionError,
)
from twisted.internet import task

from gateway.cli.connect import (
    RETRY_REFUSED_SECONDS,
    ConnectOptions,
    FailureReasons,
    connect_options_of,
    connected,
    error_text,
)
from gateway.cli.main import main
from tests.testkit.certificates import Authority

#: Seconds; far more than an error message takes on the slowest machine.
TIMEOUT = "600"
LONG_BEFORE = 60.0


def listing(*arguments):
    return CliRunner().invoke(main, ["topics", "list", *arguments])


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("a:1,b:2", ("a", 1))],
    ids=["host", "IPv6", "list"],
)
def test_bootstrap_servers_are_parsed(text, address):
    server = connect_options_of(text, None, None, False, None, 1.0)
    assert server.bootstrap[0] == address
    assert str(server) == text


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:x", "h:65536", "h:1,", "h:٣"])
def test_invalid_bootstrap_server_is_usage_error(text):
    result = listing("--bootstrap-server", text)
    assert result.exit_code == 2
    assert "is not HOST:PORT" in result.stderr


def test_password_file_without_user_is_usage_error(tmp_path):
    (tmp_path / "p").write_text("x")
    assert listing("--password-file", str(tmp_path / "p")).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--sasl-mechanism", "PLAIN"], "--sasl-mechanism needs --user"),
        (["--tls-key", "k"], "--tls-key needs --tls-certificate"),
        (["--user", "a", "--sasl-mechanism", "GSSAPI"], "'GSSAPI' is not one of"),
    ],
)
def test_contradicting_connect_options_are_usage_errors(arguments, complaint):
    result = listing(*arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_certificate_enables_tls_and_mechanism_is_plain_by_default(tmp_path):
    options = connect_options_of("h:1", None, None, False, None, 1.0, tls_certificate=tmp_path)
    assert (options.uses_tls, options.sasl_mechanism) == (True, "PLAIN")


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["missing"], "No such file"),
        (["ca.crt"], "not a PEM certificate with its key"),
        (["one.crt", "two.key"], "not a PEM certificate with its key"),
        (["one.crt", "secret.key"], "a key with a passphrase is not supported"),
    ],
    ids=["missing", "no key", "other key", "passphrase"],
)
def test_unusable_client_certificate_is_named(tmp_path, names, complaint):
    authority = Authority()
    authority.write(tmp_path)
    one = authority.sign("one")
    one.write(tmp_path, "one")
    one.write(tmp_path, "secret", b"passphrase")
    authority.sign("two").write(tmp_path, "two")
    paths = [str(tmp_path / name) for name in names]
    flags = ["--tls-certificate", "--tls-key"]
    with answering(b"") as server:
        result = listing(
            *("--bootstrap-server", f"127.0.0.1:{server.getsockname()[1]}"),
            *(word for pair in zip(flags, paths, strict=False) for word in pair),
        )
        server.shutdown(socket.SHUT_RDWR)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert paths[0] in result.stderr


def test_connect_options_hide_password():
    assert "s3cret" not in repr(ConnectOptions((("h", 1),), 1.0, "alice", "s3cret"))


def test_tls_ca_enables_tls(tmp_path):
    assert connect_options_of("h:1", None, None, False, tmp_path, 1.0).uses_tls


@pytest.fixture
def closed_port():
    """Return a port that is bound, so that no other process takes it, but does not listen."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_closed_port_fails_immediately(closed_port):
    result = listing("--bootstrap-server", f"127.0.0.1:{closed_port}", "--timeout", "60")
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: 127.0.0.1:{closed_port}: cannot connect: Connection refused\n",
    )


def answering(answer):
    """Yield a port whose connections receive `answer` to their first bytes and are then closed."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(answer)
                if answer:
                    connection.recv(1 << 16)  # wait until the client has read the answer

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return server


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("groups", "list")], ids=["topics", "groups"]
)
@pytest.mark.parametrize(
    ("answer", "arguments", "complaint"),
    [
        (b"", [], "connection closed; the server may require authentication (--user) or TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x50", [], "if the port uses TLS, add --tls or --tls-ca"),
        (b"", ["--tls"], "TLS handshake failed; check that this port uses TLS"),
    ],
    ids=["closed", "TLS alert", "no TLS"],
)
def test_non_kafka_server_fails_before_timeout(command, answer, arguments, complaint):
    with answering(answer) as server:
        began = time.monotonic()
        result = CliRunner().invoke(
            main,
            [
                *command,
                "--bootstrap-server",
                f"127.0.0.1:{server.getsockname()[1]}",
                "--timeout",
                TIMEOUT,
                *arguments,
            ],
        )
        server.shutdown(socket.SHUT_RDWR)
    assert time.monotonic() - began < LONG_BEFORE
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", [None, "x"], ids=["missing", "no PEM"])
def test_unreadable_ca_file_is_named(tmp_path, text):
    path = tmp_path / "ca.crt"
    if text:
        path.write_text(text)
    with answering(b"") as server:
        result = listing(
            "--bootstrap-server", f"127.0.0.1:{server.getsockname()[1]}", "--tls-ca", str(path)
        )
        server.shutdown(socket.SHUT_RDWR)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {path}: ")


def test_untrusted_certificate_is_reported(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority().sign().write(tmp_path, "server"))
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def serve():
            while True:
                try:
                    connection, _ = plain.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        result = listing(
            "--bootstrap-server",
            f"127.0.0.1:{plain.getsockname()[1]}",
            "--timeout",
            TIMEOUT,
            "--tls",
        )
        plain.shutdown(socket.SHUT_RDWR)
    assert result.exit_code == 1
    assert "pass its CA with --tls-ca" in result.stderr


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            SaslAuthenticationFailedError("SaslAuthenticationFailedError: Invalid user"),
            "Invalid user",
        ),
        (UnknownTopicOrPartitionError("no such topic"), "no such topic"),
        (UnknownTopicOrPartitionError(), UnknownTopicOrPartitionError.description),
    ],
    ids=["nested", "plain", "empty"],
)
def test_error_text_has_no_class_names_or_numbers(error, text):
    assert error_text(error) == text


def test_error_text_says_which_node_cannot_be_reached():
    assert error_text(NodeNotReadyError(5)).startswith("cannot connect to node 5")


def test_failed_connection_raises_click_exception(closed_port):
    with (
        pytest.raises(click.ClickException),
        connected(ConnectOptions((("127.0.0.1", closed_port),), 1.0)),
    ):
        pass


def attempt_fails(reasons, reason):
    reasons.emit(
        logging.makeLogRecord(
            {"msg": f"Bootstrap attempt to 0 failed: {reason} (backoff 0.05 secs)"}
        )
    )


def test_refusing_server_is_retried_for_short_time():
    clock = task.Clock()
    reasons = FailureReasons(clock.seconds)
    attempt_fails(reasons, "socket disconnected")
    clock.advance(RETRY_REFUSED_SECONDS - 0.1)
    attempt_fails(reasons, "Invalid frame length")
    clock.advance(0.2)
    with pytest.raises(KafkaConnectionError):
        attempt_fails(reasons, "socket disconnected")
    assert reasons.last == "Invalid frame length"


def test_unresponsive_server_gets_whole_timeout():
    clock = task.Clock()
    reasons = FailureReasons(clock.seconds)
    for _ in range(3):
        attempt_fails(reasons, "Request timed out after 100 ms")
        clock.advance(10 * RETRY_REFUSED_SECONDS)
    assert reasons.last == "Request timed out after 100 ms"
