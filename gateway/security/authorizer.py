"""Decides what principals may do: the interface, and ACLs in a table of the store.

The rules of ACLs are those of Kafka's StandardAuthorizer. A binding is one row: its key is a
digest, because names can be longer than keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import msgspec

from auth.mechanism import Principal
from gateway.cluster.replicated_rows import load_and_follow
from gateway.coroutines import SerialChanges, TimeSlices
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from gateway.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclIndex,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)
from storage.log import StateTable, StorageError

#: Decisions kept until the next change of the ACLs, some 300 bytes each.
MAX_DECISIONS = 10_000

#: Decisions about topics kept by each connection, at most 500 bytes each.
MAX_CONNECTION_DECISIONS = 20

#: Decisions about longer names are not kept.
MAX_CACHED_NAME_CHARS = 300

#: Name of a resource that no binding should name, for super users (Authorizer.java).
_ANY_NAME = "hardcode"

_Decision = tuple[str, str, AclOperation, AclResource, str | int]


class Authorizer(Protocol):
    """Decides what principals may do. All answers come from memory."""

    @property
    def version(self) -> int:
        """Increased by each change of the answers, so that caches of replies notice it."""
        ...

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource: AclResource,
        name: str,
    ) -> bool:
        """Whether `principal`, connected from `host`, may do `operation`."""
        ...

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        """Whether the operation is allowed on at least one resource of the type."""
        ...

    def may_auto_create(self, principal: Principal, host: str, topic: str) -> bool:
        """Whether a Metadata request may create this missing topic, which it may describe."""
        ...

    def note_refusal(self, principal: Principal) -> None:
        """Called when a request was refused, but not when a reply leaves something out."""
        ...


class TopicDecisions:
    """Decisions about the topics that one connection uses, by operation and name.

    A lookup is much cheaper than asking the authorizer, which builds and hashes a longer key.
    """

    __slots__ = ("_by_operation", "_count", "version")

    def __init__(self) -> None:
        #: Version of the authorizer that made the decisions.
        self.version = -1
        self._by_operation: dict[int, dict[str, bool]] = {}
        self._count = 0

    def get(self, operation: AclOperation, name: str, version: int) -> bool | None:
        """Return the decision, None if it is not known for this version."""
        if version != self.version:
            self._clear()
            self.version = version
            return None
        known = self._by_operation.get(operation._value_)
        return None if known is None else known.get(name)

    def put(self, operation: AclOperation, name: str, decision: bool) -> None:
        """Remember a decision of the version of the last `get`."""
        if len(name) > MAX_CACHED_NAME_CHARS:
            return
        if self._count >= MAX_CONNECTION_DECISIONS:
            self._clear()
        self._count += 1
        self._by_operation.setdefault(operation._value_, {})[name] = decision

    def _clear(self) -> None:
        self._by_operation = {}
        self._count = 0


class AclAuthorizer:
    """ACLs and the decisions that follow from them.

    `super_users` (`User:NAME`) may do everything. `allows_unlisted` decides about resources without
    any ACL. `max_acls` limits the number of bindings.
    """

    def __init__(
        self,
        table: StateTable,
        super_users: Iterable[str],
        *,
        allows_unlisted: bool,
        max_acls: int,
    ) -> None:
        self._table = table
        self._super_users = frozenset(super_users)
        self._allows_unlisted = allows_unlisted
        self._max_acls = max_acls
        self._index = AclIndex()
        self._by_key: dict[bytes, AclBinding] = {}
        self._decisions: dict[_Decision, bool] = {}
        self._changes = SerialChanges()
        self.version = 0

    async def open(self) -> None:
        """Load the table. Raises StorageError."""
        await load_and_follow(self._table, "acls", self._apply_row, self._changed)

    def _apply_row(self, key: bytes, row: bytes | None) -> None:
        self._set(key, None if row is None else msgspec.json.decode(row, type=AclBinding))

    def _set(self, key: bytes, binding: AclBinding | None) -> None:
        before = self._by_key.pop(key, None)
        if before is not None:
            self._index.remove(before)
        if binding is not None:
            self._index.add(binding)
            self._by_key[key] = binding

    def _changed(self) -> None:
        self._decisions.clear()
        self.version += 1

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource: AclResource,
        name: str,
    ) -> bool:
        """Whether `principal`, connected from `host`, may do `operation`."""
        who = str(principal)
        key = (who, host, operation, resource, name)
        known = self._decisions.get(key)
        if known is not None:
            return known
        decision = who in self._super_users or self._decide(who, host, operation, resource, name)
        if len(name) <= MAX_CACHED_NAME_CHARS:
            self._remember(key, decision)
        return decision

    def _remember(self, key: _Decision, decision: bool) -> None:
        if len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
        self._decisions[key] = decision

    def _decide(
        self, who: str, host: str, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """A denial wins over any permission."""
        is_listed = is_allowed = False
        for binding in self._index.of_resource(resource, name):
            is_listed = True
            result = binding.result(who, host, operation)
            if result is AclPermission.DENY:
                return False
            is_allowed = is_allowed or result is AclPermission.ALLOW
        return is_allowed or (not is_listed and self._allows_unlisted)

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        """Whether the operation is allowed on at least one resource of the type.

        Implied operations do not count (Authorizer.authorizeByResourceType).
        """
        if self.authorize(principal, host, operation, resource, _ANY_NAME):
            return True
        # The name is a number, which no resource has.
        key = (str(principal), host, operation, resource, 0)
        known = self._decisions.get(key)
        if known is None:
            known = self._decide_any(str(principal), host, operation, resource)
            self._remember(key, known)
        return known

    def _decide_any(
        self, who: str, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        allowed: list[AclBinding] = []
        denied: set[tuple[AclPattern, str]] = set()
        for binding in self._index:
            if (
                binding.resource is not resource
                or not binding.is_for(who, host)
                or binding.operation not in (operation, AclOperation.ALL)
            ):
                continue
            if binding.permission is AclPermission.ALLOW:
                allowed.append(binding)
            elif binding.pattern is AclPattern.LITERAL and binding.name == WILDCARD:
                return False
            else:
                denied.add((binding.pattern, binding.name))
        return any(not _is_dominated(binding, denied) for binding in allowed)

    def may_auto_create(self, principal: Principal, host: str, topic: str) -> bool:
        """Whether CREATE is allowed on the cluster or on the topic."""
        create = AclOperation.CREATE
        return self.authorize(
            principal, host, create, AclResource.CLUSTER, CLUSTER_NAME
        ) or self.authorize(principal, host, create, AclResource.TOPIC, topic)

    def note_refusal(self, principal: Principal) -> None:
        """ACLs apply at once."""

    def bindings(self) -> list[AclBinding]:
        return list(self._index)

    async def add(self, bindings: Iterable[AclBinding], slices: TimeSlices) -> None:
        """Store bindings; existing ones are left as they are. Changes are serialized.

        Raises KafkaError, POLICY_VIOLATION beyond the limit.
        """
        await self._changes.make(partial(self._apply, bindings, slices, is_added=True))

    async def remove(self, bindings: Iterable[AclBinding], slices: TimeSlices) -> None:
        """Remove bindings; others are ignored. Raises KafkaError."""
        await self._changes.make(partial(self._apply, bindings, slices, is_added=False))

    async def _apply(
        self, bindings: Iterable[AclBinding], slices: TimeSlices, *, is_added: bool
    ) -> None:
        changed = [one for one in dict.fromkeys(bindings) if (one in self._index) is not is_added]
        if is_added and len(self._index) + len(changed) > self._max_acls:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"there may be at most max_acls={self._max_acls} ACLs; remove some",
            )
        rows: dict[bytes, bytes | None] = {}
        bindings_by_key: dict[bytes, AclBinding | None] = {}
        for one in changed:
            text = msgspec.json.encode(one)
            key = hashlib.sha256(text).digest()
            rows[key], bindings_by_key[key] = (text, one) if is_added else (None, None)
            await slices.take()
        if rows:
            await self._put(rows, bindings_by_key)

    async def _put(
        self, rows: dict[bytes, bytes | None], changed: dict[bytes, AclBinding | None]
    ) -> None:
        try:
            await self._table.put(rows)
        except StorageError as failure:
            raise storage_error(failure) from failure
        for key, binding in changed.items():
            self._set(key, binding)
        self._changed()


def _is_dominated(allowed: AclBinding, denied: set[tuple[AclPattern, str]]) -> bool:
    """Whether a denial covers everything that the binding allows."""
    name = allowed.name
    if allowed.pattern is AclPattern.LITERAL:
        if name == WILDCARD:
            return False
        if (AclPattern.LITERAL, name) in denied:
            return True
    return any((AclPattern.PREFIXED, name[:end]) in denied for end in range(1, len(name) + 1))
