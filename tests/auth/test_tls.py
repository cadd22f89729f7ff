"""TLS: handshakes with the standard library's client, and each kind of unusable file."""

from __future__ import annotations

import contextlib
import ssl
import warnings
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed448
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import SSL

from auth.certificate_principals import PrincipalRules
from auth.mechanism import ANONYMOUS, Principal
from auth.tls import TlsContextFactory, TlsError, TlsFiles, build_context, rejection_reason
from tests.testkit.certificates import Authority


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def server(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def client(authority):
    return authority.sign("client")


@pytest.fixture
def files(tmp_path, authority, server):
    certificate, key = server.write(tmp_path, "server")
    return TlsFiles(certificate, key, authorities=authority.write(tmp_path))


def trusting(files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.authorities)
    return context


def shake(context, client_context, server_name="localhost"):
    """Handshake in memory and exchange one message each way; return the client object and the
    server connection.
    """
    server = SSL.Connection(context, None)
    server.set_accept_state()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(incoming, outgoing, server_hostname=server_name)

    def step(act, waits_for):
        try:
            act()
        except waits_for:
            return False
        finally:
            if outgoing.pending:
                server.bio_write(outgoing.read())
            with contextlib.suppress(SSL.WantReadError):
                incoming.write(server.bio_read(1 << 16))
        return True

    for _ in range(10):
        client_done = step(client.do_handshake, ssl.SSLWantReadError)
        if step(server.do_handshake, SSL.WantReadError) and client_done:
            break
    server.send(b"hello")
    incoming.write(server.bio_read(1 << 16))
    assert client.read(5) == b"hello"
    return client, server


def test_client_trusting_the_authority_connects(files):
    client, _ = shake(build_context(files), trusting(files))
    assert client.version() == "TLSv1.3"


def test_default_minimum_version_is_tls_1_2(files):
    old = trusting(files)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(build_context(files), old)[0].version() == "TLSv1.2"
    with pytest.raises((ssl.SSLError, SSL.Error)):
        shake(build_context(files), older(files, ssl.TLSVersion.TLSv1_1))


def older(files, version):
    context = trusting(files)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        # deprecated on purpose
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize(
    ("name", "version"), [("TLSv1", ssl.TLSVersion.TLSv1), ("TLSv1.1", ssl.TLSVersion.TLSv1_1)]
)
def test_old_tls_versions_work_if_allowed(files, name, version):
    assert (
        shake(build_context(replace(files, min_version=name)), older(files, version))[0].version()
        == name
    )


def test_java_7_cipher_suite_works(files):
    java_7 = trusting(files)
    java_7.maximum_version = ssl.TLSVersion.TLSv1_2
    java_7.set_ciphers("ECDHE-RSA-AES128-SHA256")
    assert shake(build_context(files), java_7)[0].cipher()[0] == "ECDHE-RSA-AES128-SHA256"


def test_certificate_chain_is_sent(files, tmp_path):
    other = Authority("Other")
    files.certificate.write_bytes(
        files.certificate.read_bytes() + other.certificate.public_bytes(Encoding.PEM)
    )
    client, _ = shake(build_context(files), trusting(files))
    # since Python 3.13
    if hasattr(client, "get_unverified_chain"):
        assert len(client.get_unverified_chain()) == 2


def with_certificate(context, signed, tmp_path):
    context.load_cert_chain(*signed.write(tmp_path, "client"))
    return context


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_client_certificate_determines_principal(files, client, tmp_path, client_auth):
    _, connection = shake(
        build_context(replace(files, client_auth=client_auth)),
        with_certificate(trusting(files), client, tmp_path),
    )
    certificate = connection.get_peer_certificate(as_cryptography=True)
    assert PrincipalRules().principal(certificate) == Principal("User", "CN=client,O=Tests")


def test_client_without_certificate_is_anonymous(files):
    _, connection = shake(build_context(replace(files, client_auth="requested")), trusting(files))
    certificate = connection.get_peer_certificate(as_cryptography=True)
    assert PrincipalRules().principal(certificate) == ANONYMOUS


def test_missing_required_client_certificate_is_rejected(files):
    with pytest.raises(SSL.Error):
        shake(build_context(replace(files, client_auth="required")), trusting(files))


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_client_certificate_of_other_authority_is_rejected(files, tmp_path, client_auth):
    stranger = with_certificate(trusting(files), Authority("Other").sign("client"), tmp_path)
    with pytest.raises(SSL.Error):
        shake(build_context(replace(files, client_auth=client_auth)), stranger)


def test_encrypted_key_is_loaded_with_its_passphrase(files, server, tmp_path):
    server.write(tmp_path, "server", password=b"s3cret")
    phrase = tmp_path / "phrase"
    phrase.write_bytes(b"s3cret\r\nnot this\n")
    shake(build_context(replace(files, key_password=phrase)), trusting(files))


def complaint(files):
    with pytest.raises(TlsError) as caught:
        build_context(files)
    return str(caught.value)


def test_encrypted_key_without_passphrase_is_an_error(files, server, tmp_path):
    server.write(tmp_path, "server", password=b"s3cret")
    assert complaint(files) == (
        f"{files.key}: the key is encrypted: set the file with its passphrase "
        "(ssl_key_password_file)"
    )


def test_wrong_passphrase_is_reported_but_not_shown(files, server, tmp_path):
    server.write(tmp_path, "server", password=b"right")
    phrase = tmp_path / "phrase"
    phrase.write_bytes(b"wr0ng\n")
    text = complaint(replace(files, key_password=phrase))
    assert text.startswith(f"{files.key}: ")
    assert "wr0ng" not in text


def test_passphrase_for_unencrypted_key_is_an_error(files, tmp_path):
    phrase = tmp_path / "phrase"
    phrase.write_bytes(b"x")
    assert "is not encrypted" in complaint(replace(files, key_password=phrase))


@pytest.mark.parametrize("which", ["certificate", "key", "key_password", "authorities"])
def test_missing_file_is_named_in_error(files, tmp_path, which):
    path = tmp_path / "none"
    assert (
        complaint(replace(files, client_auth="required", **{which: path}))
        == f"{path}: No such file or directory"
    )


@pytest.mark.parametrize("which", ["certificate", "key", "authorities"])
@pytest.mark.parametrize(
    "text", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_file_with_other_content_is_named_in_error(files, tmp_path, which, text):
    path = tmp_path / "other"
    path.write_bytes(text)
    assert complaint(replace(files, client_auth="required", **{which: path})).startswith(
        f"{path}: contains no "
    )


def test_key_not_matching_certificate_is_an_error(files, client, tmp_path):
    _, key = client.write(tmp_path, "client")
    assert (
        complaint(replace(files, key=key))
        == f"{key}: does not match the first certificate in {files.certificate}"
    )


def test_key_type_unsupported_by_clients_is_an_error(files, tmp_path):
    path = tmp_path / "ed448.key"
    path.write_bytes(
        ed448.Ed448PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    assert "unsupported key type" in complaint(replace(files, key=path))


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def serial(tls, files):
    client, _ = shake(tls.context(), trusting(files))
    return x509.load_der_x509_certificate(client.getpeercert(binary_form=True)).serial_number


def test_renewed_certificate_is_used_after_recheck_interval(files, authority, tmp_path):
    clock, problems = FakeTime(), []
    tls = TlsContextFactory(files, clock, problems.append)
    before = serial(tls, files)
    renewed = authority.sign("server")
    renewed.write(tmp_path, "server")
    clock.now = 0.5
    assert serial(tls, files) == before
    clock.now = 1.0
    assert serial(tls, files) == renewed.certificate.serial_number
    assert problems == []


def test_half_renewed_pair_is_reported_and_old_certificate_kept(files, authority, tmp_path):
    clock, problems = FakeTime(), []
    tls = TlsContextFactory(files, clock, problems.append)
    before = serial(tls, files)
    old_key = files.key.read_bytes()
    renewed = authority.sign("server")
    renewed.write(tmp_path, "server")
    new_key = files.key.read_bytes()
    files.key.write_bytes(old_key)
    clock.now = 1.0
    assert serial(tls, files) == before
    assert len(problems) == 1
    files.key.write_bytes(new_key)
    clock.now = 2.0
    assert serial(tls, files) == renewed.certificate.serial_number


def test_connection_uses_newest_context(files, authority, tmp_path):
    clock = FakeTime()
    tls = TlsContextFactory(files, clock, lambda problem: None)
    before = tls.serverConnectionForTLS(None).get_context()
    authority.sign("server").write(tmp_path, "server")
    clock.now = 1.0
    after = tls.serverConnectionForTLS(None).get_context()
    assert before is not after
    assert after is tls.context()


def test_unusable_files_prevent_startup(files):
    files.key.unlink()
    with pytest.raises(TlsError):
        TlsContextFactory(files, FakeTime(), lambda problem: None)


# Revoked certificates


def rejected(context, client_context, server_name="localhost", session=None):
    """Shake hands until the server rejects the client certificate; return the reason."""
    server = SSL.Connection(context, None)
    server.set_accept_state()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(
        incoming, outgoing, server_hostname=server_name, session=session
    )
    for _ in range(10):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.bio_write(outgoing.read())
        try:
            server.do_handshake()
        except SSL.WantReadError:
            incoming.write(server.bio_read(1 << 16))
        except SSL.Error:
            return rejection_reason(server)
        else:
            break
    raise AssertionError("accepted")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_revoked_client_certificate_is_rejected(
    files, authority, client, tmp_path, client_auth, version
):
    revoked = authority.sign("revoked")
    context = build_context(
        replace(files, client_auth=client_auth, revocations=authority.revoke(tmp_path, revoked))
    )
    good, bad = (with_certificate(trusting(files), one, tmp_path) for one in (client, revoked))
    good.maximum_version = bad.maximum_version = version
    assert rejection_reason(shake(context, good)[1]) is None
    assert rejected(context, bad) == "it is revoked"


def test_expired_revocation_list_rejects_clients(files, authority, client, tmp_path):
    path = authority.revoke(tmp_path, expires=-timedelta(hours=1))
    context = build_context(replace(files, client_auth="required", revocations=path))
    one = with_certificate(trusting(files), client, tmp_path)
    assert rejected(context, one) == "the revocation list has expired"


def test_authority_without_revocation_list_rejects_clients(files, authority, client, tmp_path):
    other = Authority("Other")
    path = other.revoke(tmp_path)
    context = build_context(replace(files, client_auth="required", revocations=path))
    one = with_certificate(trusting(files), client, tmp_path)
    assert rejected(context, one) == "no revocation list of its authority in ssl_crl_file"
    path.write_bytes(path.read_bytes() + authority.revoke(tmp_path, name="own").read_bytes())
    shake(build_context(replace(files, client_auth="required", revocations=path)), one)


def test_untrusted_authority_is_the_reason_of_a_rejection(files, tmp_path):
    stranger = with_certificate(trusting(files), Authority("Other").sign("client"), tmp_path)
    context = build_context(replace(files, client_auth="required"))
    assert rejected(context, stranger) == "its authority is not in ssl_ca_file"


def test_changed_revocation_list_applies_to_new_connections(files, authority, client, tmp_path):
    clock, problems = FakeTime(), []
    files = replace(files, client_auth="required", revocations=authority.revoke(tmp_path))
    tls = TlsContextFactory(files, clock, problems.append)
    one = with_certificate(trusting(files), client, tmp_path)
    _, before = shake(tls.context(), one)
    authority.revoke(tmp_path, client)
    clock.now = 1.0
    assert rejected(tls.context(), one) == "it is revoked"
    before.send(b"an open connection stays open")
    assert problems == []


def test_session_of_revoked_client_is_not_resumed(files, authority, client, tmp_path):
    clock = FakeTime()
    files = replace(files, client_auth="required", revocations=authority.revoke(tmp_path))
    tls = TlsContextFactory(files, clock, lambda problem: None)
    one = with_certificate(trusting(files), client, tmp_path)
    one.maximum_version = ssl.TLSVersion.TLSv1_2
    session = shake(tls.context(), one)[0].session
    authority.revoke(tmp_path, client)
    clock.now = 1.0
    assert rejected(tls.context(), one, session=session) == "it is revoked"


def test_changed_authorities_apply_to_new_connections(files, client, tmp_path):
    clock, other = FakeTime(), Authority("Other")
    trusted = trusting(files)
    tls = TlsContextFactory(replace(files, client_auth="required"), clock, lambda problem: None)
    stranger = with_certificate(trusted, other.sign("client"), tmp_path)
    assert rejected(tls.context(), stranger) == "its authority is not in ssl_ca_file"
    other.write(tmp_path)
    clock.now = 1.0
    shake(tls.context(), stranger)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "contains no PEM revocation list"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "malformed revocation list"),
    ],
)
def test_file_without_revocation_list_is_named_in_error(files, tmp_path, text, words):
    path = tmp_path / "other"
    path.write_bytes(text)
    text = complaint(replace(files, client_auth="required", revocations=path))
    assert text.startswith(f"{path}: ")
    assert words in text


# Several certificates


def named(authority, tmp_path, *names):
    """Write a key and its certificate for these names to one file."""
    signed = authority.sign(names[0], [x509.DNSName(name) for name in names])
    certificate, key = signed.write(tmp_path, names[0].replace("*", "any"))
    path = certificate.with_suffix(".pem")
    path.write_bytes(key.read_bytes() + certificate.read_bytes())
    return path


def certificate_for(context, files, server_name):
    client_context = trusting(files)
    client_context.check_hostname = False
    server = SSL.Connection(context, None)
    server.set_accept_state()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    for _ in range(10):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        server.bio_write(outgoing.read())
        with contextlib.suppress(SSL.WantReadError):
            server.do_handshake()
        with contextlib.suppress(SSL.WantReadError):
            incoming.write(server.bio_read(1 << 16))
        if client.version() and client.getpeercert():
            break
    return dict(pair for rdn in client.getpeercert()["subject"] for pair in rdn)["commonName"]


def test_certificate_is_selected_by_server_name(files, authority, tmp_path):
    files = replace(
        files,
        by_name=(
            named(authority, tmp_path, "kafka.example.com", "localhost"),
            named(authority, tmp_path, "*.old.example.com", "kafka.example.com"),
        ),
    )
    context = build_context(files)
    found = {
        name: certificate_for(context, files, name)
        for name in (
            "kafka.example.com",
            "KAFKA.example.com",
            "a.old.example.com",
            "a.b.old.example.com",
            "old.example.com",
            "unknown",
            "localhost",
            None,
        )
    }
    assert found == {
        "kafka.example.com": "kafka.example.com",
        "KAFKA.example.com": "kafka.example.com",
        "a.old.example.com": "*.old.example.com",
        "a.b.old.example.com": "server",
        "old.example.com": "server",
        "unknown": "server",
        # A name in the general certificate has that certificate.
        "localhost": "server",
        None: "server",
    }


def test_certificate_selected_by_name_has_same_policy(files, authority, client, tmp_path):
    revoked = authority.sign("revoked")
    files = replace(
        files,
        client_auth="required",
        revocations=authority.revoke(tmp_path, revoked),
        by_name=(named(authority, tmp_path, "kafka.example.com"),),
    )
    context = build_context(files)
    good, bad = (with_certificate(trusting(files), one, tmp_path) for one in (client, revoked))
    good.check_hostname = bad.check_hostname = False
    for one, name in ((good, "kafka.example.com"), (good, "localhost")):
        shake(context, one, name)
    assert rejected(context, bad, "kafka.example.com") == "it is revoked"
    with pytest.raises(SSL.Error):
        shake(context, trusting(files), "kafka.example.com")


def test_changed_certificate_of_a_name_is_used(files, authority, tmp_path):
    clock = FakeTime()
    path = named(authority, tmp_path, "kafka.example.com")
    tls = TlsContextFactory(replace(files, by_name=(path,)), clock, lambda problem: None)
    renewed = named(authority, tmp_path, "kafka2.example.com", "kafka.example.com")
    path.write_bytes(renewed.read_bytes())
    clock.now = 1.0
    assert certificate_for(tls.context(), files, "kafka.example.com") == "kafka2.example.com"


def test_unusable_certificate_of_a_name_is_named_in_error(files, authority, tmp_path):
    path = named(authority, tmp_path, "kafka.example.com")
    key, certificate = tmp_path / "kafka.example.com.key", tmp_path / "kafka.example.com.crt"
    path.write_bytes(certificate.read_bytes())
    assert complaint(replace(files, by_name=(path,))).startswith(f"{path}: contains no PEM private")
    path.write_bytes(key.read_bytes())
    assert complaint(replace(files, by_name=(path,))).startswith(f"{path}: contains no PEM cert")
    path.write_bytes(files.key.read_bytes() + certificate.read_bytes())
    assert "does not match" in complaint(replace(files, by_name=(path,)))
    signed = authority.sign("no names", [])
    certificate, key = signed.write(tmp_path, "none")
    path.write_bytes(key.read_bytes() + certificate.read_bytes())
    assert "no DNS name" in complaint(replace(files, by_name=(path,)))
