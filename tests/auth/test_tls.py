"""TLS: handshakes with the standard library's client, and each kind of unusable file."""

from __future__ import annotations

import contextlib
import ssl
import warnings
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed448
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import SSL

from auth.mechanism import Principal
from auth.tls import TlsContextFactory, TlsError, TlsFiles, build_context, principal_of
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


def shake(context, client_context):
    """Handshake in memory and exchange one message each way; return the client object and the
    server connection.
    """
    server = SSL.Connection(context, None)
    server.set_accept_state()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(incoming, outgoing, server_hostname="localhost")

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
    assert principal_of(connection.get_peer_certificate(as_cryptography=True)) == Principal(
        "User", "CN=client,O=Tests"
    )


def test_client_without_certificate_has_no_principal(files):
    _, connection = shake(build_context(replace(files, client_auth="requested")), trusting(files))
    assert principal_of(connection.get_peer_certificate(as_cryptography=True)) is None


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
