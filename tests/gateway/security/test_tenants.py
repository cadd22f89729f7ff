"""Which namespace a log-in binds its principal to."""

from __future__ import annotations

import pytest

from auth.mechanism import AuthenticationFailed, Principal
from gateway.security.tenants import Tenants, make_tenants
from gateway.settings.model import Settings
from gateway.topics.tenant_scope import TenantScope

TENANTS = Tenants("public/default", ["acme/sales"])
SALES = TenantScope("acme/sales")


@pytest.mark.parametrize("user", ["acme/sales", "acme/sales/app", "acme/sales/app/1"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_name_with_namespace_binds_to_it(user: str, mechanism: str) -> None:
    principal, scope = TENANTS.bind(Principal("User", user), mechanism)
    assert (principal, scope) == (Principal("User", user, "acme/sales"), SALES)
    assert str(principal) == f"User:{user}"


def test_user_of_default_namespace_is_bound_too() -> None:
    assert TENANTS.bind(Principal("User", "public/default"), "PLAIN")[1] == TenantScope(
        "public/default", is_default=True
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "GSSAPI", None])
def test_namespace_of_login_has_precedence(mechanism: str | None) -> None:
    asked = Principal("User", "public/default", "acme/sales")
    assert TENANTS.bind(asked, mechanism) == (asked, SALES)


@pytest.mark.parametrize(
    ("user", "mechanism"),
    [("app", "PLAIN"), ("kafka/host", "GSSAPI"), ("acme/sales/app", None), ("a/b", "OAUTHBEARER")],
)
def test_other_principals_are_not_bound(user: str, mechanism: str | None) -> None:
    principal = Principal("User", user)
    assert TENANTS.bind(principal, mechanism) == (principal, None)


@pytest.mark.parametrize("user", ["acme/other", "acme/other/app"])
def test_namespace_that_is_not_served_fails_the_login(user: str) -> None:
    with pytest.raises(AuthenticationFailed, match="namespace acme/other is not served; add it to"):
        TENANTS.bind(Principal("User", user), "PLAIN")


@pytest.mark.parametrize("user", ["acme/", "/sales", "acme//app", "acme/sales/", "/", "acme/a b"])
def test_malformed_user_name_fails_the_login(user: str) -> None:
    with pytest.raises(AuthenticationFailed, match="must be TENANT/NAMESPACE or"):
        TENANTS.bind(Principal("User", user), "PLAIN")


def test_settings_enable_tenants() -> None:
    pulsar = {"store": "pulsar://h:6650", "pulsar_admin": "http://h:8080"}
    assert make_tenants(Settings(**pulsar)) is None  # type: ignore[arg-type]
    made = make_tenants(
        Settings(  # type: ignore[arg-type]
            **pulsar,
            pulsar_multi_tenant_metadata=True,
            pulsar_namespace="main",
            pulsar_allowed_namespaces=["acme/sales"],
        )
    )
    assert made is not None
    assert made.bind(Principal("User", "acme/sales"), "PLAIN")[1] == SALES
    assert made.bind(Principal("User", "public/main"), "PLAIN")[1] == TenantScope(
        "public/main", is_default=True
    )
