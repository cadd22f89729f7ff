"""Grants of a namespace, from answers recorded from Pulsar 4.0.8."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log import StorageFailed
from storage.pulsar.admin.namespace_grants import (
    CONSUME,
    PRODUCE,
    NamespaceGrants,
    NamespaceInfo,
    TenantInfo,
)

#: GET /admin/v2/namespaces/acme/orders and /tenants/acme after `namespaces grant-permission` to
#: alice, `topics grant-permission` to bob, `namespaces grant-subscription-permission` to bob and
#: dave and `set-subscription-auth-mode -m Prefix`.
NAMESPACE = (
    b'{"auth_policies":{"namespace_auth":{"alice":["produce"]},"destination_auth":'
    b'{"persistent://acme/orders/t":{"bob":["consume"]},"persistent://acme/orders/np":'
    b'{"bob":["produce","consume"]}},"subscription_auth_roles":{"readers":["dave","bob"]}},'
    b'"replication_clusters":["standalone"],"allowed_clusters":[],"bundles":{"boundaries":'
    b'["0x00000000","0x40000000","0x80000000","0xc0000000","0xffffffff"],"numBundles":4},'
    b'"backlog_quota_map":{},"deleted":false,"encryption_required":false,'
    b'"subscription_auth_mode":"Prefix","offload_threshold":-1,"properties":{},"migrated":false,'
    b'"clusterThatCanDeleteNamespace":"standalone"}'
)
TENANT = b'{"adminRoles":["boss","gateway"],"allowedClusters":["standalone"]}'

T, NP = "persistent://acme/orders/t", "persistent://acme/orders/np"


def read(text: bytes = NAMESPACE, *, most: int = 100, has_wildcards: bool = False):
    administrators = msgspec.json.decode(TENANT, type=TenantInfo).adminRoles
    info = msgspec.json.decode(text, type=NamespaceInfo)
    return NamespaceGrants(info, administrators, most=most, has_wildcards=has_wildcards)


def granted(**policies: object) -> bytes:
    rows = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
    return msgspec.json.encode({"auth_policies": rows | policies})


def test_grant_on_namespace_applies_to_each_topic():
    grants = read()
    assert grants.allows("alice", PRODUCE, T)
    assert grants.allows("alice", PRODUCE, "persistent://acme/orders/missing")
    assert not grants.allows("alice", CONSUME, T)


def test_grant_on_topic_applies_to_this_topic_only():
    grants = read()
    assert grants.allows("bob", CONSUME, T)
    assert not grants.allows("bob", PRODUCE, T)
    assert grants.allows("bob", PRODUCE, NP)
    assert not grants.allows("bob", CONSUME, "persistent://acme/orders/other")


def test_tenant_administrators_may_do_everything():
    grants = read()
    assert grants.administrators == {"boss", "gateway"}
    assert grants.allows("boss", PRODUCE, T)
    assert grants.allows_anywhere("boss", CONSUME)
    assert grants.allows_group("boss", "readers")


def test_allowed_anywhere_means_namespace_or_any_topic():
    grants = read()
    assert grants.allows_anywhere("alice", PRODUCE)
    assert not grants.allows_anywhere("alice", CONSUME)
    assert grants.allows_anywhere("bob", CONSUME)
    assert not grants.allows_anywhere("carol", CONSUME)


# Pulsar 4.0.8 answered AuthorizationError to bob's subscription `readers` and accepted `bob-sub`.
def test_prefix_mode_applies_besides_the_roles_of_a_subscription():
    grants = read()
    assert not grants.allows_group("bob", "readers")
    assert grants.allows_group("bob", "bob-sub")
    assert not grants.allows_group("carol", "bob-sub")


def test_restricted_subscription_is_for_its_roles_only():
    grants = read(granted(subscription_auth_roles={"readers": ["bob"], "open": []}))
    assert grants.allows_group("bob", "readers")
    assert not grants.allows_group("carol", "readers")
    assert grants.allows_group("carol", "others")
    assert grants.allows_group("carol", "open")


# The rules of PulsarAuthorizationProvider.checkWildcardPermission.
@pytest.mark.parametrize(
    ("granted_to", "role"), [("a*", "alice"), ("*ce", "alice"), ("*", "alice"), ("a*", "a*")]
)
def test_wildcards_match_prefixes_and_suffixes_if_enabled(granted_to: str, role: str):
    text = granted(namespace_auth={granted_to: ["consume"]})
    grants = read(text, has_wildcards=True)
    assert grants.allows(role, CONSUME, T)
    assert grants.allows_anywhere(role, CONSUME)
    assert not grants.allows(role, PRODUCE, T)
    assert grants.allows("bob", CONSUME, T) is (granted_to == "*")
    assert read(text).allows(role, CONSUME, T) is (granted_to == role)


# Pulsar 4.0.8 answered AuthorizationError to alice: it compares them with the name of a partition.
def test_wildcards_granted_on_topics_are_not_used():
    grants = read(granted(destination_auth={T: {"a*": ["consume"]}}), has_wildcards=True)
    assert not grants.allows("alice", CONSUME, T)
    assert not grants.allows_anywhere("alice", CONSUME)


def test_other_actions_and_domains_grant_nothing():
    text = granted(
        namespace_auth={"alice": ["functions", "sources", "sinks", "packages"]},
        destination_auth={
            "non-persistent://acme/orders/t": {"bob": ["produce"]},
            f"{T}-partition-0": {"bob": ["produce"]},
        },
    )
    grants = read(text)
    assert not grants.allows("alice", PRODUCE, T)
    assert not grants.allows_anywhere("bob", PRODUCE)
    assert not grants.allows("bob", PRODUCE, T)


def test_number_of_permissions_is_limited():
    # Those on the namespace, the topics and the subscription: 1 + 1 + 2 + 2.
    assert read(most=6)
    with pytest.raises(StorageFailed, match="6 permissions are granted, more than 5"):
        read(most=5)


@pytest.mark.parametrize(
    "text", [b"{}", b"[]", b'{"auth_policies":null}', b'{"auth_policies":{"namespace_auth":[]}}']
)
def test_answer_without_permissions_is_refused(text: bytes):
    with pytest.raises(msgspec.ValidationError):
        read(text)


_NAMES = st.text(max_size=5) | st.sampled_from(["alice", "a*", "*", T, f"{T}-partition-1"])
_ACTIONS = st.lists(st.sampled_from(["produce", "consume", "functions", ""]), max_size=3)
_ROLES = st.dictionaries(_NAMES, _ACTIONS, max_size=3)


@given(
    st.fixed_dictionaries(
        {
            "namespace_auth": _ROLES,
            "destination_auth": st.dictionaries(_NAMES, _ROLES, max_size=3),
            "subscription_auth_roles": st.dictionaries(_NAMES, st.lists(_NAMES, max_size=3)),
        }
    ),
    st.booleans(),
)
def test_any_well_formed_answer_is_indexed(policies: dict[str, object], has_wildcards: bool):
    grants = read(granted(**policies), has_wildcards=has_wildcards)
    for action in (PRODUCE, CONSUME):
        assert not grants.allows("alice", action, T) or grants.allows_anywhere("alice", action)
    grants.allows_group("alice", "readers")


@given(st.binary(max_size=200) | st.text().map(str.encode) | st.just(NAMESPACE[:-1]))
def test_malformed_answers_are_refused(text: bytes):
    try:
        grants = read(text)
    except (msgspec.DecodeError, StorageFailed):
        return
    assert isinstance(grants, NamespaceGrants)
