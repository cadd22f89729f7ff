"""ACLs as values: bindings, filters, and an index of the bindings by resource.

The rules are those of Kafka's StandardAuthorizerData and AclBindingFilter. Codes are Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

import msgspec

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.addresses import canonical_host

#: Principal, host or resource name that stands for all.
WILDCARD = "*"
EVERYONE = "User:*"

#: Name of the only CLUSTER resource.
CLUSTER_NAME = "kafka-cluster"

#: Characters of a binding's name, principal and host together. Kafka's limit is that of a string,
#: 32,767 bytes, for each of them.
MAX_BINDING_CHARS = 4_000

E = TypeVar("E", bound=IntEnum)


class AclResource(IntEnum):
    """Codes of Kafka's ResourceType."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """Codes of Kafka's PatternType. ANY and MATCH occur in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Codes of Kafka's AclOperation. ANY occurs in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class AclPermission(IntEnum):
    """Codes of Kafka's AclPermissionType. ANY occurs in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


#: Operations of an ALLOW binding that also allow the operation. A DENY binding denies only its own.
IMPLIED_BY = {
    AclOperation.DESCRIBE: frozenset({
        AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER,
    }),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}  # fmt: skip

#: The operations that a resource type has (AclEntry.supportedOperations), for
#: `include_*_authorized_operations`.
SUPPORTED_OPERATIONS = {
    AclResource.TOPIC: (
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE,
        AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE),
    AclResource.CLUSTER: (
        AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}  # fmt: skip


class AclBinding(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One rule: `principal` (`User:NAME`), from `host`, may or may not do `operation`."""

    resource: AclResource
    name: str
    pattern: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def result(self, principal: str, host: str, operation: AclOperation) -> AclPermission | None:
        """Return the permission if the rule applies, else None. The resource is not checked."""
        if not self.is_for(principal, host):
            return None
        if self.operation in (AclOperation.ALL, operation) or (
            self.permission is AclPermission.ALLOW
            and self.operation in IMPLIED_BY.get(operation, ())
        ):
            return self.permission
        return None

    def is_for(self, principal: str, host: str) -> bool:
        """Whether the rule is about this principal and address.

        Rules of Kafka have Java's form of IPv6 addresses (`2001:db8:0:0:0:0:0:1`).
        """
        return self.principal in (principal, EVERYONE) and (
            self.host in (host, WILDCARD) or (":" in self.host and _canonical(self.host) == host)
        )


_canonical = lru_cache(1_000)(canonical_host)


class AclFilter(msgspec.Struct, frozen=True, gc=False):
    """Selects bindings. None matches any name, principal or host."""

    resource: AclResource = AclResource.ANY
    name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource in (AclResource.ANY, binding.resource)
            and self._matches_name(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (AclOperation.ANY, binding.operation)
            and self.permission in (AclPermission.ANY, binding.permission)
        )

    def _matches_name(self, binding: AclBinding) -> bool:
        """MATCH selects what applies to a resource of that name (ResourcePatternFilter)."""
        if self.pattern not in (AclPattern.ANY, AclPattern.MATCH, binding.pattern):
            return False
        if self.name is None or self.name == binding.name:
            return True
        if self.pattern is not AclPattern.MATCH:
            return False
        if binding.pattern is AclPattern.LITERAL:
            return binding.name == WILDCARD
        return self.name.startswith(binding.name)


def make_binding(
    resource: int,
    name: str,
    pattern: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """Validate the fields of a new binding (AclApis, AclControlManager).

    Raises KafkaError(INVALID_REQUEST).
    """
    if resource == AclResource.CLUSTER and name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        raise _invalid("Invalid empty resource name")
    if len(name) + len(principal) + len(host) > MAX_BINDING_CHARS:
        raise _invalid(f"An ACL may have at most {MAX_BINDING_CHARS} characters")
    kind, _, user = principal.partition(":")
    if not kind or not user:
        raise _invalid(f"Could not parse principal from `{principal[:100]}`")
    return AclBinding(
        _code(AclResource, resource, "resourceType"),
        name,
        _code(AclPattern, pattern, "patternType", AclPattern.MATCH),
        principal,
        host,
        _code(AclOperation, operation, "operation"),
        _code(AclPermission, permission, "permissionType"),
    )


def make_filter(
    resource: int,
    name: str | None,
    pattern: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Validate the fields of a filter. Raises KafkaError(INVALID_REQUEST) for unknown codes."""
    try:
        kind, match = AclResource(resource), AclPattern(pattern)
    except ValueError as failure:
        raise _invalid("Unknown patternFilter.") from failure
    try:
        return AclFilter(
            kind, name, match, principal, host, AclOperation(operation), AclPermission(permission)
        )
    except ValueError as failure:
        raise _invalid("Unknown entryFilter.") from failure


def _code(kind: type[E], code: int, field: str, *others: int) -> E:
    """The enum's member, except ANY and `others`. Raises KafkaError(INVALID_REQUEST)."""
    try:
        found = kind(code)
    except ValueError as failure:
        raise _invalid(f"Invalid {field} UNKNOWN") from failure
    if found == 1 or found in others:
        raise _invalid(f"Invalid {field} {found.name}")
    return found


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


class AclIndex:
    """Bindings by resource. A lookup does not depend on the number of bindings of other resources.

    Prefixes are looked up once for each length that occurs.
    """

    __slots__ = ("_all", "_literal", "_prefixed")

    def __init__(self, bindings: Iterable[AclBinding] = ()) -> None:
        self._all: dict[AclBinding, None] = {}
        self._literal: dict[tuple[AclResource, str], dict[AclBinding, None]] = {}
        #: By resource type and length, then by prefix.
        self._prefixed: dict[AclResource, dict[int, dict[str, dict[AclBinding, None]]]] = {}
        for binding in bindings:
            self.add(binding)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self._all)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._all

    def add(self, binding: AclBinding) -> None:
        self._all[binding] = None
        name = binding.name
        if binding.pattern is AclPattern.LITERAL:
            self._literal.setdefault((binding.resource, name), {})[binding] = None
        else:
            by_length = self._prefixed.setdefault(binding.resource, {})
            by_length.setdefault(len(name), {}).setdefault(name, {})[binding] = None

    def remove(self, binding: AclBinding) -> None:
        """Raises KeyError if it is not there."""
        del self._all[binding]
        name = binding.name
        if binding.pattern is AclPattern.LITERAL:
            rules = self._literal[binding.resource, name]
            del rules[binding]
            if not rules:
                del self._literal[binding.resource, name]
            return
        by_length = self._prefixed[binding.resource]
        by_name = by_length[len(name)]
        del by_name[name][binding]
        if not by_name[name]:
            del by_name[name]
        if not by_name:
            del by_length[len(name)]

    def of_resource(self, resource: AclResource, name: str) -> Iterator[AclBinding]:
        """Yield the bindings that apply to a resource."""
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), ())
        for length, by_name in self._prefixed.get(resource, {}).items():
            if length <= len(name):
                yield from by_name.get(name[:length], ())


__all__ = [
    "CLUSTER_NAME",
    "EVERYONE",
    "SUPPORTED_OPERATIONS",
    "AclBinding",
    "AclFilter",
    "AclIndex",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "make_binding",
    "make_filter",
]
