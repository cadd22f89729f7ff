"""The permissions granted in a namespace, and Pulsar's rules for them.

The rules are those of PulsarAuthorizationProvider (4.0): a role may do what is granted to it on the
namespace or the topic, and an administrator of the tenant may do everything in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from storage.log import StorageFailed
from storage.pulsar.topics.pulsar_names import PREFIX, partition_of

PRODUCE, CONSUME = "produce", "consume"
_WILDCARD = "*"

#: Actions by role.
_Roles = Mapping[str, list[str]]


class TenantInfo(msgspec.Struct, frozen=True):
    """The part of `/tenants/TENANT` that is used, with Pulsar's field names.

    A tenant that was created without administrators has no `adminRoles`.
    """

    adminRoles: list[str] = []


class AuthPolicies(msgspec.Struct, frozen=True):
    """Actions by role, those on topics by full name, and the roles of subscriptions."""

    namespace_auth: dict[str, list[str]]
    destination_auth: dict[str, dict[str, list[str]]]
    subscription_auth_roles: dict[str, list[str]] = {}

    def count(self) -> int:
        """The number of permissions."""
        on_topics = chain.from_iterable(one.values() for one in self.destination_auth.values())
        return sum(
            map(
                len,
                chain(
                    self.namespace_auth.values(), on_topics, self.subscription_auth_roles.values()
                ),
            )
        )


class NamespaceInfo(msgspec.Struct, frozen=True):
    """The part of `/namespaces/TENANT/NAMESPACE` that is used, with Pulsar's field names."""

    auth_policies: AuthPolicies
    subscription_auth_mode: str | None = None


class NamespaceGrants:
    """Who may do what in a namespace.

    `administrators` are those of the tenant. With `has_wildcards`, `*` at the beginning or end of a
    role that is granted something on the namespace stands for any text. Wildcards granted on topics
    are not used: brokers do not apply them to the partitions of a topic either.

    Raises StorageFailed for more than `most` permissions.
    """

    __slots__ = (
        "_granted",
        "_is_prefixed",
        "_on_topics",
        "_patterns",
        "administrators",
    )

    def __init__(
        self,
        info: NamespaceInfo,
        administrators: Iterable[str],
        *,
        most: int,
        has_wildcards: bool,
    ) -> None:
        self._granted = granted = info.auth_policies
        if granted.count() > most:
            raise StorageFailed(
                f"{granted.count()} permissions are granted, more than {most} "
                "(pulsar_permissions_max)"
            )
        self.administrators = frozenset(administrators)
        self._is_prefixed = info.subscription_auth_mode == "Prefix"
        self._patterns = _patterns(granted.namespace_auth) if has_wildcards else {}
        self._on_topics = {one: self._roles_on_topics(one) for one in (PRODUCE, CONSUME)}

    def _roles_on_topics(self, action: str) -> frozenset[str]:
        """The roles with an action on at least one topic."""
        # Those on partitions are not used: a Kafka topic is authorized as a whole.
        return frozenset(
            role
            for name, roles in self._granted.destination_auth.items()
            if _is_topic(name)
            for role, actions in roles.items()
            if action in actions
        )

    def __eq__(self, other: object) -> bool:
        """Whether both grant the same; they are compared with the same settings."""
        return (
            isinstance(other, NamespaceGrants)
            and self._granted == other._granted
            and self.administrators == other.administrators
            and self._is_prefixed == other._is_prefixed
        )

    __hash__ = None  # type: ignore[assignment]

    def allows(self, role: str, action: str, topic: str) -> bool:
        """Whether the role may produce or consume; `topic` is a full name."""
        return self._allows_everywhere(
            role, action
        ) or action in self._granted.destination_auth.get(topic, {}).get(role, ())

    def allows_anywhere(self, role: str, action: str) -> bool:
        """Whether the role may produce to, or consume from, at least one topic."""
        return self._allows_everywhere(role, action) or role in self._on_topics[action]

    def _allows_everywhere(self, role: str, action: str) -> bool:
        return (
            role in self.administrators
            or action in self._granted.namespace_auth.get(role, ())
            or _is_matched(self._patterns, role, action)
        )

    def allows_group(self, role: str, group: str) -> bool:
        """Whether the role may use a subscription of this name."""
        if role in self.administrators:
            return True
        roles = self._granted.subscription_auth_roles.get(group)
        if roles and role not in roles:
            return False
        return not self._is_prefixed or group.startswith(role)


def _is_topic(name: str) -> bool:
    return name.startswith(PREFIX) and partition_of(name) is None


def _patterns(roles: _Roles) -> dict[str, list[str]]:
    """Roles with a wildcard."""
    return {
        role: actions
        for role, actions in roles.items()
        if role.startswith(_WILDCARD) or role.endswith(_WILDCARD)
    }


def _is_matched(patterns: _Roles, role: str, action: str) -> bool:
    """Whether one of the patterns allows the action (checkWildcardPermission)."""
    return any(
        action in actions
        and (
            (pattern.endswith(_WILDCARD) and role.startswith(pattern[:-1]))
            or (pattern.startswith(_WILDCARD) and role.endswith(pattern[1:]))
        )
        for pattern, actions in patterns.items()
    )
