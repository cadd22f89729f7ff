"""Mechanisms for the settings: which keys and rules each of them uses."""

from __future__ import annotations

import asyncio
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.internet.task import Clock

from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Principal
from auth.oauth_bearer import INVALID_TOKEN
from auth.users import PasswordHash, edit_users
from gateway.security.mechanisms import make_key_download, make_mechanisms
from gateway.settings.model import Settings
from tests.auth.pulsar_keys import RSA_KEY, RSA_TOKEN, SECRET_KEY, SECRET_TOKEN

_DER = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
PRIVATE = rsa.generate_private_key(65537, 2048)
UNSECURED = {"sasl_oauthbearer_allow_unsecured_tokens": True}


def settings(*mechanisms, **values):
    return Settings(
        listeners=["SASL_PLAINTEXT://127.0.0.1:0"],
        sasl_enabled_mechanisms=list(mechanisms),
        **values,
    )


async def at_once(host, check):
    return check()


def make(*mechanisms, **values):
    made = settings(*mechanisms, **values)
    return make_mechanisms(made, at_once, lambda: None, make_key_download(made, Clock()))


def respond(mechanism, token):
    return asyncio.run(mechanism.begin("192.0.2.1").respond(token.encode()))


def bearer(token):
    return f"n,,\x01auth=Bearer {token}\x01\x01"


def signed(**claims):
    now = time.time()
    return jwt.encode(
        {"sub": "app", "iat": now, "exp": now + 60, **claims}, PRIVATE, "RS256", {"kid": "one"}
    )


@pytest.fixture
def key_set(tmp_path):
    key = jwt.algorithms.RSAAlgorithm.to_jwk(PRIVATE.public_key(), as_dict=True)
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{**key, "kid": "one"}]}))
    return path.as_uri()


@pytest.mark.parametrize(
    ("mechanism", "setting", "value"),
    [
        ("PLAIN", "token_secret_key", "file:///nowhere/key"),
        ("PLAIN", "token_public_key", "file:///nowhere/key"),
        ("OAUTHBEARER", "sasl_oauthbearer_jwks_endpoint_url", "file:///nowhere/key"),
    ],
)
def test_error_in_key_file_names_the_setting(mechanism, setting, value):
    with pytest.raises(ValueError, match=f"^{setting}: /nowhere/key: No such file or directory$"):
        make(mechanism, **{setting: value})


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_users_file_without_listener_that_offers_plain_causes_warning(tmp_path, caplog, listener):
    users = tmp_path / "users"
    with edit_users(users) as stored:
        stored["bob"] = PasswordHash.of("s3cret", 4)
    made = Settings(listeners=f"{listener}://127.0.0.1:0", users_file=users)
    make_mechanisms(made, at_once, lambda: None)
    assert ("users_file has no effect" in caplog.text) == (listener == "PLAINTEXT")


def test_plain_accepts_passwords_and_tokens(tmp_path):
    users, secret = tmp_path / "users", tmp_path / "secret.key"
    with edit_users(users) as stored:
        stored["bob"] = PasswordHash.of("s3cret", 4)
    secret.write_bytes(SECRET_KEY)
    plain = make("PLAIN", users_file=users, token_secret_key=f"file://{secret}")["PLAIN"]
    assert respond(plain, "\0bob\0s3cret").principal == Principal("User", "bob")
    token = f"token:{SECRET_TOKEN}"
    assert respond(plain, f"\0acme\0{token}").principal == Principal(
        "User", "alice", "acme/default"
    )


def test_key_file_is_reloaded(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    path = tmp_path / "public.key"
    path.write_bytes(RSA_KEY)
    plain = make("PLAIN", token_public_key=str(path))["PLAIN"]
    assert respond(plain, f"\0acme\0token:{RSA_TOKEN}").principal.name == "alice"
    path.write_bytes(PRIVATE.public_key().public_bytes(*_DER))
    now[0] += 1
    with pytest.raises(AuthenticationFailed, match="signature"):
        respond(plain, f"\0acme\0token:{RSA_TOKEN}")


def test_oauthbearer_uses_the_key_of_plain_without_an_identity_provider(tmp_path):
    path = tmp_path / "secret.key"
    path.write_bytes(SECRET_KEY)
    made = make("PLAIN", "OAUTHBEARER", token_secret_key=str(path))
    # Pulsar's rules: the token has neither exp nor iat.
    outcome = respond(made["OAUTHBEARER"], bearer(SECRET_TOKEN))
    assert outcome.principal == Principal("User", "alice")


def test_oauthbearer_verifies_by_a_key_set_with_kafkas_rules(key_set):
    mechanism = make(
        "OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=key_set,
        sasl_oauthbearer_expected_issuer="https://id",
        sasl_oauthbearer_expected_audience=["kafka"],
        sasl_oauthbearer_sub_claim_name="client",
        sasl_oauthbearer_tenant_claim_name="tenant",
        pulsar_namespace="records",
    )["OAUTHBEARER"]
    right = {"iss": "https://id", "aud": "kafka", "client": "app1", "tenant": "acme"}
    outcome = respond(mechanism, bearer(signed(**right)))
    assert outcome.principal == Principal("User", "app1", "acme/records")
    assert 55_000 < outcome.lifetime_ms <= 60_000
    for wrong in ({"iss": "x"}, {"aud": "x"}, {"client": ""}, {"tenant": 1}, {"scope": ""}):
        assert respond(mechanism, bearer(signed(**{**right, **wrong}))).token == INVALID_TOKEN


def test_clients_retry_until_the_keys_of_the_provider_are_there():
    mechanism = make("OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url="https://id.example/keys")[
        "OAUTHBEARER"
    ]
    with pytest.raises(AuthenticationBusy):
        respond(mechanism, bearer(signed()))


def test_unsecured_tokens_need_their_setting_and_are_warned_about(key_set, caplog):
    token = jwt.encode({"sub": "app", "iat": 1, "exp": time.time() + 60}, None, "none")
    strict = make("OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=key_set)["OAUTHBEARER"]
    assert respond(strict, bearer(token)).token == INVALID_TOKEN
    assert caplog.messages == []
    assert respond(make("OAUTHBEARER", **UNSECURED)["OAUTHBEARER"], bearer(token)).principal == (
        Principal("User", "app")
    )
    assert "without a signature" in caplog.text


def test_plain_http_to_another_machine_is_warned_about(caplog):
    for url in ("https://id.example/keys", "http://127.0.0.1/keys"):
        make("OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=url)
    assert caplog.messages == []
    make("OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url="http://id.example/keys")
    assert "without TLS" in caplog.text


@pytest.mark.parametrize("content", [b"", b"short"])
def test_unusable_key_prevents_the_start(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    for name in ("token_secret_key", "token_public_key"):
        with pytest.raises(ValueError, match=str(path)):
            make("PLAIN", **{name: str(path)})
    with pytest.raises(ValueError, match=str(path)):
        make("OAUTHBEARER", sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
