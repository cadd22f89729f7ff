"""Principals and outcomes: what is printed and what is hidden."""

from __future__ import annotations

from auth.mechanism import ANONYMOUS, Principal, SaslOutcome


def test_principal_prints_in_kafka_format():
    assert str(Principal("User", "alice")) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


def test_outcome_repr_hides_token():
    assert "s3cret" not in repr(SaslOutcome(b"s3cret", None))
