"""Keys from files of Pulsar, from key sets, and from anything else."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from auth.signing_keys import (
    MAX_DOCUMENT_BYTES,
    MAX_KEYS,
    KeyFile,
    KeysError,
    read_key_set,
    read_public_key,
    read_secret_key,
)
from tests.auth.pulsar_keys import BASE64_KEY, EC_KEY, RSA_KEY, SECRET_KEY

RSA_ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
# RFC 7517, appendix A.1.
EC_JWK = {
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    "use": "enc",
    "kid": "1",
}


def jwk(key, **fields):
    algorithm = {"RS": jwt.algorithms.RSAAlgorithm, "OK": jwt.algorithms.OKPAlgorithm}
    kind = "RS" if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey) else "OK"
    return {**algorithm[kind].to_jwk(key, as_dict=True), **fields}


RSA_PUBLIC = load_der_public_key(RSA_KEY)


def key_set(*keys):
    return read_key_set(json.dumps({"keys": keys}).encode())


def test_secret_key_of_pulsar_is_the_content_of_its_file():
    for content in (SECRET_KEY, BASE64_KEY):
        (key,) = read_secret_key(content).keys
        assert (key.material, key.algorithms) == (content, {"HS256"})


@pytest.mark.parametrize(
    ("size", "algorithms"),
    [(32, {"HS256"}), (48, {"HS256", "HS384"}), (64, {"HS256", "HS384", "HS512"})],
)
def test_longer_secrets_verify_more_algorithms(size, algorithms):
    assert read_secret_key(b"\xf0" * size).keys[0].algorithms == algorithms


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xf0" * 31,
        RSA_PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        RSA_KEY,
    ],
)
def test_short_secret_and_public_key_as_secret_are_refused(content):
    with pytest.raises(KeysError):
        read_secret_key(content)


@pytest.mark.parametrize(
    ("content", "algorithms"),
    [
        (RSA_KEY, RSA_ALGORITHMS),
        (EC_KEY, {"ES256"}),
        (
            RSA_PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            RSA_ALGORITHMS,
        ),
        (
            ed25519.Ed25519PrivateKey.generate()
            .public_key()
            .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            {"EdDSA"},
        ),
    ],
    ids=["rsa", "ec", "pem", "ed25519"],
)
def test_public_key_fits_algorithms_of_its_type(content, algorithms):
    assert read_public_key(content).keys[0].algorithms == algorithms


def der(key):
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SECRET_KEY,
        base64.b64encode(RSA_KEY),
        der(rsa.generate_private_key(65537, 1024)),
        der(ec.generate_private_key(ec.SECP256K1())),
    ],
    ids=["empty", "secret", "base64", "short", "other curve"],
)
def test_unusable_public_key_is_refused(content):
    with pytest.raises(KeysError):
        read_public_key(content)


def test_key_set_finds_keys_by_id_and_algorithm():
    keys = key_set(
        jwk(RSA_PUBLIC, kid="a", use="sig"),
        jwk(RSA_PUBLIC, kid="b", alg="PS256", key_ops=["verify"]),
        {**EC_JWK, "use": "sig"},
    )
    assert [key.key_id for key in keys.find("a", "RS256")] == ["a"]
    assert [key.key_id for key in keys.find(None, "PS256")] == ["a", "b"]
    assert [key.key_id for key in keys.find("1", "ES256")] == ["1"]
    assert keys.find("b", "RS256") == []
    assert keys.find("1", "RS256") == []
    assert keys.find("c", "RS256") == []
    assert keys.find("a", "HS256") == []


def test_key_without_id_fits_tokens_with_any():
    assert len(key_set(jwk(RSA_PUBLIC)).find("x", "RS256")) == 1


def test_private_key_in_key_set_is_reduced_to_its_public_key():
    private = rsa.generate_private_key(65537, 2048)
    (key,) = key_set(jwk(private, kid="a", key_ops=["sign", "verify"])).keys
    assert key.material == private.public_key()


@pytest.mark.parametrize(
    "unusable",
    [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
        EC_JWK,
        {**EC_JWK, "use": "sig", "key_ops": ["sign"]},
        {**EC_JWK, "use": "sig", "y": "AAAA"},
        {**EC_JWK, "use": "sig", "alg": "RS256"},
        jwk(RSA_PUBLIC, alg="RSA-OAEP"),
        jwk(rsa.generate_private_key(65537, 1024).public_key()),
        {"kty": "RSA"},
        {"kty": "RSA", "n": 1, "e": []},
        {"kty": "quantum"},
        {"kty": 1},
        "key",
        None,
    ],
)
def test_unusable_key_is_left_out_of_key_set(unusable):
    usable = jwk(RSA_PUBLIC, kid="a")
    assert [key.key_id for key in key_set(unusable, usable).keys] == ["a"]
    with pytest.raises(KeysError, match="none of the 1 keys"):
        key_set(unusable)


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b"\xff", b"[" * 100_000],
    ids=lambda document: document[:20],
)
def test_document_that_is_no_key_set_is_refused(document):
    with pytest.raises(KeysError):
        read_key_set(document)


def test_key_set_with_too_many_keys_is_refused():
    with pytest.raises(KeysError, match=f"more than {MAX_KEYS}"):
        key_set(*[EC_JWK] * (MAX_KEYS + 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(["kty", "n", "e", "crv", "x", "y", "d", "kid", "alg", "use", "key_ops"])
KINDS = st.sampled_from(["RSA", "EC", "OKP", "P-256", "Ed25519", "X25519", "AQAB", "sig"])


@given(
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps({"keys": value}).encode())
    | st.lists(st.dictionaries(FIELDS, KINDS | JSON), max_size=3).map(
        lambda keys: json.dumps({"keys": keys}).encode()
    )
)
def test_any_bytes_are_a_key_or_refused(content):
    for read in (read_key_set, read_public_key, read_secret_key):
        try:
            assert read(content).keys
        except KeysError:
            continue


def test_key_file_is_reloaded_and_keeps_keys_after_a_mistake(tmp_path):
    clock, problems = Clock(), []
    path = tmp_path / "public.key"
    path.write_bytes(RSA_KEY)
    keys = KeyFile(path, read_public_key, clock.seconds, problems.append)
    assert keys.current().find(None, "RS256")
    path.write_bytes(EC_KEY)
    clock.advance(1.0)
    assert keys.current().find(None, "ES256")
    path.write_bytes(b"mistake")
    clock.advance(1.0)
    assert keys.current().find(None, "ES256")
    assert len(problems) == 1
    assert "keeping the previous keys" in problems[0]
    keys.current()
    assert len(problems) == 1


def test_missing_and_oversized_key_files_are_refused(tmp_path):
    path = tmp_path / "keys"
    with pytest.raises(KeysError, match="No such file"):
        KeyFile(path, read_secret_key, Clock().seconds, print)
    path.write_bytes(b"\xf0" * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(KeysError, match="larger than"):
        KeyFile(path, read_secret_key, Clock().seconds, print)


def test_keys_are_not_in_reprs():
    assert repr(SECRET_KEY) not in repr(read_secret_key(SECRET_KEY))
