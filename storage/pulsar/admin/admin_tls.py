"""TLS to the brokers' admin API; certificate files are reloaded when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.ssl import (
    Certificate,
    PrivateCertificate,
    optionsForClientTLS,
    trustRootFromCertificates,
)
from twisted.web.iweb import IPolicyForHTTPS

from auth.watched_files import WatchedFiles
from storage.https import HostCheckingCreator, declare, read_certificates
from storage.log import StorageFailed
from storage.pulsar.settings import PulsarSettings


class AdminTls:
    """Creates TLS connections that verify the broker's certificate and host name; this cannot be
    disabled.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        self._trust = settings.tls_trust_file
        self._certificate = settings.tls_certificate_file
        self._key = settings.tls_key_file
        files = (self._trust, self._certificate, self._key)
        self._watched = WatchedFiles(path for path in files if path)
        self._loaded: dict[str, Any] | None = None

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        """The connection creator for that host (Twisted's IPolicyForHTTPS).

        Raises StorageFailed if a file cannot be used.
        """
        host = hostname.decode("ascii")
        return HostCheckingCreator(optionsForClientTLS(host, **self._options()), host)

    def _options(self) -> dict[str, Any]:
        if self._watched.changed():
            self._loaded = None
        try:
            if self._loaded is None:
                self._loaded = self._read()
        except OSError as error:
            raise StorageFailed(
                f"TLS to Pulsar's admin API: {error.filename} cannot be read: {error.strerror}"
            ) from None
        return self._loaded

    def _read(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._trust:
            options["trustRoot"] = trustRootFromCertificates(_certificates(self._trust))
        if self._certificate and self._key:
            options["clientCertificate"] = _with_key(self._certificate, self._key)
            options["extraCertificateOptions"] = {
                "extraCertChain": [one.original for one in _certificates(self._certificate)[1:]]
            }
        return options


declare(AdminTls, IPolicyForHTTPS)


def _certificates(path: Path) -> list[Certificate]:
    """The certificates of a PEM file in order, at least one. Raises StorageFailed."""
    try:
        return read_certificates(path)
    except StorageFailed as failure:
        raise StorageFailed(f"TLS to Pulsar's admin API: {failure}") from None


def _with_key(certificate: Path, key: Path) -> PrivateCertificate:
    written = key.read_bytes()
    # Checked first: OpenSSL would ask for the password on the terminal.
    refused = StorageFailed(
        f"TLS to Pulsar's admin API: {key} is not the key of {certificate}, "
        "in PEM and without a password"
    )
    if b"ENCRYPTED" in written:
        raise refused
    try:
        own: PrivateCertificate = PrivateCertificate.loadPEM(
            written + b"\n" + certificate.read_bytes()
        )
    except Exception:  # noqa: BLE001 - OpenSSL's errors have no message
        raise refused from None
    return own
