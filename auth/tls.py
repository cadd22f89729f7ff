"""The server's side of TLS: a pyOpenSSL context from files, made anew when they change.

`TlsContextFactory` has the one method, `serverConnectionForTLS`, that Twisted asks of what makes a server's connections; nothing else here knows of Twisted.
Existing connections keep the certificate that they began with.
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

Key = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]

RECHECK_SECONDS = 1.0
"""How often a new connection looks whether the files changed."""

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

# CBC suites stay: they are all that Java 7 has. What nobody needs is out.
_CIPHERS = b"DEFAULT:!aNULL:!eNULL:!EXPORT:!RC4:!3DES:!MD5:!PSK:!SRP"
_OLD_CIPHERS = _CIPHERS + b":@SECLEVEL=0"
"""TLS 1.0 and 1.1 sign with SHA-1, which OpenSSL allows at level 0 only."""


class TlsError(Exception):
    """The files cannot be used. The message says which and what is wrong, and no secret."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate, key and authorities are (PEM), and what is asked of a client."""

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
    """Makes the server's side of connections. `clock` gives seconds; `on_problem` is told when changed files cannot be used (the old ones then serve on).

    Raises TlsError when the files cannot be used at the start.
    """

    def __init__(
        self, files: TlsFiles, clock: Callable[[], float], on_problem: Callable[[str], None]
    ) -> None:
        self._files = files
        self._clock = clock
        self._on_problem = on_problem
        self._stamp = _files_stamp(files)
        self._context = build_context(files)
        self._checked_at = clock()

    def serverConnectionForTLS(self, _protocol: object) -> SSL.Connection:
        """A new connection on the newest context (Twisted's IOpenSSLServerConnectionCreator)."""
        return SSL.Connection(self.context(), None)

    def context(self) -> SSL.Context:
        """The context for a new connection."""
        now = self._clock()
        if now - self._checked_at >= RECHECK_SECONDS:
            self._checked_at = now
            self._reload_if_changed()
        return self._context

    def _reload_if_changed(self) -> None:
        stamp = _files_stamp(self._files)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._context = build_context(self._files)
        except TlsError as error:
            # Certificate and key are two files: between the writing of one and of the other they do not fit, and the next look finds them whole.
            self._on_problem(f"{error}; the certificates stay as they were")


def build_context(files: TlsFiles) -> SSL.Context:
    """A context for servers. Raises TlsError."""
    chain = _certificates(files.certificate)
    key = _key(files.key, files.key_password)
    if _public(key) != _public(chain[0]):
        raise TlsError(
            f"{files.key}: is not the key of the first certificate in {files.certificate}"
        )
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    try:
        context.use_certificate(chain[0])
        for certificate in chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error as error:
        raise TlsError(f"{files.certificate}: OpenSSL refuses it: {_reason(error)}") from None
    context.set_min_proto_version(_VERSIONS[files.min_version])
    context.set_cipher_list(_OLD_CIPHERS if files.min_version in ("TLSv1", "TLSv1.1") else _CIPHERS)
    context.set_options(
        SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION
    )
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # 34 KB less for each idle connection
    context.set_session_id(
        b"kopgate"
    )  # without one, a resumed session with a client certificate is refused
    _request_client_certificates(context, files)
    return context


def principal_of(certificate: x509.Certificate | None) -> Principal | None:
    """Whom a client certificate names, as Kafka's default rule does: `User:` and the subject as RFC 2253 writes it. None for no certificate."""
    return None if certificate is None else Principal("User", certificate.subject.rfc4514_string())


def _request_client_certificates(context: SSL.Context, files: TlsFiles) -> None:
    if files.client_auth == "none":
        return
    if files.authorities is None:
        raise TlsError("client certificates are asked for, but no file of authorities is set")
    for authority in _certificates(files.authorities):
        context.add_client_ca(authority)
    context.load_verify_locations(os.fspath(files.authorities))
    context.set_verify(_MODES[files.client_auth])


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(path))
    except ValueError:
        raise TlsError(f"{path}: no certificates in PEM (-----BEGIN CERTIFICATE-----)") from None


def _key(path: Path, password_file: Path | None) -> Key:
    password = (
        None if password_file is None else _read(password_file).split(b"\n", 1)[0].rstrip(b"\r")
    )
    try:
        key = load_pem_private_key(_read(path), password)
    except TypeError:
        wrong = (
            "is encrypted; name the file of its pass phrase"
            if password is None
            else "is not encrypted, but a pass phrase is set"
        )
        raise TlsError(f"{path}: the key {wrong} (ssl_key_password_file)") from None
    except (ValueError, UnsupportedAlgorithm):
        wrong = (
            "no private key in PEM (-----BEGIN PRIVATE KEY-----)"
            if password is None
            else "no private key in PEM that this pass phrase opens"
        )
        raise TlsError(f"{path}: {wrong}") from None
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey):
        raise TlsError(
            f"{path}: a key that Kafka clients cannot use; RSA and EC are what all of them know"
        )
    return key


def _public(holder: Key | x509.Certificate) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from None


def _files_stamp(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    return [_file_stamp(path) for path in files.paths()]


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: SSL.Error) -> str:
    return (
        "; ".join(str(item[-1]) for item in (error.args[0] if error.args else []))
        or "unknown reason"
    )
