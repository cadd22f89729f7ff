"""SCRAM users of `kopgate users` with a fake server; tests/peers/tools runs them against Kafka."""

from __future__ import annotations

import hashlib
import json

import pytest
from click.testing import CliRunner

from gateway.cli import users
from gateway.cli.main import main
from tests.fakes.credential_admin import FakeCredentialAdmin

SERVER = ("--bootstrap-server", "127.0.0.1:9092")
SHA_256 = ("--mechanism", "SCRAM-SHA-256")
SHA_512 = ("--mechanism", "SCRAM-SHA-512")


@pytest.fixture
def server(connect_to):
    return connect_to(FakeCredentialAdmin(), users)


def kopgate(command, *arguments, password="s3cret\n"):
    return CliRunner().invoke(main, ["users", command, *arguments], input=password)


def add(*arguments, password="s3cret\n"):
    return kopgate("add", "alice", *SERVER, "--password-file", "-", *arguments, password=password)


@pytest.mark.parametrize(
    ("mechanism", "code", "name"), [(SHA_256, 1, "sha256"), (SHA_512, 2, "sha512")]
)
def test_salted_password_is_stored(server, mechanism, code, name):
    assert add(*mechanism, "--iterations", "5000").stdout == "alice added\n"
    iterations, salt, salted = server.scram["alice", code]
    assert (iterations, salted) == (5000, hashlib.pbkdf2_hmac(name, b"s3cret", salt, 5000))


def test_salts_differ_and_iterations_have_kafkas_default(server):
    add(*SHA_256)
    add(*SHA_256, "--replace")
    before = server.scram["alice", 1]
    add(*SHA_256, "--replace")
    assert before[1] != server.scram["alice", 1][1]
    assert before[0] == 4096


def test_existing_password_is_kept_without_replace(server):
    add(*SHA_256)
    before = dict(server.scram)
    refused = add(*SHA_256, password="new\n")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: alice (SCRAM-SHA-256) already exists; use --replace to change the password\n"
    )
    assert server.scram == before
    assert add(*SHA_512).exit_code == 0
    assert add(*SHA_256, "--replace", password="new\n").exit_code == 0
    assert server.scram["alice", 1] != before["alice", 1]


def test_credentials_are_listed(server):
    add(*SHA_512, "--iterations", "8192")
    add(*SHA_256)
    assert kopgate("list", *SERVER).stdout == (
        "USER   MECHANISM      ITERATIONS\nalice  SCRAM-SHA-256  4096\nalice  SCRAM-SHA-512  8192\n"
    )
    assert json.loads(kopgate("list", *SERVER, "--json").stdout) == [
        {"name": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"name": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]


def test_remove_deletes_all_credentials_or_that_of_a_mechanism(server):
    add(*SHA_256)
    add(*SHA_512)
    assert kopgate("remove", "alice", *SERVER, *SHA_256).stdout == "alice removed\n"
    assert list(server.scram) == [("alice", 2)]
    missing = kopgate("remove", "alice", *SERVER, *SHA_256)
    assert (missing.exit_code, missing.stderr) == (
        1,
        "Error: alice (SCRAM-SHA-256) does not exist\n",
    )
    assert kopgate("remove", "alice", *SERVER).exit_code == 0
    assert not server.scram
    assert kopgate("remove", "alice", *SERVER).stderr == "Error: alice does not exist\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", *SERVER, "--file", "f"],
        ["list", "--file", "f", "--user", "admin"],
        ["list", "--file", "f", "--tls"],
        ["add", "alice", *SERVER],
        ["add", "alice", *SERVER, *SHA_256, "--iterations", "4095"],
        ["add", "alice", *SERVER, *SHA_256, "--iterations", "16385"],
        ["add", "alice", *SERVER, "--mechanism", "PLAIN"],
        ["add", "alice", "--file", "f", *SHA_256],
        ["add", "alice", *SERVER, *SHA_256, "--password", "s3cret"],
        ["remove", "alice"],
        ["remove", "alice", "--file", "f", *SHA_256],
    ],
)
def test_incomplete_or_contradicting_options_are_usage_errors(server, arguments):
    assert kopgate(*arguments).exit_code == 2
