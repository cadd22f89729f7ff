"""A gateway with TLS listeners of all kinds: client certificates, revocation, server names and old
versions. The clients are the standard library's and OpenSSL's.
"""

from __future__ import annotations

import ssl
import struct
import subprocess
import warnings
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import pytest
from cryptography import x509

from tests.testkit.certificates import Authority
from tests.testkit.gateway import Peer, gateway
from tests.testkit.traffic_rows import wait_for_rows

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("tls_listeners")]

#: ApiVersions v0 without a client id.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
LISTENERS = ("SSL", "REQUESTED", "REQUIRED", "MAPPED", "OLD")
RULES = "RULE:^CN=(app[0-9]*),O=Tests$/$1/U"


class Certificates:
    """The files of one gateway and of its clients."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = Authority()
        self.server, self.key = self.authority.sign("server").write(folder, "server")
        self.trusted = self.authority.write(folder)
        self.signed = {name: self.authority.sign(name) for name in ("app1", "other", "revoked")}
        for name, one in self.signed.items():
            one.write(folder, name)
        self.authority.revoke(folder, self.signed["revoked"])
        names = [x509.DNSName("kafka.example.com")]
        certificate, key = self.authority.sign("by name", names).write(folder, "by_name")
        (folder / "by_name.pem").write_bytes(key.read_bytes() + certificate.read_bytes())

    def context(self, client=None, version=None):
        context = ssl.create_default_context(cafile=self.trusted)
        if client is not None:
            context.load_cert_chain(self.folder / f"{client}.crt", self.folder / f"{client}.key")
        if version is not None:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with warnings.catch_warnings():
                # deprecated on purpose
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway")
    files = certificates.folder
    settings = {
        "listener_security_protocol_map": ",".join(f"{name}:SSL" for name in LISTENERS[1:]),
        "traffic_log": folder / "traffic",
        "ssl_certificate_file": certificates.server,
        "ssl_key_file": certificates.key,
        "ssl_ca_file": certificates.trusted,
        "ssl_crl_file": files / "ca.crl",
        "listener.SSL.ssl_server_name_files": files / "by_name.pem",
        "listener.REQUESTED.ssl_client_auth": "requested",
        "listener.REQUIRED.ssl_client_auth": "required",
        "listener.MAPPED.ssl_client_auth": "required",
        "listener.MAPPED.ssl_principal_mapping_rules": RULES,
        "listener.OLD.ssl_min_version": "TLSv1",
    }
    with gateway(folder, listeners=LISTENERS, **settings) as running:
        running.traffic = folder / "traffic"
        yield running


@contextmanager
def connected(server, listener, context):
    """A client that has received an answer."""
    with Peer(server.addresses[listener]) as peer:
        name = peer.name
        with context.wrap_socket(peer.socket, server_hostname="localhost") as wrapped:
            wrapped.sendall(API_VERSIONS)
            answer = wrapped.recv(8)
            if answer[4:8] != b"\0\0\0\x07":
                raise ConnectionError(f"{listener}: closed without an answer")
            wrapped.peer_name = name
            yield wrapped


def is_refused(server, listener, context):
    """Whether the server closes the connection; its log line if it does."""
    begun = len(server.lines())
    with suppress(OSError), connected(server, listener, context):
        return ""
    return "\n".join(server.wait_for_lines(1, f"listener={listener}", after=begun))


def principal_of(server, client):
    port = int(client.peer_name.rpartition(":")[2])
    rows = wait_for_rows(
        server.traffic,
        lambda row: row.get("event") == "authenticated" and row["peer_port"] == port,
    )
    return rows[-1]["principal"]


@pytest.mark.parametrize(
    ("listener", "client", "expected"),
    [
        ("REQUESTED", None, "User:ANONYMOUS"),
        ("REQUESTED", "app1", "User:CN=app1,O=Tests"),
        ("REQUIRED", "other", "User:CN=other,O=Tests"),
        ("MAPPED", "app1", "User:APP1"),
    ],
)
def test_client_certificate_is_the_principal(server, certificates, listener, client, expected):
    with connected(server, listener, certificates.context(client)) as one:
        assert principal_of(server, one) == expected


@pytest.mark.parametrize(
    ("listener", "client", "words"),
    [
        ("REQUIRED", None, "peer did not return a certificate"),
        ("REQUIRED", "revoked", "it is revoked"),
        ("REQUESTED", "revoked", "it is revoked"),
        ("MAPPED", "other", "no rule of ssl_principal_mapping_rules matches CN=other,O=Tests"),
    ],
)
def test_client_is_refused_with_the_reason_in_the_log(
    server, certificates, listener, client, words
):
    assert words in is_refused(server, listener, certificates.context(client))


def test_listeners_without_client_certificates_ignore_the_revocation_list(server, certificates):
    with connected(server, "SSL", certificates.context("revoked")):
        pass


def test_old_tls_version_works_on_its_listener_only(server, certificates):
    old = certificates.context(version=ssl.TLSVersion.TLSv1)
    begun = len(server.lines())
    with connected(server, "OLD", old) as one:
        port = int(one.peer_name.rpartition(":")[2])
        (line,) = server.wait_for_lines(1, "connection uses an old TLS version", after=begun)
        assert "listener=OLD version=TLSv1 cipher=" in line
    rows = wait_for_rows(server.traffic, lambda row: row.get("peer_port") == port and "tls" in row)
    assert {row["tls"] for row in rows} == {"TLSv1"}
    assert "TLS: " in is_refused(server, "SSL", old)
    (line,) = server.wait_for_lines(1, "listener accepts old TLS versions")
    assert "listener=OLD minimum=TLSv1" in line


@pytest.mark.parametrize(
    ("name", "expected"), [("kafka.example.com", "by name"), ("localhost", "server")]
)
def test_openssl_client_gets_the_certificate_of_the_server_name(
    server, certificates, name, expected
):
    host, port = server.addresses["SSL"]
    command = [
        *("openssl", "s_client", "-connect", f"{host}:{port}", "-servername", name),
        *("-CAfile", str(certificates.trusted), "-verify_return_error", "-verify_hostname", name),
    ]
    done = subprocess.run(
        command, check=False, input="", capture_output=True, text=True, timeout=120
    )
    assert f"CN = {expected}" in done.stdout
    assert "Verify return code: 0 (ok)" in done.stdout


def test_changed_files_apply_to_each_listener_without_closing_connections(tmp_path):
    certificates = Certificates(tmp_path)
    settings = {
        "listener_security_protocol_map": "A:SSL,B:SSL",
        "ssl_certificate_file": certificates.server,
        "ssl_key_file": certificates.key,
        "ssl_ca_file": certificates.trusted,
        "ssl_client_auth": "required",
        "listener.B.ssl_crl_file": tmp_path / "ca.crl",
    }
    listeners = ("A", "B")
    app = certificates.context("app1")
    with gateway(tmp_path, listeners=listeners, **settings) as server:
        with connected(server, "A", app) as one, connected(server, "B", app) as two:
            certificates.authority.revoke(tmp_path, certificates.signed["app1"])
            renewed = certificates.authority.sign("renewed")
            renewed.write(tmp_path, "server")
            deadline = monotonic() + 60
            while "it is revoked" not in is_refused(server, "B", app):
                assert monotonic() < deadline
                sleep(0.05)
            subjects = set()
            while ("commonName", "renewed") not in subjects:
                assert monotonic() < deadline
                with connected(server, "A", app) as three:
                    subjects = {pair for rdn in three.getpeercert()["subject"] for pair in rdn}
            for old in (one, two):
                old.sendall(API_VERSIONS)
                assert old.recv(1 << 16)
        assert server.stop() == 0
