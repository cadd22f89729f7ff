"""Pulsar's admin REST API: limited concurrency, deadlines, bounded answers, actionable errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from twisted.internet.defer import Deferred, DeferredSemaphore, TimeoutError
from twisted.web.http_headers import Headers

from storage.log import NotAllowed, NotReady, StorageFailed
from storage.pulsar.admin.http import BrokerHttp
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import path_of

REASON_CHARACTERS = 300
"""Limit on the part of a broker's reason, possibly an HTML page, that is quoted in an error."""

SERVER_ERROR = 500
"""The first HTTP status of server errors."""

PARTITIONED = "application/vnd.partitioned-topic-metadata+json"
"""Content type for creating a partitioned topic together with its properties."""


class AdminFailed(StorageFailed):
    """The admin API refused a call. `status` is HTTP's, `reason` is Pulsar's."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(AdminFailed):
    """404: no such tenant, namespace, topic or property."""


class Conflict(AdminFailed):
    """409: it already exists or was changed concurrently."""


class PreconditionFailed(AdminFailed):
    """412: a rule of Pulsar forbids it; `reason` says which."""


class BrokerError(AdminFailed, NotReady):
    """5xx: the broker failed, for example because no bookie is available yet."""


class Forbidden(AdminFailed, NotAllowed):
    """403, or 401 with Pulsar's authorization message: the role lacks permission."""


class Unauthorized(Forbidden):
    """401 from the authentication filter: the broker rejected the credentials."""


_ERRORS: Mapping[int, type[AdminFailed]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
}
_MAY_NOT = "Unauthorized to validate"
"""Prefix of the reason if an authenticated role lacks permission, with status 401 or 403."""

_REMEDIES: tuple[tuple[type[AdminFailed], str], ...] = (
    (
        Unauthorized,
        "the token is missing, wrong or expired, or the broker requires a client certificate",
    ),
    (
        Forbidden,
        "the gateway's role lacks permission; a superuser or the tenant's administrator "
        "can grant it",
    ),
)


class Ledger(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A ledger of a topic.

    The one being written shows 0 entries; `InternalStats.current_ledger_entries` has their number.
    """

    ledger_id: int
    entries: int
    size: int


class InternalStats(msgspec.Struct, frozen=True, rename="camel"):
    """Storage statistics of a topic. `last_confirmed_entry` is `LEDGER:ENTRY`."""

    ledgers: list[Ledger]
    current_ledger_entries: int
    current_ledger_size: int
    number_of_entries: int
    total_size: int
    last_confirmed_entry: str
    cursors: dict[str, Any] = {}


class LastMessageId(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """`entry_id` is -1 if the topic has no message."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1


class PeekedEntry(msgspec.Struct, frozen=True, gc=False):
    """Metadata of one entry.

    `index` is that of its last message, -1 if the brokers do not number entries. `chunk` is its
    number among the `chunks` of a message, -1 if the message is not chunked. `publish_time` is in
    milliseconds, -1 if unknown.
    """

    index: int
    messages: int
    chunk: int
    chunks: int
    publish_time: int


class PulsarAdmin:
    """Calls of the admin API in the thread of `reactor`. Paths are relative to `/admin/v2`.

    Every call raises AdminFailed (NotFound, Conflict, PreconditionFailed, Forbidden, BrokerError)
    for an unsuccessful answer, NotReady on a timeout, and StorageFailed if no broker can be
    reached.
    """

    def __init__(self, settings: PulsarSettings, reactor: Any) -> None:
        self._url = settings.admin_url.rstrip("/")
        self._settings = settings
        self._reactor = reactor
        self._http = BrokerHttp(settings, reactor)
        self._slots = DeferredSemaphore(settings.admin_connections)

    async def close(self) -> None:
        """Close the idle connections."""
        await self._http.close()

    async def get(self, path: str, kind: Any = Any) -> Any:
        """The answer decoded as `kind`; None if it is empty."""
        return await self.call("GET", path, kind=kind)

    async def put(self, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        return await self.call("PUT", path, body, content_type)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self.call("POST", path, body)

    async def delete(self, path: str) -> Any:
        return await self.call("DELETE", path)

    async def properties(self, topic: str) -> dict[str, str]:
        """The properties of the topic with that full name, including those set by the broker."""
        return await self.get(f"{path_of(topic)}/properties", dict[str, str]) or {}

    async def internal_stats(self, topic: str) -> InternalStats:
        stats: InternalStats = await self.get(f"{path_of(topic)}/internalStats", InternalStats)
        return stats

    async def last_message_id(self, topic: str) -> LastMessageId:
        last: LastMessageId = await self.get(f"{path_of(topic)}/lastMessageId", LastMessageId)
        return last

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        kind: Any = Any,
    ) -> Any:
        """Make one call and decode the answer as `kind`."""
        status, answer, _ = await self._send(method, path, body, content_type)
        return self._decode(method, path, status, answer, kind)

    async def peek(self, topic: str, position: tuple[int, int]) -> PeekedEntry:
        """Metadata of the entry at (ledger id, entry id). Raises NotFound if it was trimmed."""
        ledger, entry = position
        path = f"{path_of(topic)}/ledger/{ledger}/entry/{entry}"
        status, answer, headers = await self._send("GET", path)
        if not 200 <= status < 300:
            self._decode("GET", path, status, answer, Any)

        def number(name: str, default: int) -> int:
            (value,) = headers.getRawHeaders(name, [""])[-1:]
            return int(value) if value.isdecimal() else default

        return PeekedEntry(
            number("X-Pulsar-Broker-Entry-METADATA-index", -1),
            number("X-Pulsar-num-batch-message", 1),
            number("X-Pulsar-chunk-id", -1),
            number("X-Pulsar-num-chunks-from-msg", 0),
            _time((headers.getRawHeaders("X-Pulsar-publish-time") or [""])[-1]),
        )

    async def _send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, bytes, Headers]:
        """Status, body and headers. Waits for a free slot first; the deadline starts then."""
        if len(self._slots.waiting) >= self._settings.calls_waiting:
            raise StorageFailed(
                f"{self._settings.calls_waiting} calls of Pulsar's admin API are already waiting "
                "(calls_waiting): retry later"
            )
        await self._slots.acquire()
        try:
            sent = None if body is None else msgspec.json.encode(body)
            exchange: Deferred[tuple[int, bytes, Headers]] = Deferred.fromCoroutine(
                self._http.send(method, f"{self._url}/admin/v2{path}", sent, content_type)
            )
            return await exchange.addTimeout(
                self._settings.admin_timeout_seconds, self._reactor, _raise_timeout
            )
        except TimeoutError:
            raise NotReady(
                f"{method} {path}: no answer of Pulsar's admin API at {self._url} within "
                f"{self._settings.admin_timeout_seconds:g} s (admin_timeout_seconds)"
            ) from None
        finally:
            self._slots.release()

    def _decode(self, method: str, path: str, status: int, answer: bytes, kind: Any) -> Any:
        if 200 <= status < 300:
            try:
                return msgspec.json.decode(answer, type=kind) if answer else None
            except msgspec.DecodeError as error:
                raise StorageFailed(
                    f"{method} {path}: the answer of {self._url} is not one of Pulsar's admin API: "
                    f"{error}"
                ) from None
        reason = _reason(answer)
        failure = (
            Forbidden
            if reason.startswith(_MAY_NOT)
            else _ERRORS.get(status, BrokerError if status >= SERVER_ERROR else AdminFailed)
        )
        remedy = next((f" ({text})" for one, text in _REMEDIES if issubclass(failure, one)), "")
        raise failure(f"{method} {path} at {self._url}: {status} {reason}{remedy}", status, reason)


def _time(text: str) -> int:
    """Milliseconds of a time in the format of Java's Instant; -1 if it cannot be parsed."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return -1


_TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)


def _reason(answer: bytes) -> str:
    """Pulsar's reason, or the title of its web server's error page, on one line."""
    try:
        text = msgspec.json.decode(answer)["reason"]
    except (msgspec.DecodeError, LookupError, TypeError):
        page = answer.decode("utf-8", "replace")
        title = _TITLE.search(page)
        text = title[1] if title else page
    return " ".join(str(text).split())[:REASON_CHARACTERS] or "without a reason"


def _raise_timeout(outcome: object, seconds: float) -> NoReturn:
    """Replace the outcome of an exchange that has timed out.

    A connection attempt does not end with CancelledError when it is cancelled.
    """
    raise TimeoutError
