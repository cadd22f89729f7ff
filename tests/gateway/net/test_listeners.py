"""A gateway with a listener of each security protocol, and `kopgate topics` as their client."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from auth.users import PasswordHash, edit_users
from gateway.cli.main import main
from tests.testkit.certificates import Authority
from tests.testkit.gateway import STOP_SECONDS

pytestmark = pytest.mark.xdist_group("listeners")  # they share one gateway

LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway")
    authority = Authority()
    authority.write(folder)
    authority.sign().write(folder, "server")
    with edit_users(folder / "users") as users:
        users["alice"] = PasswordHash.of("s3cret", log_cost=4)
    (folder / "right").write_text("s3cret\n")
    (folder / "wrong").write_text("wr0ng\n")
    (folder / "kopgate.toml").write_text(
        f"listeners = {[f'{name}://127.0.0.1:0' for name in LISTENERS]}\n"
        f'store = "lmdb:{folder / "data"}"\n'
        f'users_file = "{folder / "users"}"\n'
        f'ssl_certificate_file = "{folder / "server.crt"}"\n'
        f'ssl_key_file = "{folder / "server.key"}"\n'
    )
    return folder


@pytest.fixture(scope="module")
def gateway(folder):
    """host:port by listener. The gateway must stop cleanly and log no password."""
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(folder / "kopgate.toml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
        )
    try:
        line = process.stdout.readline()
        yield dict(re.findall(r"(\w+)://(127\.0\.0\.1:\d+)", line))
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
    log = (folder / "log").read_text()
    assert not re.search("s3cret|wr0ng|Warning|Traceback", log), log


def topics(address, *arguments, timeout="60"):
    return CliRunner().invoke(
        main, ["topics", "list", "--bootstrap-server", address, "--timeout", timeout, *arguments]
    )


def options(folder, words):
    return [str(folder / word) if word in ("right", "wrong", "ca.crt") else word for word in words]


LOG_IN = ["--user", "alice", "--password-file", "right"]
TLS = ["--tls-ca", "ca.crt"]


@pytest.mark.parametrize(
    ("listener", "words"),
    [("PLAINTEXT", []), ("SASL_PLAINTEXT", LOG_IN), ("SSL", TLS), ("SASL_SSL", [*LOG_IN, *TLS])],
)
def test_client_with_matching_security_is_served(gateway, folder, listener, words):
    assert topics(gateway[listener], *options(folder, words)).exit_code == 0


@pytest.mark.parametrize(
    ("listener", "words", "complaint"),
    [
        ("SASL_PLAINTEXT", [], "the server may require authentication"),
        ("SASL_PLAINTEXT", ["--user", "alice", "--password-file", "wrong"], "password"),
        ("SASL_SSL", ["--user", "bob", "--password-file", "right", *TLS], "password"),
        (
            "SASL_PLAINTEXT",
            [*LOG_IN, "--sasl-mechanism", "SCRAM-SHA-512"],
            "it does not offer SCRAM-SHA-512",
        ),
        ("PLAINTEXT", LOG_IN, "this port does not use authentication"),
        ("SSL", [], "TLS"),
        ("SSL", ["--tls"], "its certificate is not trusted"),
    ],
)
def test_client_with_other_security_gets_an_error(gateway, folder, listener, words, complaint):
    # The client retries until its timeout, which allows many attempts.
    result = topics(gateway[listener], *options(folder, words), timeout="3")
    assert result.exit_code == 1
    assert complaint in result.stderr
