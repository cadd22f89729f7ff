"""Certificates for tests: an authority and the certificates that it signs, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
# Clients on Python 3.13 and later reject an authority without it (RFC 5280, 4.2.1.3).
SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: rsa.RSAPrivateKey

    def write(self, folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        key.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return certificate, key


class Authority:
    """Signs certificates for 127.0.0.1, ::1 and localhost that are valid for a day."""

    def __init__(self, common_name: str = "Test Authority") -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._name = _name(common_name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = (
            self._builder(self._name, self._key)
            .add_extension(constraints, critical=True)
            .add_extension(SIGNS, critical=True)
        )
        self.certificate = builder.sign(self._key, hashes.SHA256())

    def write(self, folder: Path, name: str = "ca") -> Path:
        path = folder / f"{name}.crt"
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path

    def sign(
        self, common_name: str = "localhost", names: Sequence[x509.GeneralName] | None = None
    ) -> SignedCertificate:
        """Sign for this machine or for `names`; an empty sequence omits the extension."""
        key = rsa.generate_private_key(65537, 2048)
        # Python 2.7 searches for an IP address among the DNS names.
        hosts = [x509.DNSName("localhost"), x509.DNSName("127.0.0.1")]
        if names is None:
            names = [
                *hosts,
                *(
                    x509.IPAddress(ipaddress.ip_address(address))
                    for address in ("127.0.0.1", "::1")
                ),
            ]
        builder = self._builder(_name(common_name), key)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return SignedCertificate(builder.sign(self._key, hashes.SHA256()), key)

    def revoke(
        self,
        folder: Path,
        *revoked: SignedCertificate,
        name: str = "ca",
        expires: datetime.timedelta = DAY,
    ) -> Path:
        """Write the revocation list of this authority, which replaces the previous one."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * DAY)
            .next_update(now + expires)
        )
        for one in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(one.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        path = folder / f"{name}.crl"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path

    def _builder(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
        )
        builder = (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )
        return builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        ).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
