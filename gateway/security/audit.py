"""The audit log: log-ins, refusals and changes of security settings, as JSON lines.

A line contains `time` (ms since 1970), `node`, `event`, `peer`, `listener` and `principal`, and the
fields of its event. Lines are built from named values, never from requests, so that no password,
token or key gets into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from auth.mechanism import Principal
from gateway.traffic.traffic_log import LineSink
from gateway.traffic.traffic_rows import bounded_text, encode_lines

#: What a change affects.
ChangeKind = Literal["acl", "scram-credential", "quota"]


class AuditRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the audit log.

    `event` is `login`, `reauthentication`, `login-failed`, `refused` or `changed`. Of a refusal,
    `api` names the request, `operation` and `resource` what was not allowed. Of a change, `kind`
    says what was changed, `action` how, `resource` whose, and `error` the Kafka error code if it
    failed.
    """

    time: int
    node: int
    event: str
    peer: str
    listener: str
    principal: str | None = None
    mechanism: str | None = None
    reason: str | None = None
    api: str | None = None
    operation: str | None = None
    resource: str | None = None
    kind: ChangeKind | None = None
    action: str | None = None
    error: int = 0


class AuditLog:
    """Records security events. This base class, used without `audit_log`, does nothing.

    `peer` is "host:port" and `listener` the listener's name in all methods.
    """

    def logged_in(
        self, peer: str, listener: str, mechanism: str | None, principal: Principal, *, again: bool
    ) -> None:
        """Record a log-in, or with `again` a re-authentication (KIP-368)."""

    def login_failed(self, peer: str, listener: str, mechanism: str | None, reason: str) -> None:
        """Record a failed log-in. `reason` contains no secret."""

    def refused(
        self,
        peer: str,
        listener: str,
        principal: Principal,
        api: str,
        operation: str,
        resource: str,
    ) -> None:
        """Record that a principal was not allowed an operation, for example READ on Topic:a."""

    def changed(
        self,
        peer: str,
        listener: str,
        principal: Principal,
        kind: ChangeKind,
        action: str,
        resource: str,
        error: int = 0,
    ) -> None:
        """Record a change, or with an `error` code the attempt to make it."""

    async def close(self, seconds: float) -> None:
        """Write what is queued, for at most `seconds`."""


NO_AUDIT_LOG = AuditLog()

#: The same refusal is written once in this time.
REFUSAL_INTERVAL_MS = 60_000

#: Refusals remembered in that time, some 500 bytes each.
MAX_RECENT = 10_000


class AuditFiles(AuditLog):
    """Writes the events to files. `sink` bounds the queue; `now()` is in ms since 1970."""

    def __init__(self, sink: LineSink, node: int, now: Callable[[], int]) -> None:
        self._sink = sink
        self._node = node
        self._now = now
        #: Refusals written since `_recent_since`: a client that retries repeats them many times a
        #: second, which would push older lines out of the kept files.
        self._recent: set[tuple[str, ...]] = set()
        self._recent_since = 0

    def logged_in(
        self, peer: str, listener: str, mechanism: str | None, principal: Principal, *, again: bool
    ) -> None:
        event = "reauthentication" if again else "login"
        self._write(event, peer, listener, principal=principal, mechanism=mechanism)

    def login_failed(self, peer: str, listener: str, mechanism: str | None, reason: str) -> None:
        self._write("login-failed", peer, listener, mechanism=mechanism, reason=reason)

    def refused(
        self,
        peer: str,
        listener: str,
        principal: Principal,
        api: str,
        operation: str,
        resource: str,
    ) -> None:
        now = self._now()
        if now - self._recent_since >= REFUSAL_INTERVAL_MS or len(self._recent) >= MAX_RECENT:
            self._recent.clear()
            self._recent_since = now
        host = peer.rpartition(":")[0]
        key = (host, str(principal), api, operation, bounded_text(resource))
        if key in self._recent:
            return
        self._recent.add(key)
        self._write(
            "refused",
            peer,
            listener,
            principal=principal,
            api=api,
            operation=operation,
            resource=resource,
        )

    def changed(
        self,
        peer: str,
        listener: str,
        principal: Principal,
        kind: ChangeKind,
        action: str,
        resource: str,
        error: int = 0,
    ) -> None:
        self._write(
            "changed",
            peer,
            listener,
            principal=principal,
            resource=resource,
            kind=kind,
            action=action,
            error=error,
        )

    async def close(self, seconds: float) -> None:
        await self._sink.stop(seconds)

    def _write(
        self,
        event: str,
        peer: str,
        listener: str,
        *,
        principal: Principal | None = None,
        mechanism: str | None = None,
        reason: str | None = None,
        api: str | None = None,
        operation: str | None = None,
        resource: str | None = None,
        kind: ChangeKind | None = None,
        action: str | None = None,
        error: int = 0,
    ) -> None:
        row = AuditRow(
            self._now(),
            self._node,
            event,
            peer,
            listener,
            None if principal is None else bounded_text(str(principal)),
            None if mechanism is None else bounded_text(mechanism),
            None if reason is None else bounded_text(reason),
            api,
            operation,
            None if resource is None else bounded_text(resource),
            kind,
            action,
            error,
        )
        self._sink.put(encode_lines([row]), 1)
