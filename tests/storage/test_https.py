"""Certificates and errors; the rest is tested with real servers, for Pulsar's admin API."""

from __future__ import annotations

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed

from storage.https import describe_error, matches_host, read_certificates
from storage.log import StorageFailed
from tests.testkit.certificates import Authority


def names_in(*names: x509.GeneralName) -> x509.Certificate:
    """A certificate with these names; without names it lacks the extension."""
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pulsar.example.com")])
    day = datetime.timedelta(days=1)
    key = rsa.generate_private_key(65537, 2048)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own)
        .public_key(key.public_key())
        .serial_number(1)
    )
    builder = builder.not_valid_before(datetime.datetime.now(datetime.UTC) - day).not_valid_after(
        datetime.datetime.now(datetime.UTC) + day
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256())


@pytest.mark.parametrize(
    ("names", "hosts"),
    [
        ([], []),
        ([x509.DNSName("pulsar.example.com")], ["pulsar.example.com"]),
        ([x509.DNSName("*.example.com")], ["pulsar.example.com", "other.example.com"]),
        ([x509.DNSName("127.0.0.1")], []),
        ([x509.DNSName("127.0.0.1"), x509.DNSName("other.example.com")], ["other.example.com"]),
        (
            [
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                x509.IPAddress(ipaddress.ip_address("::1")),
            ],
            ["127.0.0.1", "::1"],
        ),
        (
            [
                x509.RFC822Name("a@pulsar.example.com"),
                x509.UniformResourceIdentifier("https://pulsar.example.com"),
            ],
            [],
        ),
    ],
)
def test_certificate_matches_only_its_names(
    names: list[x509.GeneralName], hosts: list[str]
) -> None:
    certificate = names_in(*names)
    asked = [
        "pulsar.example.com",
        "other.example.com",
        "deep.pulsar.example.com",
        "example.com",
        "127.0.0.1",
        "127.0.0.2",
        "::1",
    ]
    assert [host for host in asked if matches_host(certificate, host)] == hosts


def test_certificates_of_a_file_are_read_in_order(tmp_path):
    authority = Authority()
    own, _ = authority.sign("server").write(tmp_path, "server")
    both = tmp_path / "both.pem"
    both.write_bytes(b"# the server\n" + own.read_bytes() + authority.write(tmp_path).read_bytes())
    subjects = [one.original.to_cryptography().subject for one in read_certificates(both)]
    assert [len(subjects), subjects[0] == subjects[1]] == [2, False]
    assert subjects[0] == x509.load_pem_x509_certificate(own.read_bytes()).subject


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        (b"", "no readable PEM certificate"),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "no readable PEM certificate",
        ),
    ],
)
def test_file_without_certificates_is_refused(tmp_path, content, reason):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StorageFailed, match=f"ca.pem .*{reason}"):
        read_certificates(file)


def test_error_is_described_by_its_reasons_or_its_name():
    wrapping = ResponseFailed([Failure(OSError("refused")), Failure(OSError("refused"))])
    assert describe_error(wrapping) == "refused"
    assert describe_error(ValueError()) == "ValueError"
