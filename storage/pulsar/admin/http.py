"""HTTP towards the brokers: a request there, a bounded answer back, to the topic's owner where a broker says so."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers

from storage.log import StorageError, StorageFailed
from storage.pulsar.admin.admin_tls import AdminTls
from storage.pulsar.admin.token_file import TokenFile
from storage.pulsar.settings import PulsarSettings

IDLE_SECONDS = 15
"""A connection that was idle for longer is not used again: the broker closes it after 30 (httpServerIdleTimeout), and a PUT sent then is lost."""

REDIRECTS = 5
"""A broker sends a call about a topic to the topic's owner; while topics move, it may take some. Pulsar's own client follows as few."""


class BrokerHttp:
    """Requests and answers over connections that are kept open, with the token of the settings, for the thread of `reactor`."""

    def __init__(self, settings: PulsarSettings, reactor: Any) -> None:
        self._token = TokenFile(settings.token_file) if settings.token_file else None
        self._limit = settings.admin_answer_bytes
        self._brokers_url = f"{settings.admin_url.rstrip('/')}/admin/v2/brokers"
        self._configured = frozenset(_hosts_of(f"{settings.admin_url},{settings.service_url}"))
        # As the cluster listed them last.
        self._listed: frozenset[str] = frozenset()
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = settings.admin_connections
        self._pool.cachedConnectionTimeout = IDLE_SECONDS
        self._agent: Any = Agent(
            reactor, AdminTls(settings), settings.admin_timeout_seconds, pool=self._pool
        )

    async def close(self) -> None:
        """Closes the connections that are kept."""
        closing: Any = self._pool.closeCachedConnections()
        await closing

    async def send(
        self, method: str, url: str, body: bytes | None, content_type: str
    ) -> tuple[int, bytes, Headers]:
        """Status, body and headers of the answer. Raises StorageFailed where there is none, or one that is too large."""
        sent = None if body is None else BytesBody(body)
        for _ in range(REDIRECTS + 1):
            response = await self._request(method, url, sent, content_type)
            answer = await _read(response, self._limit)
            if response.code not in (307, 308):
                return response.code, answer, response.headers
            url = _owner(url, (response.headers.getRawHeaders("location") or [""])[-1])
            await self._check_host(url)
        raise StorageFailed(
            f"{method} {urlsplit(url).path}: Pulsar's brokers sent it on more than {REDIRECTS} times; the topic is moving, or they disagree on its owner"
        )

    async def _check_host(self, url: str) -> None:
        """Raises StorageFailed for a host that is not one of the cluster: it would get the token.

        A host of the cluster is configured, or the brokers list it as active. That list is for
        superusers alone: other roles need the hosts of all brokers in the service URL.
        """
        host = urlsplit(url).hostname
        if host in self._configured or host in self._listed:
            return
        response = await self._request("GET", self._brokers_url, None, "")
        answer = await _read(response, self._limit)
        if response.code == 200:
            self._listed = _listed_hosts(answer)
        if host not in self._listed:
            raise StorageFailed(
                f"Pulsar's admin API sends {urlsplit(url).path} on to {_origin(url)}, which is not followed: "
                f"the host is not in the URLs of this store, and GET /admin/v2/brokers does not list it "
                f"(status {response.code}); name every broker in the service URL, or let this role list brokers"
            )

    async def _request(
        self, method: str, url: str, sent: BytesBody | None, content_type: str
    ) -> Any:
        headers = Headers({"Accept": ["application/json"], "User-Agent": ["kopgate"]})
        if sent:
            headers.addRawHeader("Content-Type", content_type)
        if self._token:
            headers.addRawHeader("Authorization", f"Bearer {self._token.read()}")
        try:
            return await self._agent.request(method.encode(), url.encode("ascii"), headers, sent)
        except (StorageError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the network, TLS or a name server came up with
            if any(reason.check(CancelledError) for reason in getattr(error, "reasons", ())):
                raise CancelledError from None
            raise StorageFailed(
                f"Pulsar's admin API at {_origin(url)} cannot be reached: {_describe_error(error)}"
            ) from None


class BytesBody:
    """A body that is there as a whole and may be sent again (Twisted's IBodyProducer)."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """There is nothing left to hold back."""

    def resumeProducing(self) -> None:
        """Nothing was held back."""

    def stopProducing(self) -> None:
        """Everything was written at once."""


class BodyCollector(Protocol):
    """Collects the body of an answer up to a limit; cancelling `done` hangs up."""

    def __init__(self, limit: int) -> None:
        self.done: Deferred[bytes] = Deferred(lambda _: self._close_connection())
        self._limit = limit
        self._body: bytearray | None = bytearray()

    def dataReceived(self, data: bytes) -> None:
        if self._body is None:
            return
        self._body += data
        if len(self._body) > self._limit:
            self._close_connection()
            self.done.errback(
                StorageFailed(
                    f"an answer of Pulsar's admin API has more than {self._limit} bytes (admin_answer_bytes)"
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
                StorageFailed("the connection to Pulsar's admin API was lost within an answer")
            )

    def _close_connection(self) -> None:
        self._body = None
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()


def _read(response: Any, limit: int) -> Deferred[bytes]:
    received = BodyCollector(limit)
    response.deliverBody(received)
    return received.done


def _hosts_of(urls: str) -> list[str]:
    """The hosts of URLs, in lower case. As in Pulsar's service URLs, later ones may lack the scheme."""
    hosts = (
        urlsplit(f"//{url.partition('://')[2] or url}").hostname
        for url in re.split("[,;]", urls)
        if url
    )
    return [host for host in hosts if host]


def _listed_hosts(answer: bytes) -> frozenset[str]:
    """Of the brokers' own list: `HOST:PORT` each. Empty where the answer is not such a list."""
    try:
        return frozenset(_hosts_of(",".join(msgspec.json.decode(answer, type=list[str]))))
    except (msgspec.DecodeError, ValueError):
        return frozenset()


def _owner(url: str, location: str) -> str:
    """Where a broker sends the call. A token goes to the same call at another broker, over no weaker a road, and nowhere else."""
    target = urljoin(url, location)
    old, new = urlsplit(url), urlsplit(target)
    if new.path != old.path or new.scheme != old.scheme or "@" in new.netloc or not new.hostname:
        raise StorageFailed(
            f"Pulsar's admin API at {_origin(url)} sends {old.path} on to {_origin(target)}{new.path}, which is not followed"
        )
    return target


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _describe_error(error: BaseException) -> str:
    """What went wrong, of an error that may be several packed into one."""
    reasons = getattr(error, "reasons", None)
    if reasons:
        return ", ".join(dict.fromkeys(_describe_error(reason.value) for reason in reasons))
    return str(error) or type(error).__name__
