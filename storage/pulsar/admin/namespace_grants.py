"""The permissions granted in a namespace, and Pulsar's rules for them.

The rules are those of PulsarAuthorizationProvider (4.0): a role may do what is granted to it on the
namespace or the topic, and an administrator of the tenant may do everything in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from storage.log import StorageFailed
from storage.pulsar.topics.pulsar_names import PREFIX, partition_of

PRODUCE, CONSUME = "produce", "consume"
_WILDCARD = "*"


class TenantInfo(msgspec.Struct, frozen=True):
    """The part of `/tenants/TENANT` that is used, with Pulsar's field names."""

    adminRoles: list[str]


class AuthPolicies(msgspec.Struct, frozen=True):
    """Actions by role; for topics by full name; and the roles of subscriptions."""

    namespace_auth: dict[str, list[str]]
    destination_auth: dict[str, dict[str, list[str]]]
    subscription_auth_roles: dict[str, list[str]] = {}


class NamespaceInfo(msgspec.Struct, frozen=True):
    """The part of `/namespaces/TENANT/NAMESPACE` that is used, with Pulsar's field names."""

    auth_policies: AuthPolicies
    subscription_auth_mode: str | None = None


@dataclass(frozen=True, slots=True)
class RoleSet:
    """Roles with an action.

    With wildcards, `prefixes` and `suffixes` are the roles that end or begin with `*`, without it.
    Here a wildcard granted on a partitioned topic applies to it, as in KoP's Fetch. Brokers look
    for it in vain at the topic's partitions, and refuse Pulsar's clients.
    """

    roles: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, roles: Iterable[str], *, has_wildcards: bool) -> RoleSet:
        unique = frozenset(roles)
        if not has_wildcards:
            return cls(unique)
        return cls(
            unique,
            tuple(sorted(role[:-1] for role in unique if role.endswith(_WILDCARD))),
            tuple(sorted(role[1:] for role in unique if role.startswith(_WILDCARD))),
        )

    def __contains__(self, role: str) -> bool:
        return role in self.roles or role.startswith(self.prefixes) or role.endswith(self.suffixes)


_NO_ROLES = RoleSet()


@dataclass(frozen=True, slots=True)
class NamespaceGrants:
    """Who may do what in a namespace.

    `on_namespace` is by action, `on_topics` by action and full name, `anywhere` by action on the
    namespace or any of its topics. `group_roles` are the roles of restricted subscriptions.
    `is_prefixed`: names of subscriptions must begin with the role.
    """

    administrators: frozenset[str] = frozenset()
    on_namespace: Mapping[str, RoleSet] = field(default_factory=dict)
    on_topics: Mapping[str, Mapping[str, RoleSet]] = field(default_factory=dict)
    anywhere: Mapping[str, RoleSet] = field(default_factory=dict)
    group_roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_prefixed: bool = False

    def allows(self, role: str, action: str, topic: str) -> bool:
        """Whether the role may produce or consume; `topic` is a full name."""
        return (
            role in self.administrators
            or role in self.on_namespace.get(action, _NO_ROLES)
            or role in self.on_topics.get(action, {}).get(topic, _NO_ROLES)
        )

    def allows_anywhere(self, role: str, action: str) -> bool:
        """Whether the role may produce to, or consume from, at least one topic."""
        return role in self.administrators or role in self.anywhere.get(action, _NO_ROLES)

    def allows_group(self, role: str, group: str) -> bool:
        """Whether the role may use a subscription of this name."""
        if role in self.administrators:
            return True
        roles = self.group_roles.get(group)
        if roles and role not in roles:
            return False
        return not self.is_prefixed or group.startswith(role)


def grants_of(
    info: NamespaceInfo, administrators: Iterable[str], *, most: int, has_wildcards: bool
) -> NamespaceGrants:
    """Index the permissions of a namespace.

    Grants on single partitions are left out: Pulsar lists those of a topic under its own name, and
    a Kafka topic is authorized as a whole. Raises StorageFailed for more than `most` permissions.
    """
    granted = info.auth_policies
    topics = {
        name: roles
        for name, roles in granted.destination_auth.items()
        if name.startswith(PREFIX) and partition_of(name) is None
    }
    count = (
        sum(map(len, granted.namespace_auth.values()))
        + sum(len(actions) for roles in topics.values() for actions in roles.values())
        + sum(map(len, granted.subscription_auth_roles.values()))
    )
    if count > most:
        raise StorageFailed(
            f"{count} permissions are granted, more than {most} (pulsar_permissions_max)"
        )

    def with_action(action: str, roles: Mapping[str, list[str]]) -> RoleSet:
        return RoleSet.of(
            (role for role, actions in roles.items() if action in actions and role),
            has_wildcards=has_wildcards,
        )

    on_namespace, on_topics, anywhere = {}, {}, {}
    for action in (PRODUCE, CONSUME):
        on_namespace[action] = with_action(action, granted.namespace_auth)
        found = {name: with_action(action, roles) for name, roles in topics.items()}
        on_topics[action] = {name: roles for name, roles in found.items() if roles.roles}
        anywhere[action] = RoleSet.of(
            on_namespace[action].roles.union(*(one.roles for one in found.values())),
            has_wildcards=has_wildcards,
        )
    return NamespaceGrants(
        frozenset(administrators),
        on_namespace,
        on_topics,
        anywhere,
        {name: frozenset(roles) for name, roles in granted.subscription_auth_roles.items()},
        info.subscription_auth_mode == "Prefix",
    )
