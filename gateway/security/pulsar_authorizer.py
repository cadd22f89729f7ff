"""Decides what principals may do by the permissions that Pulsar grants to roles.

Kafka's operations are mapped as in KoP (`SimpleAclAuthorizer`, `KafkaRequestHandler.authorize`):

| operation | resource | who may |
|---|---|---|
| READ | topic | roles that may consume |
| WRITE | topic | roles that may produce |
| DESCRIBE, DESCRIBE_CONFIGS | topic | both; they may also create a missing topic by Metadata |
| all others | topic | administrators of the tenant |
| READ | group | roles that may consume from any topic, if the subscription is not restricted |
| DESCRIBE, DESCRIBE_CONFIGS | group | as READ, and roles that may produce to any topic |
| all others | group | administrators of all served tenants |
| WRITE, DESCRIBE | transactional id | roles that may produce to any topic |
| IDEMPOTENT_WRITE | cluster | roles that may produce to any topic |
| all others | cluster | super users |

For a principal that is bound to a namespace, "any topic" and "all served tenants" are those of the
namespace: a client may choose the namespace of its log-in.

KoP has no checks for groups and the cluster. It lets administrators of a tenant produce and consume
only with a grant; here they may, as with Pulsar's clients.
"""

from __future__ import annotations

from collections.abc import Iterable

from auth.mechanism import ANONYMOUS, Principal
from gateway.security.acls import AclOperation, AclResource
from storage.permissions import Permissions

_VIEWS = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


class PulsarAuthorizer:
    """The role of a principal is its name. `super_users` (`User:NAME`) may do everything.

    Clients that do not log in have no role.
    """

    def __init__(self, permissions: Permissions, super_users: Iterable[str]) -> None:
        self._permissions = permissions
        self._super_users = frozenset(super_users)

    @property
    def version(self) -> int:
        return self._permissions.version

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: AclOperation,
        resource: AclResource,
        name: str,
    ) -> bool:
        """Whether `principal` may do `operation`; its address does not matter."""
        if str(principal) in self._super_users:
            return True
        role = _role_of(principal)
        if not role:
            return False
        if resource is AclResource.TOPIC:
            return self._may_on_topic(role, operation, name)
        if resource is AclResource.GROUP:
            return self._may_on_group(role, operation, name, principal.tenant)
        if resource is AclResource.TRANSACTIONAL_ID:
            needs_write = operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
        else:
            needs_write = (
                resource is AclResource.CLUSTER and operation is AclOperation.IDEMPOTENT_WRITE
            )
        return needs_write and self._permissions.may_write_any(role, principal.tenant)

    def _may_on_topic(self, role: str, operation: AclOperation, topic: str) -> bool:
        granted = self._permissions
        if operation is AclOperation.WRITE:
            return granted.may_write(role, topic)
        if operation is AclOperation.READ:
            return granted.may_read(role, topic)
        if operation in _VIEWS:
            return granted.may_write(role, topic) or granted.may_read(role, topic)
        return granted.may_administer(role, topic)

    def _may_on_group(
        self, role: str, operation: AclOperation, group: str, namespace: str | None
    ) -> bool:
        granted = self._permissions
        if operation is AclOperation.READ or operation in _VIEWS:
            is_user = granted.may_read_any(role, namespace) or (
                operation is not AclOperation.READ and granted.may_write_any(role, namespace)
            )
            plain = group if namespace is None else group.removeprefix(f"{namespace}/")
            return is_user and granted.may_use_group(role, plain, namespace)
        return granted.may_administer_all(role, namespace)

    def authorize_any(
        self, principal: Principal, host: str, operation: AclOperation, resource: AclResource
    ) -> bool:
        """Whether READ or WRITE is allowed on at least one topic; nothing else is asked."""
        if str(principal) in self._super_users:
            return True
        role = _role_of(principal)
        if not role or resource is not AclResource.TOPIC:
            return False
        granted, namespace = self._permissions, principal.tenant
        return (operation is AclOperation.WRITE and granted.may_write_any(role, namespace)) or (
            operation is AclOperation.READ and granted.may_read_any(role, namespace)
        )

    def may_auto_create(self, principal: Principal, host: str, topic: str) -> bool:
        """As Pulsar's brokers do, which create topics for producers and consumers."""
        return self.authorize(principal, host, AclOperation.DESCRIBE, AclResource.TOPIC, topic)

    def note_refusal(self, principal: Principal) -> None:
        if _role_of(principal):
            self._permissions.refresh_soon()


def _role_of(principal: Principal) -> str:
    """Return the role, empty if the principal has none."""
    return principal.name if principal.kind == "User" and principal.name != ANONYMOUS.name else ""
