"""SASL PLAIN: RFC 4616 with Kafka's rules, including malformed tokens."""

from __future__ import annotations

import asyncio

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.jwt_tokens import TokenRules, TokenVerifier
from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Principal, SaslOutcome
from auth.plain import PlainMechanism, TokenLogin
from auth.signing_keys import FixedKeys, read_secret_key
from tests.auth.pulsar_keys import SECRET_KEY, SECRET_TOKEN


class Known:
    """Passwords in a dict; records the checks made."""

    def __init__(self, **users):
        self.users = users
        self.asked = []

    def check(self, name, password):
        self.asked.append(name)
        return self.users.get(name) == password

    def is_cached(self, name, password):
        return (name, password) == self.remembered

    remembered = None


async def at_once(host, check):
    return check()


def log_in(token, passwords=None):
    return asyncio.run(
        PlainMechanism(passwords or Known(alice="s3cret"), at_once)
        .begin("192.0.2.1")
        .respond(token)
    )


def reason(token, passwords=None):
    with pytest.raises(AuthenticationFailed) as caught:
        log_in(token, passwords)
    return caught.value.reason


@pytest.mark.parametrize("token", [b"\0alice\0s3cret", b"alice\0alice\0s3cret"])
def test_correct_password_authenticates_with_empty_reply(token):
    assert log_in(token) == SaslOutcome(b"", Principal("User", "alice"))


def test_names_and_passwords_are_utf8():
    assert log_in(
        "\0Ærøskøbing\0пароль🔑".encode(), Known(Ærøskøbing="пароль🔑")
    ).principal == Principal("User", "Ærøskøbing")


def test_wrong_password_and_unknown_user_fail_with_same_reason():
    assert reason(b"\0alice\0wrong") == reason(b"\0bob\0s3cret")


def test_unknown_user_is_checked_like_known_user():
    passwords = Known(alice="s3cret")
    reason(b"\0bob\0s3cret", passwords)
    assert passwords.asked == ["bob"]


@pytest.mark.parametrize(
    ("token", "complaint"),
    [
        (b"", "three parts"),
        (b"alice", "three parts"),
        (b"alice\0s3cret", "three parts"),
        (b"\0alice\0s3cret\0", "three parts"),
        (b"\0\0s3cret", "user name is empty"),
        (b"\0alice\0", "password is empty"),
        (b"bob\0alice\0s3cret", "authorization id"),
        (b"\0alice\0\xff", "not UTF-8"),
        (b"\0alice\0\xc0\x80", "not UTF-8"),
    ],
)
def test_malformed_token_fails_before_password_check(token, complaint):
    passwords = Known(alice="s3cret")
    assert complaint in reason(token, passwords)
    assert passwords.asked == []


def test_failure_reason_never_contains_client_input():
    tokens = [b"s3cret", b"s3cret\0alice\0x", b"\0alice\0s3cret\0\xff", b"\0s3cret\0wrong"]
    assert not any("s3cret" in reason(token, Known()) for token in tokens)


@given(
    st.binary(max_size=300)
    | st.lists(st.text(max_size=20), max_size=5).map(lambda parts: "\0".join(parts).encode())
)
def test_any_bytes_authenticate_or_fail(token):
    try:
        outcome = log_in(token)
    except AuthenticationFailed:
        return
    assert outcome.principal == Principal("User", "alice")


def test_exchange_accepts_exactly_one_token():
    exchange = PlainMechanism(Known(alice="s3cret"), at_once).begin("192.0.2.1")
    with pytest.raises(AuthenticationFailed):
        asyncio.run(exchange.respond(b""))
    with pytest.raises(AuthenticationFailed, match="already finished"):
        asyncio.run(exchange.respond(b"\0alice\0s3cret"))


def test_check_runs_on_behalf_of_client_address():
    async def run(host, check):
        hosts.append(host)
        return check()

    hosts = []
    asyncio.run(
        PlainMechanism(Known(alice="s3cret"), run).begin("192.0.2.7").respond(b"\0alice\0s3cret")
    )
    assert hosts == ["192.0.2.7"]


def test_cached_password_needs_no_check():
    async def busy(host, check):
        raise AuthenticationBusy("full")

    passwords = Known(alice="s3cret")
    passwords.remembered = ("alice", "s3cret")
    plain = PlainMechanism(passwords, busy)
    assert asyncio.run(plain.begin("192.0.2.1").respond(b"\0alice\0s3cret")).principal == Principal(
        "User", "alice"
    )
    with pytest.raises(AuthenticationBusy):
        asyncio.run(plain.begin("192.0.2.1").respond(b"\0alice\0guess"))


SECRET = b"\xf0" * 32
NOW = 1_700_000_000.0


def token_of(**claims):
    return jwt.encode({"sub": "app", **claims}, SECRET, "HS256")


def log_in_with_token(name, token, passwords=None, **rules):
    keys = FixedKeys(read_secret_key(SECRET))
    tokens = TokenLogin(TokenVerifier(keys, TokenRules(**rules), lambda: NOW), "default")
    exchange = PlainMechanism(passwords, at_once, tokens).begin("192.0.2.1")
    return asyncio.run(exchange.respond(f"\0{name}\0{token}".encode()))


@pytest.mark.parametrize(
    ("name", "tenant"), [("acme/sales", "acme/sales"), ("acme", "acme/default")]
)
def test_token_names_the_user_and_user_name_the_tenant(name, tenant):
    outcome = log_in_with_token(name, f"token:{token_of(exp=NOW + 90)}")
    assert outcome == SaslOutcome(b"", Principal("User", "app", tenant), 90_000)


def test_token_of_pulsars_tool_is_a_password():
    keys = FixedKeys(read_secret_key(SECRET_KEY))
    tokens = TokenLogin(TokenVerifier(keys, TokenRules(), lambda: NOW), "default")
    exchange = PlainMechanism(None, at_once, tokens).begin("192.0.2.1")
    outcome = asyncio.run(exchange.respond(f"\0public/default\0token:{SECRET_TOKEN}".encode()))
    assert outcome.principal == Principal("User", "alice", "public/default")


def test_passwords_and_tokens_work_side_by_side():
    passwords = Known(alice="s3cret", bob="token:no-jwt")
    assert log_in_with_token("alice", "s3cret", passwords).principal == Principal("User", "alice")
    assert log_in_with_token("acme", f"token:{token_of()}", passwords).principal.name == "app"
    with pytest.raises(AuthenticationFailed, match="JWT"):
        log_in_with_token("bob", "token:no-jwt", passwords)
    assert passwords.asked == ["alice"]


def test_password_that_starts_like_a_token_is_checked_if_there_are_no_tokens():
    assert log_in(b"\0bob\0token:no-jwt", Known(bob="token:no-jwt")).principal.name == "bob"


@pytest.mark.parametrize("password", ["s3cret", token_of(), "Token:x.y.z", "token"])
def test_other_passwords_are_refused_without_a_users_file(password):
    with pytest.raises(AuthenticationFailed, match="not token:JWT"):
        log_in_with_token("alice", password)


@pytest.mark.parametrize("name", ["a/b/c", "/", "acme/", "a b", "é"])
def test_user_name_of_a_token_must_be_a_tenant(name):
    with pytest.raises(AuthenticationFailed, match="TENANT"):
        log_in_with_token(name, f"token:{token_of()}")


@pytest.mark.parametrize(
    ("claim", "allowed", "refused"),
    [("acme", ["acme", "acme/sales"], ["other", "acmes"]),
     ("acme/sales", ["acme/sales"], ["acme", "acme/other", "sales"])],
)  # fmt: skip
def test_tenant_claim_limits_the_user_name(claim, allowed, refused):
    token = f"token:{token_of(tenant=claim)}"
    for name in allowed:
        assert log_in_with_token(name, token, tenant_claim="tenant").principal.name == "app"
    for name in refused:
        with pytest.raises(AuthenticationFailed, match="another tenant"):
            log_in_with_token(name, token, tenant_claim="tenant")


@given(st.text(max_size=60), st.text(max_size=12))
def test_any_token_authenticates_or_fails(token, name):
    with pytest.raises(AuthenticationFailed):
        log_in_with_token(name, f"token:{token}")
