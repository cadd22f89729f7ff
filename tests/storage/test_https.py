"""Names in certificates; the rest is tested with real servers, for Pulsar's admin API."""

from __future__ import annotations

import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from storage.https import matches_host


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
