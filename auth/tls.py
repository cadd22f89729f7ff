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
from OpenSSL import SSL, crypto

from auth.watched_files import WatchedFiles

Key = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey
TlsVersion = Literal["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]

RECHECK_SECONDS = 1.0
"""Minimum interval between checks for changed files; checked when a connection is opened."""

OLD_VERSIONS = frozenset({"TLSv1", "TLSv1.1"})
"""Deprecated by RFC 8996. They need signatures with SHA-1."""

_VERSIONS = {
    "TLSv1": SSL.TLS1_VERSION,
    "TLSv1.1": SSL.TLS1_1_VERSION,
    "TLSv1.2": SSL.TLS1_2_VERSION,
    "TLSv1.3": SSL.TLS1_3_VERSION,
}

#: Why OpenSSL rejected a client certificate, by the code of its verification.
_REJECTIONS = {
    3: "no revocation list of its authority in ssl_crl_file",
    9: "it is not valid yet",
    10: "it has expired",
    11: "the revocation list is not valid yet",
    12: "the revocation list has expired",
    18: "it is self-signed",
    19: "its authority is not in ssl_ca_file",
    20: "its authority is not in ssl_ca_file",
    21: "its authority is not in ssl_ca_file",
    23: "it is revoked",
}
_CRL_BEGINS = b"-----BEGIN X509 CRL-----"
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
    """Paths of certificate, key, certificate authorities and revocation lists (PEM), and the policy
    for client certificates.

    `by_name` are files with another key, certificate and chain each, for clients that ask for a
    name in that certificate.
    """

    certificate: Path
    key: Path
    key_password: Path | None = None
    authorities: Path | None = None
    client_auth: Literal["none", "requested", "required"] = "none"
    min_version: TlsVersion = "TLSv1.2"
    revocations: Path | None = None
    by_name: tuple[Path, ...] = ()

    def paths(self) -> Iterator[Path]:
        yield from self.by_name
        for path in (
            self.certificate,
            self.key,
            self.key_password,
            self.authorities,
            self.revocations,
        ):
            if path is not None:
                yield path


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
    context = _context(files, files.certificate, chain, key)
    if files.by_name:
        _select_by_name(context, _server_names(chain[0]), files)
    return context


def rejection_reason(connection: SSL.Connection) -> str | None:
    """Return why the client certificate was rejected, None if it was not."""
    return connection.get_app_data() if isinstance(connection.get_app_data(), str) else None


def _context(files: TlsFiles, source: Path, chain: list[x509.Certificate], key: Key) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    try:
        context.use_certificate(chain[0])
        for certificate in chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(key)
        context.check_privatekey()
    except SSL.Error as error:
        raise TlsError(f"rejected by OpenSSL: {_reason(error)}", source) from None
    context.set_min_proto_version(_VERSIONS[files.min_version])
    context.set_cipher_list(_OLD_CIPHERS if files.min_version in OLD_VERSIONS else _CIPHERS)
    context.set_options(
        SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_RENEGOTIATION
    )
    # Saves 34 KB per idle connection
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    # Without an id, OpenSSL rejects resumed sessions of clients with a certificate.
    context.set_session_id(b"kopgate")
    _request_client_certificates(context, files)
    return context


def _select_by_name(context: SSL.Context, own_names: set[str], files: TlsFiles) -> None:
    """Let `context` change to the context of another certificate by the client's server name.

    A name in several certificates belongs to the first. A client without a name, or with an unknown
    one, gets the certificate of `context`.
    """
    contexts: dict[str, SSL.Context] = {}
    for path in files.by_name:
        chain, key = _certificates(path), _key(path, None)
        if _public(key) != _public(chain[0]):
            raise TlsError("the key does not match the first certificate", path)
        other = _context(files, path, chain, key)
        names = _server_names(chain[0])
        if not names:
            raise TlsError("the certificate has no DNS name in its subjectAltName", path)
        for name in names:
            contexts.setdefault(name, other)
    for name in own_names:
        contexts[name] = context

    def select(connection: SSL.Connection) -> None:
        asked = (connection.get_servername() or b"").decode("ascii", "replace").lower()
        wildcard = "*." + asked.partition(".")[2]
        chosen = contexts.get(asked, contexts.get(wildcard))
        if chosen is not None and chosen is not context:
            connection.set_context(chosen)

    context.set_tlsext_servername_callback(select)


def _server_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {name.lower() for name in names.get_values_for_type(x509.DNSName)}


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
    if files.revocations is not None:
        _check_revocations(context, files.revocations)
    context.set_verify(_MODES[files.client_auth], _note_rejection)


def _check_revocations(context: SSL.Context, path: Path) -> None:
    """Reject revoked certificates.

    Every authority of a chain needs a list that has not expired; without one OpenSSL rejects the
    client.
    """
    store = context.get_cert_store()
    if store is None:
        raise TlsError("OpenSSL has no certificate store for it", path)
    lists = _read(path).split(_CRL_BEGINS)[1:]
    if not lists:
        raise TlsError("contains no PEM revocation list (-----BEGIN X509 CRL-----)", path)
    for encoded in lists:
        try:
            store.add_crl(x509.load_pem_x509_crl(_CRL_BEGINS + encoded))
        except (ValueError, SSL.Error, crypto.Error):
            raise TlsError("contains a malformed revocation list", path) from None
    store.set_flags(crypto.X509StoreFlags.CRL_CHECK | crypto.X509StoreFlags.CRL_CHECK_ALL)


def _note_rejection(
    connection: SSL.Connection, _certificate: object, code: int, _depth: int, is_valid: int
) -> bool:
    """Keep OpenSSL's decision, and the reason for `rejection_reason`."""
    if not is_valid:
        connection.set_app_data(_REJECTIONS.get(code, f"OpenSSL's verification error {code}"))
    return bool(is_valid)


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
