"""SASL OAUTHBEARER: the messages of RFC 7628 and of clients, with Kafka's rules."""

from __future__ import annotations

import asyncio

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.jwt_tokens import MAX_TOKEN_BYTES, TokenRules, TokenVerifier
from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Principal, SaslOutcome
from auth.oauth_bearer import (
    INVALID_TOKEN,
    MAX_EXTENSIONS,
    MAX_MESSAGE_BYTES,
    OAuthBearerMechanism,
    parse_initial_response,
)
from auth.signing_keys import FixedKeys, read_secret_key

SECRET = b"\xf0" * 32
NOW = 1_700_000_000.0


def signed(**claims):
    return jwt.encode({"sub": "alice", "iat": NOW, "exp": NOW + 60, **claims}, SECRET, "HS256")


def begin(**rules):
    verifier = TokenVerifier(
        FixedKeys(read_secret_key(SECRET)), TokenRules(requires_times=True, **rules), lambda: NOW
    )
    return OAuthBearerMechanism(verifier, "default").begin("192.0.2.1")


def respond(message, exchange=None):
    return asyncio.run((exchange or begin()).respond(message))


def message(token, authzid="", extensions=b""):
    return b"n,%s,\x01auth=Bearer %s\x01%s\x01" % (authzid.encode(), token.encode(), extensions)


def test_valid_token_authenticates_with_empty_reply_and_lifetime():
    assert respond(message(signed())) == SaslOutcome(b"", Principal("User", "alice"), 60_000)


def test_message_of_rfc_7628_is_parsed():
    # Section 4.1, with %x01 for ^A; the authorization id and host are those of the example.
    example = (
        b"n,a=user@example.com,\x01host=server.example.com\x01port=143\x01"
        b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"
    )
    assert parse_initial_response(example) == (
        "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==",
        "user@example.com",
        {"host": "server.example.com", "port": "143"},
    )


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_scheme_is_case_insensitive(scheme):
    assert parse_initial_response(f"n,,\x01auth={scheme}  x.y.z\x01\x01".encode())[0] == "x.y.z"


@pytest.mark.parametrize("authzid", ["a=alice", "a=Alice", "a=bob"])
def test_authorization_id_must_be_the_user(authzid):
    if authzid == "a=alice":
        assert respond(message(signed(), authzid)).principal.name == "alice"
        return
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        respond(message(signed(), authzid))


def test_authorization_id_is_unescaped():
    outcome = respond(message(signed(sub="a,b=c"), "a=a=2Cb=3Dc"))
    assert outcome.principal.name == "a,b=c"


def test_extensions_are_read_and_give_no_tenant():
    extensions = b"username=acme/sales\x01tenant=acme\x01traceId=1 2\t3\x01"
    assert parse_initial_response(message("x.y.z", extensions=extensions))[2] == {
        "username": "acme/sales",
        "tenant": "acme",
        "traceId": "1 2\t3",
    }
    assert respond(message(signed(), extensions=extensions)).principal.tenant is None


def test_tenant_comes_from_its_claim():
    exchange = begin(tenant_claim="tenant")
    assert respond(message(signed(tenant="acme")), exchange).principal == Principal(
        "User", "alice", "acme/default"
    )
    for claims in ({}, {"tenant": "a/b/c"}):
        outcome = respond(message(signed(**claims)), begin(tenant_claim="tenant"))
        assert (outcome.token, outcome.principal) == (INVALID_TOKEN, None)
        assert "tenant" in outcome.refusal


def test_invalid_token_is_answered_with_json_and_fails_at_the_next_message():
    exchange = begin()
    assert respond(message(signed(exp=NOW)), exchange) == SaslOutcome(
        b'{"status":"invalid_token"}', None, refusal="the token has expired"
    )
    with pytest.raises(AuthenticationFailed, match=r'\{"status":"invalid_token"\}: .*expired'):
        respond(b"\x01", exchange)
    with pytest.raises(AuthenticationFailed, match="already finished"):
        respond(b"\x01", exchange)


def test_second_token_after_an_invalid_one_is_refused():
    exchange = begin()
    respond(message("x.y.z"), exchange)
    with pytest.raises(AuthenticationFailed, match="already finished"):
        respond(message(signed()), exchange)


def test_clients_retry_while_keys_are_missing():
    class NoKeys:
        def current(self):
            raise AuthenticationBusy("no keys yet")

    mechanism = OAuthBearerMechanism(TokenVerifier(NoKeys(), TokenRules(), lambda: NOW))
    with pytest.raises(AuthenticationBusy):
        respond(message(signed()), mechanism.begin("192.0.2.1"))


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01",
        b"n,,\x01auth=Bearer x.y.z\x01\x01\x01",
        b"n,,auth=Bearer x.y.z\x01\x01",
        b"y,,\x01auth=Bearer x.y.z\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer x.y.z\x01\x01",
        b"n,a=,\x01auth=Bearer x.y.z\x01\x01",
        b"n,a=b=2Dc,\x01auth=Bearer x.y.z\x01\x01",
        b"n,,\x01auth=Basic x.y.z\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x y\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01auth=Bearer x.y.z\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01key\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01k3y=value\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01key=\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01key=v\x00\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\x01key=\xc3\xa9\x01\x01",
        b"n,,\x01auth=Bearer x.y.z\xff\x01\x01",
        message("x.y.z", extensions=b"a=1\x01" * 2),
        message("x.y.z", extensions=b"".join(b"%c=1\x01" % (65 + i) for i in range(33))),
        message("x" * MAX_MESSAGE_BYTES),
    ],
)
def test_malformed_message_fails_at_once(malformed):
    with pytest.raises(AuthenticationFailed) as caught:
        respond(malformed)
    assert "x.y" not in caught.value.reason


def test_largest_message_is_parsed():
    names = [bytes([65 + i // 26, 65 + i % 26]) for i in range(MAX_EXTENSIONS)]
    extensions = b"".join(name + b"=" + b"v" * 80 + b"\x01" for name in names)
    token = "x" * MAX_TOKEN_BYTES
    assert len(parse_initial_response(message(token, extensions=extensions))[2]) == MAX_EXTENSIONS


PIECES = st.sampled_from(
    ["n,", "a=alice", ",", "\x01", "auth=", "Bearer ", signed(), "k=v", "=", "=2C", "x.y.z", "é"]
)


@given(st.binary(max_size=200) | st.lists(PIECES, max_size=12).map(lambda p: "".join(p).encode()))
def test_any_bytes_are_answered_or_refused(token):
    exchange = begin()
    for one in (token, b"\x01"):
        try:
            outcome = respond(one, exchange)
        except AuthenticationFailed:
            continue
        assert outcome.token in (b"", INVALID_TOKEN)
        assert (outcome.principal is None) == (outcome.token == INVALID_TOKEN)
