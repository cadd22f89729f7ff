"""SCRAM credentials through the admin API, with the errors of Kafka 3.9.2."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)

from auth.scram import ScramCredential
from gateway.security import scram_credentials
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers.handler_calls import call

UNSUPPORTED_MECHANISM, POLICY, NOT_FOUND, DUPLICATE, UNACCEPTABLE = 33, 44, 91, 92, 93
SHA_256, SHA_512 = 1, 2
NAMES = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}


def open_env(medium: Medium | None = None) -> BrokerEnvironment:
    return open_environment(
        medium,
        listeners=["SASL_PLAINTEXT://127.0.0.1:9092"],
        sasl_enabled_mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"),
    )


@pytest.fixture
def env() -> BrokerEnvironment:
    return open_env()


def upsertion(
    name: str = "alice",
    mechanism: int = SHA_256,
    iterations: int = 4096,
    salt: bytes = b"salt",
    salted_password: bytes = b"p" * 32,
) -> Any:
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password,
    )


def deletion(name: str = "alice", mechanism: int = SHA_256) -> Any:
    return AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(env: BrokerEnvironment, *upsertions: Any, deletions: Any = ()) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        deletions=list(deletions), upsertions=list(upsertions)
    )
    return {row.user: row.error_code for row in call(env, request, 0).results}


def describe(env: BrokerEnvironment, *names: str) -> dict[str, Any]:
    user = DescribeUserScramCredentialsRequest.UserName
    request = DescribeUserScramCredentialsRequest(
        users=[user(name=name) for name in names] if names else None
    )
    return {
        row.user: row.error_code
        or [(one.mechanism, one.iterations) for one in row.credential_infos]
        for row in call(env, request, 0).results
    }


def test_added_credentials_are_described_and_used(env: BrokerEnvironment) -> None:
    assert alter(env, upsertion(), upsertion("bob", SHA_512, 8192)) == {"alice": 0, "bob": 0}
    assert alter(env, upsertion("alice", SHA_512, 16384)) == {"alice": 0}
    everybody = {
        "alice": [(SHA_256, 4096), (SHA_512, 16384)],
        "bob": [(SHA_512, 8192)],
    }
    assert describe(env) == everybody
    assert describe(env, "bob", "carol") == {"bob": [(SHA_512, 8192)], "carol": NOT_FOUND}
    assert describe(env, "bob", "bob") == {"bob": DUPLICATE}
    assert env.broker.scram_credentials.find("SCRAM-SHA-256", "alice") == (
        ScramCredential.of_salted_password("SCRAM-SHA-256", b"p" * 32, b"salt", 4096)
    )


def test_credentials_survive_a_restart() -> None:
    medium = Medium()
    env = open_env(medium)
    alter(env, upsertion(), upsertion("bøb", SHA_512))
    before = env.broker.scram_credentials
    ended(env.store.close())
    after = open_env(medium).broker.scram_credentials
    assert list(after.users()) == ["alice", "bøb"]
    for mechanism, name in (("SCRAM-SHA-256", "alice"), ("SCRAM-SHA-512", "bøb")):
        assert after.find(mechanism, name) == before.find(mechanism, name) is not None
    # Else clients could tell unknown users by a salt that changes with a restart.
    assert after.decoy("SCRAM-SHA-256", "x") == before.decoy("SCRAM-SHA-256", "x")


def test_deleted_credential_is_gone(env: BrokerEnvironment) -> None:
    alter(env, upsertion())
    assert alter(env, deletions=[deletion(mechanism=SHA_512)]) == {"alice": NOT_FOUND}
    assert alter(env, deletions=[deletion()]) == {"alice": 0}
    assert describe(env) == {}
    assert env.broker.scram_credentials.find("SCRAM-SHA-256", "alice") is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(name=""), UNACCEPTABLE),
        (upsertion(mechanism=0), UNSUPPORTED_MECHANISM),
        (upsertion(mechanism=3), UNSUPPORTED_MECHANISM),
        (upsertion(mechanism=-1), UNSUPPORTED_MECHANISM),
        (upsertion(iterations=4095), UNACCEPTABLE),
        (upsertion(iterations=16385), UNACCEPTABLE),
        (upsertion(name="x" * 401), UNACCEPTABLE),
        (upsertion(salt=b""), UNACCEPTABLE),
        (upsertion(salt=bytes(257)), UNACCEPTABLE),
        (upsertion(salted_password=b""), UNACCEPTABLE),
        (upsertion(salted_password=bytes(257)), UNACCEPTABLE),
    ],
)
def test_unacceptable_change_is_refused_and_others_are_made(
    env: BrokerEnvironment, change: Any, code: int
) -> None:
    assert alter(env, change, upsertion("bob")) == {change.name: code, "bob": 0}
    assert describe(env) == {"bob": [(SHA_256, 4096)]}


def test_second_change_of_a_user_cancels_the_first(env: BrokerEnvironment) -> None:
    assert alter(env, upsertion(), upsertion(mechanism=SHA_512)) == {"alice": DUPLICATE}
    alter(env, upsertion())
    assert alter(env, upsertion(), deletions=[deletion()]) == {"alice": DUPLICATE}
    assert alter(env, deletions=[deletion(), deletion()]) == {"alice": DUPLICATE}
    assert describe(env) == {"alice": [(SHA_256, 4096)]}


def test_number_of_credentials_is_limited(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scram_credentials, "MAX_CREDENTIALS", 2)
    assert alter(env, upsertion("a"), upsertion("b"), upsertion("c")) == {
        "a": 0,
        "b": 0,
        "c": POLICY,
    }
    assert alter(env, upsertion("a", iterations=5000)) == {"a": 0}


def test_credentials_need_an_enabled_mechanism() -> None:
    env = open_environment()
    assert alter(env, upsertion()) == {"alice": UNSUPPORTED_MECHANISM}
    assert describe(env) == {}


@pytest.mark.parametrize("mechanism", NAMES.values())
def test_decoy_looks_like_a_user(env: BrokerEnvironment, mechanism: str) -> None:
    credentials = env.broker.scram_credentials
    decoys = [credentials.decoy(mechanism, f"user{number}") for number in range(20)]
    assert len({decoy.salt for decoy in decoys}) == 20
    assert credentials.decoy(mechanism, "user0") == decoys[0]
    assert decoys[0].iterations == 4096
    code = next(code for code, name in NAMES.items() if name == mechanism)
    kafkas = b"0123456789abcdefghijklmno"
    alter(env, *(upsertion(name, code, 8192, salt=kafkas) for name in "abc"))
    decoy = credentials.decoy(mechanism, "user0")
    assert decoy.iterations == 8192
    assert decoy.salt == decoys[0].salt
    # The same work for wrong proofs of both.
    user = credentials.find(mechanism, "a")
    assert user is not None
    assert len(decoy.stored_key) == len(user.stored_key)


@pytest.mark.parametrize("mechanism", NAMES.values())
def test_decoys_have_the_shapes_of_users_in_their_proportions(
    env: BrokerEnvironment, mechanism: str
) -> None:
    """Else a salt of another client, or a rare number of iterations, would name a user."""
    code = next(code for code, name in NAMES.items() if name == mechanism)
    shapes = {
        "kafka": (4096, b"0123456789abcdefghijklmno"),
        "long": (10_000, b"\xff" * 64),
        "short": (4096, b"\xfe" * 10),
    }
    changes = [
        upsertion(f"{maker}{number}", code, *shapes[maker])
        for maker, users in (("kafka", 6), ("long", 3), ("short", 1))
        for number in range(users)
    ]
    alter(env, *changes)
    credentials = env.broker.scram_credentials

    def shape(number: int) -> tuple[int, int, bool]:
        decoy = credentials.decoy(mechanism, f"unknown{number}")
        is_readable = decoy.salt.isalnum() and decoy.salt.islower()
        return decoy.iterations, 0 if is_readable else len(decoy.salt), is_readable

    before = [shape(number) for number in range(1000)]
    counts = Counter(before)
    assert set(counts) == {(4096, 0, True), (10_000, 64, False), (4096, 10, False)}
    # Standard deviations of the binomial distribution: 15, 14 and 9.
    assert abs(counts[4096, 0, True] - 600) < 80
    assert abs(counts[10_000, 64, False] - 300) < 75
    assert abs(counts[4096, 10, False] - 100) < 50
    # One user more moves few of them.
    alter(env, upsertion("another", code, *shapes["kafka"]))
    changed = sum(old != shape(number) for number, old in enumerate(before))
    assert changed < 130


def test_secrets_are_not_in_repr(env: BrokerEnvironment) -> None:
    text = repr(scram_credentials.Upsertion("alice", 1, 4096, b"planted", b"planted"))
    assert "planted" not in text


def test_users_without_credentials_are_not_found(env: BrokerEnvironment) -> None:
    reply = call(env, DescribeUserScramCredentialsRequest(users=None), 0)
    assert (reply.error_code, list(reply.results)) == (0, [])
    user = DescribeUserScramCredentialsRequest.UserName
    rows = call(
        env,
        DescribeUserScramCredentialsRequest(users=[user(name="a"), user(name="b"), user(name="b")]),
        0,
    ).results
    assert [(row.user, row.error_code, row.error_message) for row in rows] == [
        ("a", NOT_FOUND, "Attempt to describe a user credential that does not exist: a"),
        (
            "b",
            DUPLICATE,
            "Cannot describe SCRAM credentials for the same user twice in a single request: b",
        ),
    ]


def test_credentials_cannot_be_altered_without_a_scram_mechanism() -> None:
    env = open_environment()
    deletions = [deletion(name) for name in ("a", "b")]
    assert alter(env, upsertion("a"), upsertion("c"), deletions=deletions) == {
        "a": DUPLICATE,
        "b": NOT_FOUND,
        "c": UNSUPPORTED_MECHANISM,
    }
