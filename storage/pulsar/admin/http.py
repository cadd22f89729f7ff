"""HTTP requests to the brokers, with bounded answers and redirects to the topic's owner."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from twisted.internet.defer import CancelledError
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool
from twisted.web.http_headers import Headers

from storage.https import describe_error, read_body
from storage.log import StorageError, StorageFailed
from storage.pulsar.admin.admin_tls import AdminTls
from storage.pulsar.admin.token_file import TokenFile
from storage.pulsar.settings import PulsarSettings

IDLE_SECONDS = 15
"""Idle time after which a connection is not reused.

The broker closes it after 30 s (httpServerIdleTimeout), and a PUT sent at that moment is lost.
"""

REDIRECTS = 5
"""Limit on redirects, as in Pulsar's client.

A broker redirects a call about a topic to the topic's owner; several times while topics move.
"""


class BrokerHttp:
    """Requests over persistent connections, with the configured token, in the thread of
    `reactor`.
    """

    def __init__(self, settings: PulsarSettings, reactor: Any) -> None:
        self._token = TokenFile(settings.token_file) if settings.token_file else None
        self._limit = settings.admin_answer_bytes
        self._brokers_url = f"{settings.admin_url.rstrip('/')}/admin/v2/brokers"
        self._configured = frozenset(_hosts_of(f"{settings.admin_url},{settings.service_url}"))
        # The hosts of the last list of active brokers.
        self._listed: frozenset[str] = frozenset()
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = settings.admin_connections
        self._pool.cachedConnectionTimeout = IDLE_SECONDS
        self._agent: Any = Agent(
            reactor, AdminTls(settings), settings.admin_timeout_seconds, pool=self._pool
        )

    async def close(self) -> None:
        """Close the idle connections."""
        closing: Any = self._pool.closeCachedConnections()
        await closing

    async def send(
        self, method: str, url: str, body: bytes | None, content_type: str
    ) -> tuple[int, bytes, Headers]:
        """Status, body and headers of the answer.

        Raises StorageFailed if there is none or it is too large.
        """
        for _ in range(REDIRECTS + 1):
            response = await self._request(method, url, body, content_type)
            answer = await self._read(response)
            if response.code not in (307, 308):
                return response.code, answer, response.headers
            url = _owner(url, (response.headers.getRawHeaders("location") or [""])[-1])
            await self._check_host(url)
        raise StorageFailed(
            f"{method} {urlsplit(url).path}: Pulsar's brokers redirected it more than {REDIRECTS} "
            "times; the topic is moving, or they disagree on its owner"
        )

    async def _check_host(self, url: str) -> None:
        """Raises StorageFailed for a host outside the cluster, which must not receive the token.

        A host belongs to the cluster if the configured URLs name it or the brokers list it as
        active. Only superusers may read that list, so for other roles the service URL must name
        every broker.
        """
        host = urlsplit(url).hostname
        if host in self._configured or host in self._listed:
            return
        response = await self._request("GET", self._brokers_url, None, "")
        answer = await self._read(response)
        if response.code == 200:
            self._listed = _listed_hosts(answer)
        if host not in self._listed:
            raise StorageFailed(
                f"Pulsar's admin API redirects {urlsplit(url).path} to {_origin(url)}, "
                "which is not followed: "
                "the host is not in the URLs of this store, and GET /admin/v2/brokers does not "
                f"list it (status {response.code}); name every broker in the service URL, or "
                "allow this role to list brokers"
            )

    async def _read(self, response: Any) -> bytes:
        return await read_body(response, self._limit, "Pulsar's admin API", "admin_answer_bytes")

    async def _request(self, method: str, url: str, body: bytes | None, content_type: str) -> Any:
        headers = Headers({"Accept": ["application/json"], "User-Agent": ["kopgate"]})
        sent = None if body is None else FileBodyProducer(BytesIO(body))
        if sent:
            headers.addRawHeader("Content-Type", content_type)
        if self._token:
            headers.addRawHeader("Authorization", f"Bearer {self._token.read()}")
        try:
            return await self._agent.request(method.encode(), url.encode("ascii"), headers, sent)
        except (StorageError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - any error of network, TLS or DNS
            if any(reason.check(CancelledError) for reason in getattr(error, "reasons", ())):
                raise CancelledError from None
            raise StorageFailed(
                f"Pulsar's admin API at {_origin(url)} cannot be reached: {describe_error(error)}"
            ) from None


def _hosts_of(urls: str) -> list[str]:
    """The hosts of URLs, in lower case. As in Pulsar's service URLs, only the first needs a
    scheme.
    """
    hosts = (
        urlsplit(f"//{url.partition('://')[2] or url}").hostname
        for url in re.split("[,;]", urls)
        if url
    )
    return [host for host in hosts if host]


def _listed_hosts(answer: bytes) -> frozenset[str]:
    """The hosts of a broker list (`HOST:PORT` each); empty if the answer is not such a list."""
    try:
        return frozenset(_hosts_of(",".join(msgspec.json.decode(answer, type=list[str]))))
    except (msgspec.DecodeError, ValueError):
        return frozenset()


def _owner(url: str, location: str) -> str:
    """The redirect target. Raises StorageFailed unless it is the same call at another broker.

    The token is sent there, so the scheme must not change either.
    """
    target = urljoin(url, location)
    old, new = urlsplit(url), urlsplit(target)
    if new.path != old.path or new.scheme != old.scheme or "@" in new.netloc or not new.hostname:
        raise StorageFailed(
            f"Pulsar's admin API at {_origin(url)} redirects {old.path} to "
            f"{_origin(target)}{new.path}, which is not followed"
        )
    return target


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
