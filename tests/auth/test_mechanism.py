"""The words of every mechanism: what they show and what they hide."""

from __future__ import annotations

from auth.mechanism import ANONYMOUS, Principal, SaslOutcome


def test_a_principal_is_written_as_kafka_writes_it():
    assert str(Principal("User", "alice")) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_an_outcome_does_not_show_its_token():
    assert "s3cret" not in repr(SaslOutcome(b"s3cret", None))
