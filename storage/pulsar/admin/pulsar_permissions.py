"""Keeps the permissions of the served namespaces in memory, read from the admin API.

There is one call per tenant and one per namespace each time. Permissions that cannot be read stay
valid until they have the maximum age; then they allow nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, cast
from urllib.parse import quote

import msgspec
from twisted.internet.defer import Deferred, DeferredList

from storage.bridge import Reactor
from storage.log import NotAllowed, StorageFailed
from storage.pulsar.admin.admin_api import Forbidden, NotFound, PulsarAdmin
from storage.pulsar.admin.cluster_problems import ClusterProblem, Remedies
from storage.pulsar.admin.namespace_grants import (
    CONSUME,
    PRODUCE,
    NamespaceGrants,
    NamespaceInfo,
    TenantInfo,
)
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.namespaces import path_of_namespace
from storage.pulsar.topics.pulsar_names import PREFIX, PulsarNames
from storage.pulsar.topics.refresh import Refresher

log = logging.getLogger(__name__)

EARLY_SECONDS = 1.0
"""Delay of an early refresh after a refusal, and so the time until a new permission applies."""

EARLY_CALLS_PER_SECOND = 10
"""Calls of the admin API by early refreshes.

With many namespaces a refresh takes many calls, so early refreshes come later: refusals can be
endless.
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer about a namespace and what it grants. It is decoded again if it has changed."""

    policies: bytes
    grants: NamespaceGrants


class PulsarPermissions:
    """`Permissions` of the roles of a Pulsar cluster."""

    def __init__(self, settings: PulsarSettings, admin: PulsarAdmin, reactor: Reactor) -> None:
        self._settings = settings
        self._admin = admin
        self._reactor = reactor
        self._names = PulsarNames(settings)
        self._remedies = Remedies(settings)
        self._known: dict[str, _Answer | None] = {}
        """By namespace; None for one that does not exist, no entry for one that expired."""
        self._expiry: dict[str, float] = {}
        self._next_expiry = float("inf")
        self._version = 0
        self._tenants = tuple(dict.fromkeys(map(_tenant_of, self._names.namespaces)))
        calls = len(self._tenants) + len(self._names.namespaces)
        self._early_seconds = max(EARLY_SECONDS, calls / EARLY_CALLS_PER_SECOND)
        self._refresher = Refresher(
            self._read, "permissions", settings.permissions_refresh_seconds, reactor
        )

    async def open(self) -> None:
        """Read the permissions of all namespaces. Raises NotAllowed, StorageFailed."""
        await self._read()
        self._refresher.start()

    def close(self) -> None:
        """Stop refreshing."""
        self._refresher.stop()

    @property
    def version(self) -> int:
        """`Permissions.version`."""
        self._expire()
        return self._version

    def may_write(self, role: str, topic: str) -> bool:
        """`Permissions.may_write`."""
        return self._allows(role, PRODUCE, topic)

    def may_read(self, role: str, topic: str) -> bool:
        """`Permissions.may_read`."""
        return self._allows(role, CONSUME, topic)

    def may_administer(self, role: str, topic: str) -> bool:
        """`Permissions.may_administer`."""
        found = self._locate(topic)
        return found is not None and role in found[0].administrators

    def may_write_any(self, role: str, namespace: str | None = None) -> bool:
        """`Permissions.may_write_any`."""
        return any(one.allows_anywhere(role, PRODUCE) for one in self._current(namespace))

    def may_read_any(self, role: str, namespace: str | None = None) -> bool:
        """`Permissions.may_read_any`."""
        return any(one.allows_anywhere(role, CONSUME) for one in self._current(namespace))

    def may_administer_all(self, role: str, namespace: str | None = None) -> bool:
        """`Permissions.may_administer_all`."""
        current = self._current(namespace)
        is_complete = namespace is not None or len(self._known) == len(self._names.namespaces)
        return is_complete and bool(current) and all(role in one.administrators for one in current)

    def may_use_group(self, role: str, group: str, namespace: str | None = None) -> bool:
        """`Permissions.may_use_group`.

        A group of no namespace has the restrictions of all of them.
        """
        return all(one.allows_group(role, group) for one in self._current(namespace))

    def refresh_soon(self) -> None:
        """`Permissions.refresh_soon`."""
        self._refresher.hasten(self._early_seconds)

    def _allows(self, role: str, action: str, topic: str) -> bool:
        found = self._locate(topic)
        return found is not None and found[0].allows(role, action, found[1])

    def _locate(self, topic: str) -> tuple[NamespaceGrants, str] | None:
        """The permissions of the topic's namespace and its full name; None if there are none."""
        self._expire()
        try:
            full = self._names.full_name(topic)
        except ValueError:
            return None
        known = self._known.get(full.removeprefix(PREFIX).rpartition("/")[0])
        return None if known is None else (known.grants, full)

    def _current(self, namespace: str | None = None) -> list[NamespaceGrants]:
        self._expire()
        known = self._known.values() if namespace is None else (self._known.get(namespace),)
        return [one.grants for one in known if one is not None]

    def _expire(self) -> None:
        """Drop permissions that have the maximum age."""
        now = self._reactor.seconds()
        if now < self._next_expiry:
            return
        for namespace in [one for one, end in self._expiry.items() if end <= now]:
            log.error(
                "permissions of %s could not be read for %g s (pulsar_permissions_max_age_ms); all "
                "of its topics are refused until they can",
                namespace,
                self._settings.permissions_max_age_seconds,
            )
            del self._expiry[namespace], self._known[namespace]
            self._version += 1
        self._next_expiry = min(self._expiry.values(), default=float("inf"))

    async def _read(self) -> None:
        """Read everything. A failure leaves what it concerns as it was. Raises StorageFailed."""
        await _all(self._read_tenant(one) for one in self._tenants)

    async def _read_tenant(self, tenant: str) -> None:
        asked = self._reactor.seconds()
        try:
            info: TenantInfo | None = await self._admin.get(f"/tenants/{quote(tenant)}", TenantInfo)
        except Forbidden as failure:
            self._raise_unreadable(f"the administrators of tenant {tenant}", tenant, failure)
        if info is None:
            raise StorageFailed(f"tenant {tenant}: the answer of the admin API is empty")
        namespaces = [one for one in self._names.namespaces if _tenant_of(one) == tenant]
        await _all(self._read_namespace(one, info.adminRoles, asked) for one in namespaces)

    async def _read_namespace(
        self, namespace: str, administrators: list[str], asked: float
    ) -> None:
        try:
            policies = bytes(
                await self._admin.get(path_of_namespace(namespace), msgspec.Raw) or b""
            )
        except Forbidden as failure:
            self._raise_unreadable(f"the permissions in {namespace}", namespace, failure)
        except NotFound:
            policies = None
        known = self._known.get(namespace)
        answer = None
        if policies is not None:
            answer = known
            if (
                known is None
                or known.policies != policies
                or known.grants.administrators != set(administrators)
            ):
                answer = self._decode(namespace, administrators, policies)
        if namespace not in self._known or not _grant_the_same(answer, known):
            self._version += 1
        self._known[namespace] = answer
        # From the call on: they may have changed while the answer was on its way.
        self._expiry[namespace] = asked + self._settings.permissions_max_age_seconds
        self._next_expiry = min(self._expiry.values())

    def _decode(self, namespace: str, administrators: list[str], policies: bytes) -> _Answer:
        """Raises StorageFailed."""
        try:
            grants = NamespaceGrants(
                msgspec.json.decode(policies, type=NamespaceInfo),
                administrators,
                most=self._settings.permissions_max,
                has_wildcards=self._settings.permissions_wildcards,
            )
        except (msgspec.DecodeError, StorageFailed) as failure:
            raise StorageFailed(f"permissions in {namespace}: {failure}") from None
        return _Answer(policies, grants)

    def _raise_unreadable(self, what: str, namespace: str, failure: Forbidden) -> NoReturn:
        text = f"the gateway may not read {what} ({failure.reason}), which authorizer=pulsar needs"
        problem = ClusterProblem(True, text, self._remedies.administer(namespace))
        raise NotReadable(str(problem)) from None


class NotReadable(NotAllowed, StorageFailed):
    """The gateway's role may not read permissions. The message says how to allow it."""


def _grant_the_same(one: _Answer | None, other: _Answer | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.grants == other.grants


def _tenant_of(namespace: str) -> str:
    return namespace.partition("/")[0]


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, then raise the first failure."""
    outcomes = await DeferredList([Deferred.fromCoroutine(one) for one in work], consumeErrors=True)
    for is_done, outcome in outcomes:
        if not is_done:
            cast("Any", outcome).raiseException()
