"""JWTs: signatures, algorithms, times and claims; tokens of Pulsar's tool and of RFC 7515."""

from __future__ import annotations

import asyncio
import base64
import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from auth.jwt_tokens import (
    MAX_SUBJECT_CHARS,
    MAX_TOKEN_BYTES,
    TokenRules,
    TokenVerifier,
    VerifiedToken,
    complete_tenant,
)
from auth.mechanism import AuthenticationBusy, AuthenticationFailed
from auth.signing_keys import (
    FixedKeys,
    KeySet,
    VerificationKey,
    read_public_key,
    read_secret_key,
)
from tests.auth.pulsar_keys import (
    BASE64_KEY,
    BASE64_TOKEN,
    EC_KEY,
    EC_TOKEN,
    RSA_KEY,
    RSA_TOKEN,
    SECRET_KEY,
    SECRET_TOKEN,
)

NOW = 1_700_000_000.0
PRIVATE = rsa.generate_private_key(65537, 2048)
SECRET = b"\xf0" * 64


def public(private):
    return read_public_key(
        private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )


PUBLIC = public(PRIVATE)


def verify(token, keys=PUBLIC, now=NOW, **rules):
    source = keys if hasattr(keys, "renew") else FixedKeys(keys)
    return asyncio.run(TokenVerifier(source, TokenRules(**rules), lambda: now).verify(token))


def reason(token, keys=PUBLIC, now=NOW, **rules):
    with pytest.raises(AuthenticationFailed) as caught:
        verify(token, keys, now, **rules)
    return caught.value.reason


def signed(headers=None, key=PRIVATE, algorithm="RS256", **claims):
    return jwt.encode({"sub": "alice", **claims}, key, algorithm, headers)


def segment(content):
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def unsecured(**claims):
    header = segment(b'{"alg":"none"}')
    return f"{header}.{segment(json.dumps({'sub': 'alice', **claims}).encode())}."


@pytest.mark.parametrize(
    ("token", "keys"),
    [
        (SECRET_TOKEN, read_secret_key(SECRET_KEY)),
        (BASE64_TOKEN, read_secret_key(BASE64_KEY)),
        (RSA_TOKEN, read_public_key(RSA_KEY)),
        (EC_TOKEN, read_public_key(EC_KEY)),
    ],
    ids=["secret", "base64", "rsa", "ec"],
)
def test_tokens_of_pulsars_tool_are_valid(token, keys):
    assert verify(token, keys) == VerifiedToken("alice", 0)


# RFC 7515, appendices A.1 and A.3; the claims are {"iss":"joe","exp":1300819380,...}.
RFC_CLAIMS = (
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
)
RFC_SECRET = base64.urlsafe_b64decode(
    "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow=="
)
RFC_CURVE = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}


@pytest.mark.parametrize(
    ("header", "signature", "keys"),
    [
        (
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
            read_secret_key(RFC_SECRET),
        ),
        (
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            KeySet((VerificationKey(jwt.PyJWK(RFC_CURVE).key, frozenset({"ES256"})),)),
        ),
    ],
    ids=["HS256", "ES256"],
)
def test_examples_of_rfc_7515_are_valid_until_they_expire(header, signature, keys):
    token = f"{header}.{RFC_CLAIMS}.{signature}"
    outcome = verify(token, keys, now=1300819370, subject_claim="iss")
    assert outcome == VerifiedToken("joe", 10_000)
    assert "expired" in reason(token, keys, now=1300819380, subject_claim="iss")


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        *[(name, PRIVATE) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")],
        ("ES256", ec.generate_private_key(ec.SECP256R1())),
        ("ES384", ec.generate_private_key(ec.SECP384R1())),
        ("ES512", ec.generate_private_key(ec.SECP521R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
        ("EdDSA", ed448.Ed448PrivateKey.generate()),
    ],
)
def test_public_key_verifies_its_algorithms(algorithm, key):
    assert verify(signed(key=key, algorithm=algorithm), public(key)).subject == "alice"


SIGNERS = {
    "RS256": PRIVATE,
    "PS512": PRIVATE,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


@given(
    st.sampled_from(sorted(SIGNERS)),
    st.binary(max_size=300) | st.sampled_from([32, 64, 132, 256]).map(bytes),
)
def test_any_other_signature_is_refused(algorithm, signature):
    """Zeros as well: a Java release accepted them for ECDSA (CVE-2022-21449)."""
    header = segment(json.dumps({"alg": algorithm}).encode())
    token = f"{header}.{segment(b'{}')}.{segment(signature)}"
    assert reason(token, public(SIGNERS[algorithm])) == "the signature of the token is wrong"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_secret_verifies_its_algorithms(algorithm):
    token = signed(key=SECRET, algorithm=algorithm)
    assert verify(token, read_secret_key(SECRET)).subject == "alice"


def test_token_of_another_key_is_refused():
    other = rsa.generate_private_key(65537, 2048)
    assert reason(signed(key=other)) == "the signature of the token is wrong"


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
def test_public_key_is_not_a_secret(encoding):
    """A token signed by HMAC with the public key, which everyone knows."""
    content = PRIVATE.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    header, claims = segment(b'{"alg":"HS256"}'), segment(b'{"sub":"alice"}')
    hmac = jwt.get_algorithm_by_name("HS256").sign(f"{header}.{claims}".encode(), content)
    assert "no key fits" in reason(f"{header}.{claims}.{segment(hmac)}")


def test_secret_does_not_verify_asymmetric_algorithms():
    assert "no key fits" in reason(signed(), read_secret_key(SECRET))


def test_algorithm_of_another_curve_is_refused():
    token = signed(key=ec.generate_private_key(ec.SECP384R1()), algorithm="ES384")
    assert "no key fits" in reason(token, public(ec.generate_private_key(ec.SECP256R1())))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", "RS257", "HS256 "])
def test_unknown_algorithms_are_refused(name):
    header = segment(json.dumps({"alg": name}).encode())
    _, claims, signature = signed().split(".")
    assert reason(f"{header}.{claims}.{signature}")
    assert reason(f"{header}.{claims}.")


def test_unsecured_token_is_valid_only_if_allowed():
    token = unsecured()
    assert "no signature" in reason(token)
    assert verify(token, KeySet(), allows_unsecured=True).subject == "alice"
    assert "has a signature" in reason(f"{token}AAAA", allows_unsecured=True)


def test_signature_stays_required_of_signed_tokens_if_unsecured_ones_are_allowed():
    header, claims, _ = signed().split(".")
    assert reason(f"{header}.{claims}.", allows_unsecured=True)
    assert reason(f"{header}.{claims}.AAAA", allows_unsecured=True)
    assert verify(signed(), allows_unsecured=True).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"exp": NOW}, "expired"),
        ({"exp": NOW - 1}, "expired"),
        ({"nbf": NOW + 1}, "not valid yet"),
        ({"iat": NOW + 1}, "issued in the future"),
        ({"exp": "tomorrow"}, "exp of the token is not a time"),
        ({"exp": True}, "exp of the token is not a time"),
        ({"exp": -1}, "exp of the token is not a time"),
        ({"nbf": [1]}, "nbf of the token is not a time"),
        ({"iat": 10**400}, "iat of the token is not a time"),
    ],
)
def test_token_outside_its_time_is_refused(claims, expected):
    # Encoded without PyJWT's own checks of claims.
    token = jwt.PyJWS().encode(json.dumps({"sub": "alice", **claims}).encode(), PRIVATE, "RS256")
    assert expected in reason(token)


@pytest.mark.parametrize("claims", [{"exp": NOW - 29}, {"nbf": NOW + 29}, {"iat": NOW + 29}])
def test_clock_skew_is_tolerated(claims):
    assert verify(signed(**claims), clock_skew_seconds=30).subject == "alice"
    assert reason(signed(**claims), clock_skew_seconds=28)


def test_lifetime_ends_with_the_token_and_is_never_unlimited():
    assert verify(signed(exp=NOW + 90)).lifetime_ms == 90_000
    assert verify(signed()).lifetime_ms == 0
    assert verify(signed(exp=NOW - 5), clock_skew_seconds=30).lifetime_ms == 1
    assert 0 < verify(signed(exp=1e300)).lifetime_ms < 1 << 63


def test_times_can_be_required_as_in_kafka():
    assert verify(signed(exp=NOW + 1, iat=NOW), requires_times=True).subject == "alice"
    for claims in ({}, {"exp": NOW + 1}, {"iat": NOW}):
        assert "lacks the claim" in reason(signed(**claims), requires_times=True)


def test_issuer_is_compared():
    assert verify(signed(iss="https://id"), issuer="https://id").subject == "alice"
    for claims in ({}, {"iss": "https://id/"}, {"iss": ["https://id"]}):
        assert "issuer" in reason(jwt.PyJWS().encode(
            json.dumps({"sub": "alice", **claims}).encode(), PRIVATE, "RS256"
        ), issuer="https://id")  # fmt: skip


@pytest.mark.parametrize("audience", ["kafka", ["other", "kafka"]])
def test_one_audience_must_be_expected(audience):
    rules = {"audiences": frozenset({"kafka", "gateway"})}
    assert verify(signed(aud=audience), **rules).subject == "alice"
    for other in ("other", ["other"], [], None, {"kafka": 1}, "kafka gateway"):
        assert "audience" in reason(signed(aud=other), **rules)
    assert "audience" in reason(signed(), **rules)


def test_audience_is_read_from_the_configured_claim():
    rules = {"audiences": frozenset({"kafka"}), "audience_claim": "cluster"}
    assert verify(signed(cluster="kafka"), **rules).subject == "alice"
    assert "audience" in reason(signed(aud="kafka"), **rules)


@pytest.mark.parametrize(
    "subject",
    [None, "", "  ", 5, [], [5], {"name": "alice"}, "a" * (MAX_SUBJECT_CHARS + 1), "a\nb", "a\0b"],
)
def test_token_without_a_usable_subject_is_refused(subject):
    token = jwt.PyJWS().encode(json.dumps({"sub": subject}).encode(), PRIVATE, "RS256")
    assert "sub" in reason(token)


def test_subject_is_read_from_the_configured_claim_or_the_head_of_a_list():
    assert verify(signed(client_id="app"), subject_claim="client_id").subject == "app"
    assert verify(signed(roles=["one", "two"]), subject_claim="roles").subject == "one"
    assert "client_id" in reason(signed(), subject_claim="client_id")


@pytest.mark.parametrize("scope", ["a b", ["a", "b"], [], None])
def test_scopes_grant_nothing(scope):
    assert verify(signed(scope=scope), scope_claim="scope").subject == "alice"


@pytest.mark.parametrize("scope", ["", " ", [""], ["a", "a"], ["a", 1]])
def test_malformed_scopes_are_refused_as_in_kafka(scope):
    assert "scopes" in reason(signed(scope=scope), scope_claim="scope")


def test_tenant_is_read_from_its_claim():
    assert verify(signed(tenant="acme/sales"), tenant_claim="tenant").tenant == "acme/sales"
    assert verify(signed(tenant="acme/sales")).tenant is None
    for claims in ({}, {"tenant": ["acme"]}):
        assert "tenant" in reason(signed(**claims), tenant_claim="tenant")


def test_tenant_alone_is_completed():
    assert complete_tenant("acme/sales", "default") == "acme/sales"
    assert complete_tenant("acme", "default") == "acme/default"
    for name in ("", "/", "acme/", "/sales", "a/b/c", "a b", "acme\n", "é"):
        with pytest.raises(AuthenticationFailed):
            complete_tenant(name, "default")


@pytest.mark.parametrize(
    "change",
    [
        lambda h, c, s: f"{h}.{c}",
        lambda h, c, s: f"{h}.{c}.{c}.{s}",
        lambda h, c, s: f"{h}.{h}.{c}.{s}",
        lambda h, c, s: f"{h}.{c}.{s}.{s}",
        lambda h, c, s: f"{h}.{c}.{s}=",
        lambda h, c, s: f" {h}.{c}.{s}",
        lambda h, c, s: f"{h}.{c}.{s}\n",
        lambda h, c, s: f"{h}.{c[:-2]}.{s}",
        lambda h, c, s: f"{h}.{c}.{s[:-4]}",
        lambda h, c, s: f"{h[:-1]}B.{c}.{s}",
        lambda h, c, s: f"{h}..{s}",
        lambda h, c, s: f".{c}.{s}",
        lambda h, c, s: f"{h}.{c}.",
        lambda h, c, s: "." * 3,
        lambda h, c, s: "",
        lambda h, c, s: f"{h}.{c}.{s}".replace(".", ","),
        lambda h, c, s: segment(b"[" * 5000) + f".{c}.{s}",
        lambda h, c, s: segment(b'{"alg":5}') + f".{c}.{s}",
        lambda h, c, s: segment(b'{"alg":"RS256","kid":5}') + f".{c}.{s}",
        lambda h, c, s: segment(b'{"alg":"RS256","crit":["exp"]}') + f".{c}.{s}",
        lambda h, c, s: segment(b'{"alg":"RS256","b64":false,"crit":["b64"]}') + f".{c}.{s}",
    ],
)
def test_malformed_token_is_refused(change):
    assert reason(change(*signed().split(".")))


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"alice", b"\xff", b"[" * 5000, b'{"sub":"\\ud800"}']
)
def test_signed_payload_that_is_no_json_object_is_refused(payload):
    assert reason(jwt.PyJWS().encode(payload, PRIVATE, "RS256"))


def test_huge_token_is_refused():
    assert verify(signed(filler="x" * 10_000)).subject == "alice"
    assert "larger than" in reason(signed(filler="x" * MAX_TOKEN_BYTES))


def test_reasons_have_no_part_of_the_token():
    secret = "c2VjcmV0"
    for token in (secret, f"{secret}.{secret}.{secret}", signed(headers={"kid": secret}), ""):
        assert secret not in reason(token, KeySet())
    for claim in ("sub", "iss", "exp", "aud", "scope"):
        token = jwt.PyJWS().encode(json.dumps({claim: secret}).encode(), PRIVATE, "RS256")
        assert secret not in reason(
            token, issuer="x", audiences=frozenset({"y"}), requires_times=True
        )


class Rotating:
    """Keys that are replaced by the next set when they are renewed."""

    def __init__(self, *sets):
        self.sets = list(sets)
        self.renewals = 0

    def current(self):
        if self.sets[0] is None:
            raise AuthenticationBusy("no keys yet")
        return self.sets[0]

    async def renew(self):
        self.renewals += 1
        if len(self.sets) > 1:
            self.sets.pop(0)


def named(private, key_id):
    (key,) = public(private).keys
    return VerificationKey(key.material, key.algorithms, key_id)


def test_unknown_key_id_renews_the_keys_once():
    new = rsa.generate_private_key(65537, 2048)
    keys = Rotating(
        KeySet((named(PRIVATE, "old"),)), KeySet((named(PRIVATE, "old"), named(new, "new")))
    )
    assert verify(signed({"kid": "old"}), keys).subject == "alice"
    assert keys.renewals == 0
    assert verify(signed({"kid": "new"}, new), keys).subject == "alice"
    assert keys.renewals == 1
    assert "no key fits" in reason(signed({"kid": "other"}), keys)
    assert keys.renewals == 2


def test_wrong_signature_and_missing_key_id_do_not_renew_the_keys():
    keys = Rotating(KeySet((named(PRIVATE, "old"),)))
    other = rsa.generate_private_key(65537, 2048)
    assert reason(signed({"kid": "old"}, other), keys)
    assert reason(signed(key=SECRET, algorithm="HS256"), keys)
    assert keys.renewals == 0


def test_token_without_key_id_is_tried_with_several_keys():
    others = [named(rsa.generate_private_key(65537, 2048), "a")]
    assert verify(signed(), KeySet((*others, named(PRIVATE, "b")))).subject == "alice"


def test_clients_retry_while_keys_are_missing():
    with pytest.raises(AuthenticationBusy):
        verify(signed(), Rotating(None))


CLAIMS = st.dictionaries(
    st.sampled_from(["sub", "exp", "nbf", "iat", "iss", "aud", "scope", "tenant"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.lists(st.text(max_size=3) | st.integers(), max_size=3),
)  # fmt: skip
PARTS = (
    st.binary(max_size=60)
    | CLAIMS.map(lambda claims: json.dumps(claims).encode())
    | st.dictionaries(
        st.sampled_from(["alg", "kid", "crit", "b64", "zip", "typ"]),
        st.sampled_from(["RS256", "HS256", "none", "b64", False, None, 1, ["b64"], "x"]),
    ).map(lambda header: json.dumps(header).encode())
)


@given(
    st.text(max_size=80)
    | st.lists(PARTS, min_size=2, max_size=4).map(lambda parts: ".".join(map(segment, parts)))
    | PARTS.map(lambda part: f"{segment(part)}.{segment(part)}.")
    | CLAIMS.map(lambda c: jwt.PyJWS().encode(json.dumps(c).encode(), SECRET, "HS256"))
)
def test_any_token_is_accepted_or_refused(token):
    rules = {"scope_claim": "scope", "allows_unsecured": True}
    for keys in (PUBLIC, read_secret_key(SECRET)):
        try:
            verified = verify(token, keys, **rules)
        except AuthenticationFailed:
            continue
        assert verified.subject.encode()
        assert 0 <= verified.lifetime_ms < 1 << 63
