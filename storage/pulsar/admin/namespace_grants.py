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
    granted role stands for any text. A wildcard granted on a partitioned topic applies to it, as in
    KoP's Fetch. Pulsar's own clients are refused: brokers compare it with the partition's name.

    Raises StorageFailed for more than `most` permissions.
    """

    __slots__ = (
        "_anywhere",
        "_granted",
        "_has_wildcards",
        "_is_prefixed",
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
        self._has_wildcards = has_wildcards
        self._is_prefixed = info.subscription_auth_mode == "Prefix"
        self._patterns = _patterns(granted.namespace_auth) if has_wildcards else {}
        self._anywhere: dict[str, list[str]] = {}
        self._index()

    def _index(self) -> None:
        """Collect the actions of each role on the namespace or at least one of its topics."""
        writers, readers = set(), set()
        # Those on partitions are not used: a Kafka topic is authorized as a whole.
        for roles in (
            self._granted.namespace_auth,
            *(roles for name, roles in self._granted.destination_auth.items() if _is_topic(name)),
        ):
            for role, actions in roles.items():
                if PRODUCE in actions:
                    writers.add(role)
                if CONSUME in actions:
                    readers.add(role)
        for role in writers:
            self._anywhere.setdefault(role, []).append(PRODUCE)
        for role in readers:
            self._anywhere.setdefault(role, []).append(CONSUME)

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
        return (
            role in self.administrators
            or action in self._granted.namespace_auth.get(role, ())
            or (self._has_wildcards and _is_matched(self._patterns, role, action))
            or self._is_granted(self._granted.destination_auth.get(topic, {}), role, action)
        )

    def allows_anywhere(self, role: str, action: str) -> bool:
        """Whether the role may produce to, or consume from, at least one topic."""
        return role in self.administrators or self._is_granted(self._anywhere, role, action)

    def allows_group(self, role: str, group: str) -> bool:
        """Whether the role may use a subscription of this name."""
        if role in self.administrators:
            return True
        roles = self._granted.subscription_auth_roles.get(group)
        if roles and role not in roles:
            return False
        return not self._is_prefixed or group.startswith(role)

    def _is_granted(self, roles: _Roles, role: str, action: str) -> bool:
        return action in roles.get(role, ()) or (
            self._has_wildcards and _is_matched(_patterns(roles), role, action)
        )


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
