"""The Kerberos library with a keytab but without a KDC: what is refused, and how.

tests/peers/security/test_kerberos_clients.py has a KDC and real clients.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auth.kerberos_acceptor import KerberosAcceptor, KerberosError, default_realm
from auth.mechanism import AuthenticationFailed
from tests.legacy_clients.brokers import are_required

if are_required():
    import gssapi  # noqa: F401
else:
    pytest.importorskip("gssapi", reason="install kopgate[gssapi]")

#: RFC 2743, section 3.1, and RFC 4121: the mechanism, and the beginning of a KRB_AP_REQ.
KERBEROS = bytes.fromhex("06092a864886f71201020201006e")


def keytab(*names: str) -> bytes:
    """A keytab (version 0x0502) with a key of zeros for each SERVICE/HOST of realm EXAMPLE.COM."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    entries = []
    for name in names:
        parts = name.split("/")
        entry = struct.pack(">H", len(parts)) + text("EXAMPLE.COM") + b"".join(map(text, parts))
        # Name type 1, time, version 1 of the key, type 18 (aes256-cts-hmac-sha1-96), key.
        entry += struct.pack(">iIBHH", 1, 0, 1, 18, 32) + bytes(32)
        entries.append(struct.pack(">i", len(entry)) + entry)
    return b"\x05\x02" + b"".join(entries)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "krb5.conf"
    file.write_text("[libdefaults]\n  default_realm = EXAMPLE.COM\n  dns_lookup_realm = false\n")
    monkeypatch.setenv("KRB5_CONFIG", str(file))
    monkeypatch.setenv("KRB5RCACHENAME", f"file2:{tmp_path / 'replays'}")
    return file


@pytest.fixture
def acceptor(tmp_path: Path) -> KerberosAcceptor:
    file = tmp_path / "keytab"
    file.write_bytes(keytab("http/a.example.com", "kafka/b.example.com"))
    return KerberosAcceptor("kafka", file)


def test_default_realm_is_that_of_the_configuration(config: Path) -> None:
    assert default_realm() == "EXAMPLE.COM"
    config.write_text("[libdefaults]\n  dns_lookup_realm = false\n")
    assert default_realm() == ""


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "not found"),
        (b"", "keytab"),
        (b"text", "Unsupported key table format version number"),
        (keytab(), "No key table entry found matching kafka/"),
        (keytab("http/a.example.com"), "No key table entry found matching kafka/"),
        (keytab("kafkas/a.example.com"), "No key table entry found matching kafka/"),
    ],
)
def test_unusable_keytab_is_refused_at_start(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    file = tmp_path / "keytab"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(KerberosError) as caught:
        KerberosAcceptor("kafka", file)
    assert problem in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"", "the token is not a Kerberos token"),
        (b"\0alice\0password", "Kerberos: Invalid token was supplied"),
        # SPNEGO (RFC 4178).
        (bytes.fromhex("600806062b0601050502"), "the token is not a Kerberos token"),
    ],
)
def test_other_token_is_refused(acceptor: KerberosAcceptor, token: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        acceptor.make_context().accept(token)
    assert caught.value.reason == reason


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.booleans())
def test_any_token_is_refused(acceptor: KerberosAcceptor, tail: bytes, has_header: bool) -> None:
    token = tail
    if has_header:
        size = len(KERBEROS) + len(tail)
        token = b"\x60\x82" + struct.pack(">H", size) + KERBEROS + tail
    context = acceptor.make_context()
    with pytest.raises(AuthenticationFailed):
        context.accept(token)
    assert not context.is_established


def test_missing_library_is_reported_with_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(KerberosError, match=r"pip install 'kopgate\[gssapi\]'.*libkrb5-dev"):
        KerberosAcceptor("kafka", tmp_path / "keytab")
