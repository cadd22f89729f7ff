"""A Pulsar broker with TLS, tokens signed by a secret key, and roles with and without permissions.

It also listens without TLS.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testkit.certificates import Authority
from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import Pulsar

SECRET = b"a secret key of as many bytes as HS256 needs"
SUPERUSER = "super"


def token(role: str, *, expires: float | None = None, secret: bytes = SECRET) -> str:
    """A JWT as created by `pulsar tokens create --secret-key` (RFC 7519, HS256)."""
    claims: dict[str, Any] = {"sub": role, **({} if expires is None else {"exp": int(expires)})}
    signed = b".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims))
    return b".".join([signed, _base64(hmac.digest(secret, signed, hashlib.sha256))]).decode()


def expired(role: str) -> str:
    return token(role, expires=time.time() - 3600)


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


class AuthenticatedPulsar(Pulsar):
    """A broker that requires a token for every request, including the readiness check."""

    def _is_ready(self) -> bool:
        try:
            return all(
                self.call("GET", path) is not None
                for path in ("brokers/health", "namespaces/public/default")
            )
        except (OSError, SuperuserRefused):
            return False

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin API as superuser; returns `ok` for a response that is not JSON."""
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {token(SUPERUSER)}",
        }
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}", data, headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                raw = answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                raise SuperuserRefused(
                    f"{method} {path}: {refused.code} {refused.read()!r}"
                ) from None
        return json.loads(raw) if raw[:1] in b"[{" and raw else raw.decode()


class SuperuserRefused(Exception):
    """The superuser was refused: the test is wrong."""


@dataclass(frozen=True, slots=True)
class SecuredPulsar:
    """The running broker, its TLS addresses, and the authority that it and its clients trust."""

    broker: AuthenticatedPulsar
    tls_service_url: str
    tls_admin_url: str
    authority: Authority
    trust_file: Path


@contextmanager
def secured(folder: Path, **others: str) -> Iterator[SecuredPulsar]:
    """`others`: additional settings of the broker."""
    authority = Authority()
    trust = authority.write(folder)
    certificate, key = authority.sign().write(folder, "broker")
    (folder / "secret.key").write_bytes(SECRET)
    port, web_port = free_ports(2)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": (
            "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
        ),
        "authorizationEnabled": "true",
        "superUserRoles": SUPERUSER,
        "tokenSecretKey": f"file://{folder / 'secret.key'}",
        "brokerClientAuthenticationPlugin": (
            "org.apache.pulsar.client.impl.auth.AuthenticationToken"
        ),
        "brokerClientAuthenticationParameters": f"token:{token(SUPERUSER)}",
        "brokerServicePortTls": str(port),
        "webServicePortTls": str(web_port),
        "tlsCertificateFilePath": str(certificate),
        "tlsKeyFilePath": str(key),
        "tlsTrustCertsFilePath": str(trust),
    }
    with AuthenticatedPulsar.start(**settings, **others) as broker:
        yield SecuredPulsar(
            broker,
            f"pulsar+ssl://localhost:{port}",
            f"https://localhost:{web_port}",
            authority,
            trust,
        )
