"""Server-side TLS: a pyOpenSSL context from files, reloaded when they change.

`TlsContextFactory` implements Twisted's IOpenSSLServerConnectionCreator; nothing else here depends
on Twisted. Existing connections keep the certificate they started with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from OpenSSL import SSL

from auth.mechanism import Principal
from auth.watched_files import WatchedFiles

Key = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]

RECHECK_SECONDS = 1.0
"""Minimum interval between checks for changed files; checked when a connection is opened."""

_VERSIONS = {
    "TLSv1": SSL.TLS1_VERSION,
    "TLSv1.1": SSL.TLS1_1_VERSION,
    "TLSv1.2": SSL.TLS1_2_VERSION,
    "TLSv1.3": SSL.TLS1_3_VERSION,
}
_MODES = {
    "none": SSL.VERIFY_NONE,
    "requested": SSL.VERIFY_PEER,
    "required": SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT,
}

# CBC suites stay enabled: Java 7 has no others.
_CIPHERS = b"DEFAULT:!aNULL:!eNULL:!EXPORT:!RC4:!3DES:!MD5:!PSK:!SRP"
_OLD_CIPHERS = _CIPHERS + b":@SECLEVEL=0"
"""TLS 1.0 and 1.1 sign with SHA-1, which OpenSSL allows only at security level 0."""


class TlsError(Exception):
    """The files cannot be used. The message names file and problem, and contains no secret.

    `path` is None if the problem is not in one file.
    """

    def __init__(self, problem: str, path: Path | None = None) -> None:
        super().__init__(problem if path is None else f"{path}: {problem}")
        self.path = path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of certificate, key and certificate authorities (PEM), and the policy for client
    certificates.
    """

    certificate: Path
    key: Path
    key_password: Path | None = None
    authorities: Path | None = None
    client_auth: Literal["none", "requested", "required"] = "none"
    min_version: TlsVersion = "TLSv1.2"

    def paths(self) -> Iterator[Path]:
        return (
            path
            for path in (self.certificate, self.key, self.key_password, self.authorities)
            if path is not None
        )


class TlsContextFactory:
    """Creates the server side of TLS connections.

    `clock` returns seconds. `on_problem` is called with a message if changed files cannot be
    loaded; the previous certificates stay in use. Raises TlsError if the files cannot be loaded at
    startup.
    """

    def __init__(
        self, files: TlsFiles, clock: Callable[[], float], on_problem: Callable[[str], None]
    ) -> None:
        self._files = files
        self._on_problem = on_problem
        self._watched = WatchedFiles(files.paths(), clock, RECHECK_SECONDS)
        self._context = build_context(files)

    def serverConnectionForTLS(self, _protocol: object) -> SSL.Connection:
        """Create a connection with the current context (IOpenSSLServerConnectionCreator)."""
        return SSL.Connection(self.context(), None)

    def context(self) -> SSL.Context:
        """The current context, reloaded if the files have changed."""
        if self._watched.changed():
            try:
                self._context = build_context(self._files)
            except TlsError as error:
                # Certificate and key are two files: between two writes they do not match. The next
                # check finds both.
                self._on_problem(f"{error}; keeping the previous certificates")
        return self._context


def build_context(files: TlsFiles) -> SSL.Context:
    """Build a server context. Raises TlsError."""
    chain = _certificates(files.certificate)
    key = _key(files.key, files.key_password)
    if _public(key) != _public(chain[0]):
        raise TlsError(f"does not match the first certificate in {files.certificate}", files.key)
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    try:
        context.use_certificate(chain[0])
        for certificate in chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error as error:
        raise TlsError(f"rejected by OpenSSL: {_reason(error)}", files.certificate) from None
    context.set_min_proto_version(_VERSIONS[files.min_version])
    context.set_cipher_list(_OLD_CIPHERS if files.min_version in ("TLSv1", "TLSv1.1") else _CIPHERS)
    context.set_options(
        SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION
    )
    # Saves 34 KB per idle connection
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    # Without an id, OpenSSL rejects resumed sessions of clients with a certificate.
    context.set_session_id(b"kopgate")
    _request_client_certificates(context, files)
    return context


def principal_of(certificate: x509.Certificate | None) -> Principal | None:
    """The principal of a client certificate, None without one.

    As Kafka's default rule: `User:` and the subject in RFC 2253 form.
    """
    return None if certificate is None else Principal("User", certificate.subject.rfc4514_string())


def _request_client_certificates(context: SSL.Context, files: TlsFiles) -> None:
    if files.client_auth == "none":
        return
    if files.authorities is None:
        raise TlsError(
            "ssl_client_auth needs ssl_ca_file: no file of certificate authorities is set"
        )
    for authority in _certificates(files.authorities):
        context.add_client_ca(authority)
    context.load_verify_locations(os.fspath(files.authorities))
    context.set_verify(_MODES[files.client_auth])


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise TlsError("contains no PEM certificate (-----BEGIN CERTIFICATE-----)", path) from None


def _key(path: Path, password_file: Path | None) -> Key:
    password = (
        None if password_file is None else _read(password_file).split(b"\n", 1)[0].rstrip(b"\r")
    )
    try:
        key = load_pem_private_key(_read(path), password)
    except TypeError:
        wrong = (
            "is encrypted: set the file with its passphrase"
            if password is None
            else "is not encrypted, but a passphrase is set"
        )
        raise TlsError(f"the key {wrong} (ssl_key_password_file)", path) from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = (
            "contains no PEM private key (-----BEGIN PRIVATE KEY-----)"
            if password is None
            else "contains no PEM private key that this passphrase decrypts"
        )
        raise TlsError(wrong, path) from None
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey):
        raise TlsError("unsupported key type, use an RSA or EC key", path)
    return key


def _public(holder: Key | x509.Certificate) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(error.strerror or "cannot be read", path) from None


def _reason(error: SSL.Error) -> str:
    return (
        "; ".join(str(item[-1]) for item in (error.args[0] if error.args else []))
        or "unknown reason"
    )
