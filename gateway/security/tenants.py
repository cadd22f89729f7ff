"""Binds principals to Pulsar namespaces (KoP's kafkaEnableMultiTenantMetadata)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from auth.mechanism import AuthenticationFailed, Principal
from gateway.settings.addresses import parse_namespace
from gateway.settings.model import Settings
from gateway.topics.tenant_scope import TenantScope

#: Mechanisms whose user names may name a namespace. Names of other mechanisms, for example
#: `kafka/host` of Kerberos, contain slashes with other meanings.
_NAMED_BY_USER = ("PLAIN", "SCRAM-")


class Tenants:
    """The namespaces that principals can be bound to: the `default` one, and `others`."""

    def __init__(self, default: str, others: Iterable[str]) -> None:
        self._scopes = {
            namespace: TenantScope(namespace, namespace == default)
            for namespace in (default, *others)
        }

    def bind(
        self, principal: Principal, mechanism: str | None
    ) -> tuple[Principal, TenantScope | None]:
        """Return the principal with its namespace, and the scope of its names.

        The namespace is that of the log-in. If it has none, a user name of the form
        `TENANT/NAMESPACE` or `TENANT/NAMESPACE/USER` names it; other principals are not bound.
        Raises AuthenticationFailed if the namespace is not served, or the name is malformed.
        """
        namespace = principal.tenant
        if namespace is None and mechanism is not None and mechanism.startswith(_NAMED_BY_USER):
            namespace = _namespace_in(principal.name)
        if namespace is None:
            return principal, None
        scope = self._scopes.get(namespace)
        if scope is None:
            raise AuthenticationFailed(
                f"namespace {namespace} is not served; add it to pulsar_allowed_namespaces"
            )
        return replace(principal, tenant=namespace), scope


def _namespace_in(user: str) -> str | None:
    if "/" not in user:
        return None
    tenant, _, rest = user.partition("/")
    namespace, slash, name = rest.partition("/")
    try:
        if slash and not name:
            raise ValueError
        return parse_namespace(f"{tenant}/{namespace}")
    except ValueError:
        raise AuthenticationFailed(
            "a user name with a slash must be TENANT/NAMESPACE or TENANT/NAMESPACE/USER"
        ) from None


def make_tenants(settings: Settings) -> Tenants | None:
    """The namespaces that the settings serve, None without multi-tenancy."""
    if not settings.pulsar_multi_tenant_metadata:
        return None
    default = f"{settings.pulsar_tenant}/{settings.pulsar_namespace}"
    return Tenants(default, settings.pulsar_allowed_namespaces)
