"""SASL GSSAPI: RFC 4752 with the rules of the JDK's GssKrb5Server, which Kafka uses.

The security context is a fake; tests/peers/security/test_kerberos_clients.py has real ones.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.gssapi_mechanism import MAX_CONTEXT_TOKENS, GssapiMechanism
from auth.kerberos_names import KerberosRules
from auth.mechanism import AuthenticationBusy, AuthenticationFailed, Principal, SaslOutcome

#: What Kafka 3.9.2 offers: no security layer, and 65,536 bytes.
OFFER = b"\x01\x01\x00\x00"


class FakeContext:
    """Answers `tokens` in turn, and then is established. Wrapped messages have brackets."""

    def __init__(self, *answers, peer="alice@R"):
        self.answers = list(answers)
        self.seen = []
        self.is_established = False
        self.peer = peer

    def accept(self, token):
        self.seen.append(token)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.is_established = not self.answers
        return answer

    def wrap(self, message):
        assert self.is_established
        return b"[" + message + b"]"

    def unwrap(self, token):
        assert self.is_established
        if token[:1] != b"[" or token[-1:] != b"]" or len(token) < 2:
            raise AuthenticationFailed("not wrapped")
        return token[1:-1]


class Recording:
    """Runs the work at once, and records the clients' addresses."""

    def __init__(self):
        self.hosts = []

    async def __call__(self, host, work):
        self.hosts.append(host)
        return work()


def exchange(context, run=None):
    rules = KerberosRules(("DEFAULT",), "R")
    return GssapiMechanism(lambda: context, rules, run or Recording()).begin("192.0.2.1")


def respond(one, token):
    return asyncio.run(one.respond(token))


def reason(one, token):
    with pytest.raises(AuthenticationFailed) as caught:
        respond(one, token)
    return caught.value.reason


def at_choice():
    one = exchange(FakeContext(None))
    respond(one, b"token")
    return one


@pytest.mark.parametrize("answer", [None, b""])
def test_context_without_answer_is_answered_with_the_offer(answer):
    run = Recording()
    one = exchange(FakeContext(answer), run)
    assert respond(one, b"token") == SaslOutcome(b"[" + OFFER + b"]", None)
    assert run.hosts == ["192.0.2.1"]
    # Nothing is sent after the last token: a client of 0.9 would read it as a reply.
    assert respond(one, b"[\x01\x00\x00\x00]") == SaslOutcome(None, Principal("User", "alice"))
    assert run.hosts == ["192.0.2.1"]


def test_offer_follows_an_empty_token_after_mutual_authentication():
    one = exchange(FakeContext(b"answer"))
    assert respond(one, b"token") == SaslOutcome(b"answer", None)
    assert respond(one, b"") == SaslOutcome(b"[" + OFFER + b"]", None)
    assert respond(one, b"[" + OFFER + b"]").principal == Principal("User", "alice")


def test_context_may_need_several_tokens():
    context = FakeContext(b"one", None, b"two")
    one = exchange(context)
    assert [respond(one, token).token for token in (b"a", b"b", b"c", b"")] == [
        b"one",
        b"",
        b"two",
        b"[" + OFFER + b"]",
    ]
    assert context.seen == [b"a", b"b", b"c"]


def test_number_of_context_tokens_is_limited():
    one = exchange(FakeContext(*[b"more"] * (MAX_CONTEXT_TOKENS + 1)))
    for _ in range(MAX_CONTEXT_TOKENS):
        respond(one, b"token")
    assert "without a context" in reason(one, b"token")


@pytest.mark.parametrize("authorization_id", [b"alice@R", b"root", b"kafka@localhost", b"\xff"])
def test_authorization_id_is_ignored(authorization_id):
    token = b"[\x01\x00\x00\x00" + authorization_id + b"]"
    assert respond(at_choice(), token).principal == Principal("User", "alice")


def test_choice_among_several_layers_includes_none():
    # As in GssKrb5Server, which checks the offered bits only.
    assert respond(at_choice(), b"[\x07\x00\x00\x00]").principal == Principal("User", "alice")


@pytest.mark.parametrize("layer", [0, 2, 4, 6, 0xFE])
def test_other_security_layer_is_refused(layer):
    assert "requires a security layer" in reason(at_choice(), b"[%c\0\0\0]" % layer)


@pytest.mark.parametrize("choice", [b"", b"\x01", b"\x01\x00\x00"])
def test_short_choice_is_refused(choice):
    assert "too short" in reason(at_choice(), b"[" + choice + b"]")


def test_data_before_the_offer_is_refused():
    one = exchange(FakeContext(b"answer"))
    respond(one, b"token")
    assert "before the server's offer" in reason(one, b"[\x01\x00\x00\x00]")


def test_name_without_rule_is_refused():
    one = exchange(FakeContext(None, peer="alice@OTHER"))
    respond(one, b"token")
    assert "no rule" in reason(one, b"[\x01\x00\x00\x00]")


def test_failed_context_is_finished():
    one = exchange(FakeContext(AuthenticationFailed("clock"), None))
    assert reason(one, b"token") == "clock"
    assert "already finished" in reason(one, b"token")


def test_finished_exchange_is_not_continued():
    one = at_choice()
    respond(one, b"[\x01\x00\x00\x00]")
    assert "already finished" in reason(one, b"[\x01\x00\x00\x00]")


def test_too_many_waiting_logins_are_reported():
    async def is_full(host, work):
        raise AuthenticationBusy("full")

    with pytest.raises(AuthenticationBusy):
        respond(exchange(FakeContext(None), is_full), b"token")


def test_exchanges_have_separate_contexts():
    mechanism = GssapiMechanism(lambda: FakeContext(None), KerberosRules(("DEFAULT",), "R"), None)
    assert mechanism.name == "GSSAPI"
    assert mechanism.begin("a")._context is not mechanism.begin("a")._context


TOKENS = st.binary(max_size=20) | st.binary(max_size=8).map(lambda inner: b"[" + inner + b"]")


@given(
    st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=6),
    st.lists(TOKENS, max_size=10),
)
def test_any_tokens_are_answered_or_refused(answers, tokens):
    one = exchange(FakeContext(*answers))
    for token in tokens:
        try:
            outcome = respond(one, token)
        except AuthenticationFailed:
            assert "already finished" in reason(one, token)
            return
        if outcome.principal is not None:
            assert (outcome.principal, outcome.token) == (Principal("User", "alice"), None)
            assert token[0] == ord("[")
            assert token[1] & 1
