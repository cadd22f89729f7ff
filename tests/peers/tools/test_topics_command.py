"""`kopgate topics` against Kafka 3.9.2, over every kind of listener."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from tests.peers.tools.conftest import ADMIN
from tests.testkit.kafka import tool

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("authorizing servers")]

PLAINTEXT = "PLAINTEXT"


@pytest.fixture
def kafka(authorizing_kafka):
    return authorizing_kafka.listeners


@pytest.fixture
def folder(authorizing_kafka):
    """It has the files `ca.crt`, `password` and `wrong`."""
    return authorizing_kafka.folder


def topics(bootstrap, command, *arguments):
    return CliRunner().invoke(
        main, ["topics", command, "--bootstrap-server", bootstrap, "--timeout", "60", *arguments]
    )


def eventually(is_so):
    """Wait until it is so: Kafka answers before a change is applied everywhere."""
    end = time.monotonic() + 90
    while not is_so() and time.monotonic() < end:
        time.sleep(0.1)
    assert is_so()


def test_create_alter_and_delete_are_visible_to_kafka_topics(kafka):
    assert (
        topics(
            kafka[PLAINTEXT], "create", "a", "--partitions", "2", "--config", "retention.ms=5000"
        ).stdout
        == "a created\n"
    )
    eventually(lambda: "a      2" in topics(kafka[PLAINTEXT], "list").stdout)
    assert (
        topics(
            kafka[PLAINTEXT],
            "alter",
            "a",
            "--partitions",
            "3",
            "--unset",
            "retention.ms",
            "--config",
            "max.message.bytes=2000",
        ).exit_code
        == 0
    )

    def is_altered():
        (row,) = json.loads(topics(kafka[PLAINTEXT], "describe", "a", "--json").stdout)
        return (row["configs"], [part["partition"] for part in row["partitions"]]) == (
            {"max.message.bytes": "2000"},
            [0, 1, 2],
        )

    eventually(is_altered)
    seen = tool("kafka-topics", kafka[PLAINTEXT], "--describe", "--topic", "a")
    assert "PartitionCount: 3" in seen
    assert "max.message.bytes=2000" in seen
    assert topics(kafka[PLAINTEXT], "delete", "a", "--yes").stdout == "a deleted\n"
    eventually(lambda: topics(kafka[PLAINTEXT], "describe", "a").exit_code == 1)


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["create", "not good"], "Topic name is invalid"),
        (["create", "b", "--config", "nope=1"], "Unknown topic config name: nope"),
        (["create", "b", "--replication-factor", "2"], "replication"),
        (["delete", "nothere", "--yes"], "nothere: "),
        (["alter", "nothere", "--config", "retention.ms=1"], "nothere: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_errors_of_kafka_are_printed(kafka, command, complaint):
    result = topics(kafka[PLAINTEXT], *command)
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_tls_and_sasl_listeners_are_supported(kafka, folder):
    log_in = ["--user", ADMIN, "--password-file", str(folder / "password")]
    tls = ["--tls-ca", str(folder / "ca.crt")]
    for listener, arguments in {
        "SASL_PLAINTEXT": log_in,
        "SSL": tls,
        "SASL_SSL": [*log_in, *tls],
    }.items():
        assert topics(kafka[listener], "list", *arguments).exit_code == 0, listener


@pytest.mark.parametrize(
    ("listener", "arguments", "complaint"),
    [
        ("SASL_PLAINTEXT", [], "the server may require authentication"),
        ("SASL_PLAINTEXT", ["--user", ADMIN, "--password-file", "wrong"], "password"),
        (
            "PLAINTEXT",
            ["--user", ADMIN, "--password-file", "password"],
            "this port does not use authentication",
        ),
        ("SSL", ["--tls"], "pass its CA with --tls-ca"),
        ("PLAINTEXT", ["--tls"], "check that this port uses TLS"),
        # The TLS alert may or may not arrive before the connection closes; both messages name TLS.
        ("SSL", [], "--tls-ca"),
    ],
)
def test_wrong_security_settings_fail_with_advice(kafka, folder, listener, arguments, complaint):
    paths = [str(folder / word) if word in ("wrong", "password") else word for word in arguments]
    result = topics(kafka[listener], "list", *paths)
    assert result.exit_code == 1
    assert complaint in result.stderr
