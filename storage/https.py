"""What Twisted's HTTP client lacks: a limit on the size of an answer, strict host names, files of
certificates, and readable errors.

Used for Pulsar's admin API and for the key set of an identity provider (decision 032).
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

from cryptography import x509
from OpenSSL.SSL import VERIFY_FAIL_IF_NO_PEER_CERT, VERIFY_PEER
from service_identity import CertificateError, VerificationError
from service_identity.hazmat import DNS_ID, DNSPattern, verify_service_identity
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.ssl import Certificate
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from zope.interface.declarations import classImplements

from storage.log import StorageFailed

declare: Any = classImplements

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class HostCheckingCreator:
    """Creates Twisted's connections, but verifies the certificate's name itself.

    Twisted accepts a connection if its check fails with an unexpected error: for a certificate
    without names, as client certificates often are, or with an invalid name. The holder of any such
    certificate of a trusted authority could impersonate the server.
    """

    def __init__(self, creator: Any, host: str) -> None:
        self._creator = creator
        self._host = host

    def clientConnectionForTLS(self, protocol: Any) -> Any:
        connection = self._creator.clientConnectionForTLS(protocol)

        def check(_: object, certificate: Any, __: int, depth: int, is_good: int) -> bool:
            """Called for each certificate of the chain, the broker's own last."""
            if depth or not is_good:
                return bool(is_good)
            if matches_host(certificate.to_cryptography(), self._host):
                return True
            protocol.failVerification(
                Failure(
                    StorageFailed(
                        f"the certificate presented there is not for {self._host} (subjectAltName)"
                    )
                )
            )
            return False

        connection.set_verify(VERIFY_PEER | VERIFY_FAIL_IF_NO_PEER_CERT, check)
        return connection


declare(HostCheckingCreator, IOpenSSLClientConnectionCreator)


def matches_host(certificate: x509.Certificate, host: str) -> bool:
    """Whether the certificate names that host or address.

    Invalid names, such as an address among the DNS names, match nothing.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        ValueError,
    ):
        return False
    try:
        return ipaddress.ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    return any(_is_name_of(name, host) for name in names.get_values_for_type(x509.DNSName))


def _is_name_of(name: str, host: str) -> bool:
    try:
        verify_service_identity([DNSPattern.from_bytes(name.encode())], [DNS_ID(host)], [])
    except (CertificateError, VerificationError, ValueError):
        return False
    return True


def read_certificates(path: Path) -> list[Certificate]:
    """The certificates of a PEM file in order, at least one. Raises StorageFailed."""
    try:
        found = [Certificate.loadPEM(block) for block in _PEM.findall(path.read_bytes())]
    except OSError as error:
        raise StorageFailed(f"{path} cannot be read: {error.strerror}") from None
    except Exception:  # noqa: BLE001 - OpenSSL's errors have no message
        found = []
    if not found:
        raise StorageFailed(f"{path} contains no readable PEM certificate")
    return found


def describe_error(error: BaseException) -> str:
    """The text of an error, which may wrap several."""
    reasons = getattr(error, "reasons", None)
    if reasons:
        return ", ".join(dict.fromkeys(describe_error(reason.value) for reason in reasons))
    return str(error) or type(error).__name__


class _BodyCollector(Protocol):
    """Collects the body of an answer; cancelling `done` closes the connection."""

    def __init__(self, limit: int, source: str, limit_name: str) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._close_connection())
        self._limit = limit
        self._source = source
        self._limit_name = limit_name
        self._body: bytearray | None = bytearray()

    def dataReceived(self, data: bytes) -> None:
        if self._body is None:
            return
        self._body += data
        if len(self._body) > self._limit:
            self._close_connection()
            self.done.errback(
                StorageFailed(
                    f"an answer of {self._source} exceeds {self._limit} bytes ({self._limit_name})"
                )
            )

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        body, self._body = self._body, None
        if body is None:
            return
        if reason.check(ResponseDone):
            self.done.callback(bytes(body))
        else:
            self.done.errback(
                StorageFailed(f"the connection to {self._source} was lost during an answer")
            )

    def _close_connection(self) -> None:
        self._body = None
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()


def read_body(response: Any, limit: int, source: str, limit_name: str) -> Deferred[bytes]:
    """Return the body of an answer of at most `limit` bytes. Cancelling closes the connection.

    `source` and the name of the limit are for messages. Fails with StorageFailed.
    """
    received = _BodyCollector(limit, source, limit_name)
    response.deliverBody(received)
    return received.done
