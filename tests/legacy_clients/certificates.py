"""An authority and a server certificate for 127.0.0.1 that every client's TLS accepts: RSA and SHA-256, an address in the alternative names."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: what clients trust, what the server shows, its PKCS#8 key, and both of these in one for Kafka."""

    authority: Path
    chain: Path
    key: Path
    key_and_chain: Path


def make(folder: Path) -> Certificates:
    """Writes the four files into the folder."""
    ca_key, server_key = _key(), _key()
    ca_name = _name("kopgate test authority")
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    ca = _unsigned(ca_name, ca_name, ca_key).add_extension(constraints, critical=True).sign(ca_key, hashes.SHA256())
    # Python 2.7 looks for an address among the host names.
    names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("127.0.0.1"), x509.DNSName("localhost")]
    here = x509.SubjectAlternativeName(names)
    server = _unsigned(_name("127.0.0.1"), ca_name, server_key).add_extension(here, critical=False).sign(ca_key, hashes.SHA256())
    chain = server.public_bytes(Encoding.PEM) + ca.public_bytes(Encoding.PEM)
    key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made = Certificates(folder / "ca.pem", folder / "chain.pem", folder / "key.pem", folder / "key-and-chain.pem")
    for file, text in (
        (made.authority, ca.public_bytes(Encoding.PEM)),
        (made.chain, chain),
        (made.key, key),
        (made.key_and_chain, key + chain),
    ):
        file.touch(0o600)
        file.write_bytes(text)
    return made


def _key() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _unsigned(subject: x509.Name, issuer: x509.Name, key: RSAPrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - DAY).not_valid_after(now + DAY)
