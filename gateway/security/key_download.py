"""Keeps the key set of an identity provider current (Kafka's RefreshingHttpsJwks).

The set is fetched at the start and then at a fixed interval; after a failure again with a growing
pause. A token with an unknown key id causes a fetch at once, so that log-ins continue after a
change of keys. The last set that was received stays valid while the provider is unreachable.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.ssl import optionsForClientTLS, trustRootFromCertificates
from twisted.web.client import Agent
from twisted.web.http_headers import Headers
from twisted.web.iweb import IPolicyForHTTPS

from auth.mechanism import AuthenticationBusy
from auth.signing_keys import MAX_DOCUMENT_BYTES, KeysError, KeySet, read_key_set
from gateway import logs
from gateway.coroutines import Clock, DelayedCall, SharedResult, start
from storage.https import (
    HostCheckingCreator,
    declare,
    describe_error,
    read_body,
    read_certificates,
)
from storage.log import StorageError, StorageFailed

#: Seconds until a connection is made, and until an answer is complete.
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0

#: Minimum seconds between two fetches because of unknown key ids: clients choose these.
MIN_RENEWAL_SECONDS = 10.0

#: Seconds that a log-in waits for such a fetch.
RENEWAL_WAIT_SECONDS = 10.0

_log = logs.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RefreshTimes:
    """Seconds between two fetches, and the first and longest pause after a failure."""

    interval: float
    backoff: float
    max_backoff: float


class KeyDownload:
    """The keys of an identity provider.

    `fetch` returns the document with the key set, or raises StorageError. `origin` names the
    provider in the log.
    """

    def __init__(
        self, fetch: Callable[[], Awaitable[bytes]], origin: str, times: RefreshTimes, clock: Clock
    ) -> None:
        self._fetch = fetch
        self._origin = origin
        self._times = times
        self._clock = clock
        self._keys: KeySet | None = None
        self._failures = 0
        self._renewed_at: float | None = None
        self._running: SharedResult[None] | None = None
        self._timer: DelayedCall | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Begin to fetch the keys."""
        self._begin()

    def stop(self) -> None:
        """Stop fetching. A running fetch ends by its timeout at the latest."""
        self._is_stopped = True
        self._cancel_timer()

    def current(self) -> KeySet:
        """Return the keys.

        Raises AuthenticationBusy before the first set was received: clients then retry.
        """
        if self._keys is None:
            raise AuthenticationBusy("the identity provider's keys have not been fetched yet")
        return self._keys

    async def renew(self) -> None:
        """Fetch the keys now, unless that was done within MIN_RENEWAL_SECONDS."""
        if self._running is None:
            now = self._clock.seconds()
            if self._is_stopped or (
                self._renewed_at is not None and now - self._renewed_at < MIN_RENEWAL_SECONDS
            ):
                return
            self._renewed_at = now
            self._begin()
        if self._running is not None:
            try:
                await self._running.with_timeout(self._clock, RENEWAL_WAIT_SECONDS)
            except TimeoutError:
                return

    def _begin(self) -> None:
        self._cancel_timer()
        if self._running is None and not self._is_stopped:
            self._running = SharedResult()
            start(self._load(), self._loaded, self._failed)

    async def _load(self) -> KeySet:
        return read_key_set(await self._fetch())

    def _loaded(self, keys: KeySet) -> None:
        if self._keys is None or self._failures:
            _log.info("signing keys fetched", url=self._origin, keys=len(keys.keys))
        self._keys = keys
        self._failures = 0
        self._end(self._times.interval)

    def _failed(self, failure: BaseException) -> None:
        if not isinstance(failure, StorageError | KeysError):
            _log.bug("fetching the signing keys failed", failure)
        elif not self._failures:
            _log.warning(
                "signing keys not fetched, retrying",
                url=self._origin,
                reason=str(failure),
                consequence="the previous keys stay valid" if self._keys else "log-ins fail",
            )
        longest = self._times.max_backoff
        pause = min(self._times.backoff * 2 ** min(self._failures, 30), longest)
        self._failures += 1
        # Several gateways do not retry at the same moment.
        self._end(pause * random.uniform(0.8, 1.2))

    def _end(self, pause: float) -> None:
        running, self._running = self._running, None
        if not self._is_stopped:
            self._timer = self._clock.callLater(pause, self._begin)
        if running is not None:
            running.succeed(None)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()


class KeySetUrl:
    """Fetches a key set over HTTP or HTTPS. Redirects are not followed.

    HTTPS is verified by the system's authorities, or by those in the PEM file `ca_file`, which is
    read for each connection.
    """

    def __init__(self, url: str, ca_file: Path | None, reactor: Any) -> None:
        self._url = url
        self._reactor = reactor
        self._agent: Any = Agent(reactor, _VerifiedHttps(ca_file), CONNECT_SECONDS)

    async def fetch(self) -> bytes:
        """Return the document. Raises StorageFailed."""
        answer = Deferred.fromCoroutine(self._get()).addTimeout(ANSWER_SECONDS, self._reactor)
        try:
            return await answer
        except (DeferredTimeoutError, CancelledError):
            raise StorageFailed(f"no complete answer within {ANSWER_SECONDS:.0f} s") from None

    async def _get(self) -> bytes:
        headers = Headers({"Accept": ["application/json"], "User-Agent": ["kopgate"]})
        try:
            response = await self._agent.request(b"GET", self._url.encode("ascii"), headers)
        except (StorageError, CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - any error of network, TLS or DNS
            raise StorageFailed(describe_error(error)) from None
        body = await read_body(
            response, MAX_DOCUMENT_BYTES, "the identity provider", "a fixed limit"
        )
        if response.code != 200:
            raise StorageFailed(f"the identity provider answered with status {response.code}")
        return body


class _VerifiedHttps:
    """Twisted's IPolicyForHTTPS."""

    def __init__(self, ca_file: Path | None) -> None:
        self._ca_file = ca_file

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:
        host = hostname.decode("ascii")
        options: dict[str, Any] = {}
        if self._ca_file is not None:
            options["trustRoot"] = trustRootFromCertificates(read_certificates(self._ca_file))
        return HostCheckingCreator(optionsForClientTLS(host, **options), host)


declare(_VerifiedHttps, IPolicyForHTTPS)


def is_exposed(url: str) -> bool:
    """Whether keys from this URL can be replaced on the way: plain HTTP to another machine."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname in (None, "localhost"):
        return False
    try:
        return not ipaddress.ip_address(str(parts.hostname)).is_loopback
    except ValueError:
        return True
