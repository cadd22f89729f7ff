"""SCRAM: the examples of RFC 7677 and Kafka's rules, including malformed tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.mechanism import AuthenticationFailed, Principal
from auth.scram import (
    HASHES,
    MAX_TOKEN_BYTES,
    ScramCredential,
    ScramMechanism,
    new_salt,
    readable_salt,
    salt_password,
)

RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_CLIENT, RFC_SERVER = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def credential(mechanism="SCRAM-SHA-256", password="pencil", salt=RFC_SALT, iterations=4096):
    salted = salt_password(mechanism, password, salt, iterations)
    return ScramCredential.of_salted_password(mechanism, salted, salt, iterations)


class KnownCredentials:
    """Credentials in a dict."""

    def __init__(self, **users):
        self.users = users

    def find(self, mechanism, name):
        return self.users.get(name)

    def decoy(self, mechanism, name):
        return ScramCredential(b"decoy" + name.encode(), bytes(32), bytes(32), 4096)


USERS = {mechanism: KnownCredentials(user=credential(mechanism)) for mechanism in HASHES}


def begin(known=None, mechanism="SCRAM-SHA-256", nonce=RFC_SERVER):
    known = known or USERS[mechanism]
    return ScramMechanism(mechanism, lambda: known, lambda: nonce).begin("192.0.2.1")


def respond(exchange, token):
    return asyncio.run(exchange.respond(token.encode() if isinstance(token, str) else token))


def reason(exchange, token):
    with pytest.raises(AuthenticationFailed) as caught:
        respond(exchange, token)
    return caught.value.reason


class ScramClient:
    """A client written from RFC 5802, independent of the code under test."""

    def __init__(self, mechanism="SCRAM-SHA-256", user="user", password="pencil", nonce="abc"):
        self.hash = HASHES[mechanism]
        self.password = password
        self.nonce = nonce
        self.bare = f"n={user},r={nonce}"

    def first(self, header="n,,"):
        return header + self.bare

    def final(self, server_first, *, binding="biws", nonce=None, extensions=""):
        parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
        self.salted = hashlib.pbkdf2_hmac(
            self.hash, self.password.encode(), base64.b64decode(parts["s"]), int(parts["i"])
        )
        unproved = f"c={binding},r={nonce or parts['r']}{extensions}"
        self.message = f"{self.bare},{server_first.decode()},{unproved}".encode()
        key = hmac.digest(self.salted, b"Client Key", self.hash)
        signature = hmac.digest(hashlib.new(self.hash, key).digest(), self.message, self.hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{unproved},p={base64.b64encode(proof).decode()}"

    def verifier(self):
        key = hmac.digest(self.salted, b"Server Key", self.hash)
        return b"v=" + base64.b64encode(hmac.digest(key, self.message, self.hash))


def first_answer(client, exchange, header="n,,"):
    outcome = respond(exchange, client.first(header))
    assert outcome.principal is None
    return outcome.token


def test_exchange_of_rfc_7677():
    exchange = begin()
    first = respond(exchange, f"n,,n=user,r={RFC_CLIENT}")
    assert first.token == (f"r={RFC_CLIENT}{RFC_SERVER},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    final = respond(
        exchange,
        f"c=biws,r={RFC_CLIENT}{RFC_SERVER},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    )
    assert final.token == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert final.principal == Principal("User", "user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("header", ["n,,", "n,a=user,"])
def test_correct_password_authenticates(mechanism, header):
    client, exchange = ScramClient(mechanism), begin(mechanism=mechanism)
    answer = first_answer(client, exchange, header)
    binding = base64.b64encode(header.encode()).decode()
    outcome = respond(exchange, client.final(answer, binding=binding))
    assert outcome.principal == Principal("User", "user")
    assert outcome.token == client.verifier()


def test_names_are_unescaped_utf8():
    client, known = ScramClient(user="Æ=2Cb=3D"), KnownCredentials(**{"Æ,b=": credential()})
    exchange = begin(known)
    answer = first_answer(client, exchange)
    assert respond(exchange, client.final(answer)).principal == Principal("User", "Æ,b=")


def test_unknown_user_fails_like_wrong_password():
    outcomes = []
    for client in (ScramClient(user="carol"), ScramClient(password="wrong")):
        exchange = begin()
        answer = first_answer(client, exchange)
        assert answer.startswith(b"r=abc" + RFC_SERVER.encode())
        assert b",i=4096" in answer
        outcomes.append(reason(exchange, client.final(answer)))
    assert outcomes[0] == outcomes[1] == "wrong user name or password"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("p=tls-unique,,n=user,r=abc", "channel binding"),
        ("y,,n=user,r=abc", "channel binding"),
        ("n,a=admin,n=user,r=abc", "authorization id"),
        ("n,,m=ext,n=user,r=abc", "invalid"),
        ("n,,n=user,r=abc,m=ext", "mandatory"),
        ("n,,n=user,r=abc,tokenauth=true", "delegation tokens"),
        ("n,,n=user,r=abc,tokenauth=TRUE", "delegation tokens"),
        ("n,,n=,r=abc", "invalid"),
        ("n,,n=us=er,r=abc", "invalid"),
        ("n,,n=user,r=", "invalid"),
        ("n,,n=user,r=a\x7fc", "invalid"),
        ("n,,n=user\0,r=abc", "invalid"),
        ("\0user\0pencil", "invalid"),
        ("", "invalid"),
        (b"\xff", "UTF-8"),
        ("n,,n=" + "x" * MAX_TOKEN_BYTES + ",r=abc", "longer"),
    ],
)
def test_first_token_is_refused_without_being_quoted(token, why):
    exchange = begin()
    assert why in (told := reason(exchange, token))
    assert "pencil" not in told
    assert "finished" in reason(exchange, ScramClient().first())


def test_harmless_extensions_are_ignored():
    exchange = begin()
    assert respond(exchange, "n,,n=user,r=abc,x=1,tokenauth=false").token.startswith(b"r=abc")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"nonce": "abc"}, "nonce"),
        ({"nonce": RFC_SERVER}, "nonce"),
        ({"nonce": "abcd" + RFC_SERVER}, "nonce"),
        ({"binding": "eSws"}, "channel binding"),
        ({"binding": base64.b64encode(b"n,a=user,").decode()}, "channel binding"),
        ({"binding": "b"}, "base64"),
    ],
)
def test_changed_final_token_is_refused(changes, why):
    client, exchange = ScramClient(), begin()
    answer = first_answer(client, exchange)
    assert why in reason(exchange, client.final(answer, **changes))
    assert "finished" in reason(exchange, client.final(answer))


def test_final_token_may_contain_the_clients_nonce_twice():
    """As librdkafka sent it until 2.6.0, and Kafka's ScramSaslServer accepts it."""
    client, exchange = ScramClient(), begin()
    answer = first_answer(client, exchange)
    outcome = respond(exchange, client.final(answer, nonce="abcabc" + RFC_SERVER))
    assert outcome.token == client.verifier()
    assert outcome.principal is not None


def test_final_token_of_another_exchange_is_refused():
    client, earlier = ScramClient(), begin(nonce="one")
    token = client.final(first_answer(client, earlier))
    respond(earlier, token)
    later = begin(nonce="two")
    first_answer(client, later)
    assert "nonce" in reason(later, token)


def test_token_after_completed_exchange_is_refused():
    client, exchange = ScramClient(), begin()
    token = client.final(first_answer(client, exchange))
    respond(exchange, token)
    assert "finished" in reason(exchange, token)


def test_server_nonces_differ():
    mechanism = ScramMechanism("SCRAM-SHA-256", lambda: USERS["SCRAM-SHA-256"])
    answers = {respond(mechanism.begin("192.0.2.1"), "n,,n=user,r=abc").token for _ in range(100)}
    assert len(answers) == 100


def test_proof_of_the_other_mechanism_is_refused():
    client = ScramClient("SCRAM-SHA-512")
    exchange = begin(mechanism="SCRAM-SHA-256")
    answer = first_answer(client, exchange)
    assert reason(exchange, client.final(answer)) == "wrong user name or password"


def test_credential_with_too_few_iterations_is_not_used():
    exchange = begin(KnownCredentials(user=credential(iterations=4095)))
    assert reason(exchange, ScramClient().first()) == "wrong user name or password"


def test_token_cut_at_any_byte_is_refused():
    client, shortest = ScramClient(), len("n,,n=user,r=a")
    first = client.first()
    for size in range(len(first)):
        if size < shortest:
            reason(begin(), first[:size])
        else:
            # A shorter nonce is a valid one.
            assert respond(begin(), first[:size]).principal is None
    final = client.final(first_answer(client, begin()))
    for size in range(len(final)):
        exchange = begin()
        first_answer(client, exchange)
        reason(exchange, final[:size])


@given(
    st.lists(
        st.binary(max_size=80)
        | st.text(alphabet="n,a=ruserpci12=\0", max_size=60).map(str.encode)
        | st.sampled_from([b"n,,n=user,r=abc", b"c=biws,r=abc,p=AA=="]),
        max_size=4,
    )
)
def test_no_sequence_of_tokens_gets_in_or_raises_anything_else(tokens):
    exchange = begin()
    for token in tokens:
        try:
            assert respond(exchange, token).principal is None
        except AuthenticationFailed:
            continue


@pytest.mark.parametrize(
    ("entropy", "salt"),
    [
        (
            bytes.fromhex("00" * 15 + "0123456789abcdef0123456789abcdef01"),
            b"h8s5y8zta6g7mcqmekoxn6s5d",
        ),
        (b"\xff" * 32, b"1omfro7zwmumr3umxudzyj6scf"),
        (bytes(32), b"0"),
    ],
)
def test_salt_is_written_as_by_kafkas_tools(entropy, salt):
    """The expected values are those of Java's `BigInteger.toString(36)`."""
    assert readable_salt(entropy) == salt


def test_generated_salts_differ():
    salts = {new_salt() for _ in range(50)}
    assert len(salts) == 50
    assert all(int(salt, 36) < 1 << 130 for salt in salts)


def test_repr_hides_keys():
    text = repr(credential(password="planted"))
    assert text == "ScramCredential(iterations=4096)"
