"""Kafka's operations as permissions of a store, and a broker with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.admin.acl import CreateAclsRequest, DescribeAclsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from auth.mechanism import ANONYMOUS, Principal
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode
from gateway.security.acls import AclOperation, AclPattern, AclPermission, AclResource
from gateway.security.pulsar_authorizer import PulsarAuthorizer
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.fakes.memory_store import Medium
from tests.gateway.handlers.handler_calls import call

Op, On = AclOperation, AclResource
HOST = "1.2.3.4"


def is_in(topic: str, namespace: str | None) -> bool:
    """Whether the topic is in the namespace; None stands for all."""
    return namespace is None or topic.startswith(f"persistent://{namespace}/")


@dataclass
class FakePermissions:
    """Permissions as sets: topics by role, and group restrictions by group."""

    version: int = 0
    writers: dict[str, set[str]] = field(default_factory=dict)
    readers: dict[str, set[str]] = field(default_factory=dict)
    administrators: set[str] = field(default_factory=set)
    groups: dict[str, set[str]] = field(default_factory=dict)
    refreshes: int = 0

    def may_write(self, role: str, topic: str) -> bool:
        return topic in self.writers.get(role, ())

    def may_read(self, role: str, topic: str) -> bool:
        return topic in self.readers.get(role, ())

    def may_administer(self, role: str, topic: str) -> bool:
        return role in self.administrators

    def may_write_any(self, role: str, namespace: str | None = None) -> bool:
        return any(is_in(topic, namespace) for topic in self.writers.get(role, ()))

    def may_read_any(self, role: str, namespace: str | None = None) -> bool:
        return any(is_in(topic, namespace) for topic in self.readers.get(role, ()))

    def may_administer_all(self, role: str, namespace: str | None = None) -> bool:
        return role in self.administrators

    def may_use_group(self, role: str, group: str, namespace: str | None = None) -> bool:
        return group not in self.groups or role in self.groups[group]

    def refresh_soon(self) -> None:
        self.refreshes += 1


def permissions() -> FakePermissions:
    """alice produces, bob consumes, boss administers, carol may do nothing."""
    return FakePermissions(
        writers={"alice": {"orders"}}, readers={"bob": {"orders"}}, administrators={"boss"}
    )


def allowed(
    resource: AclResource,
    operation: AclOperation,
    granted: FakePermissions | None = None,
    name: str = "orders",
) -> set[str]:
    made = PulsarAuthorizer(granted or permissions(), ["User:root"])
    return {
        role
        for role in ("alice", "bob", "boss", "carol", "root")
        if made.authorize(Principal("User", role), HOST, operation, resource, name)
    }


def test_rights_in_another_namespace_do_not_count_for_a_bound_principal() -> None:
    """A client of one tenant that logs in as another finds neither groups nor producer ids."""
    orders = {"persistent://acme/sales/orders"}
    granted = FakePermissions(
        writers={"alice": orders}, readers={"alice": orders}, groups={"payroll": {"bob"}}
    )
    made = PulsarAuthorizer(granted, [])
    outcomes = {}
    for namespace in ("acme/sales", "acme/stock"):
        principal = Principal("User", "alice", namespace)
        outcomes[namespace] = (
            made.authorize(principal, HOST, Op.READ, On.GROUP, f"{namespace}/readers"),
            made.authorize(principal, HOST, Op.IDEMPOTENT_WRITE, On.CLUSTER, "kafka-cluster"),
            made.authorize_any(principal, HOST, Op.WRITE, On.TOPIC),
            # Restrictions of subscriptions apply to the group's own name.
            made.authorize(principal, HOST, Op.READ, On.GROUP, f"{namespace}/payroll"),
        )
    assert outcomes == {
        "acme/sales": (True, True, True, False),
        "acme/stock": (False, False, False, False),
    }


# The operations of KafkaRequestHandler.authorize in KoP, and those that it does not have.
@pytest.mark.parametrize(
    ("resource", "operation", "roles"),
    [
        (On.TOPIC, Op.WRITE, {"alice"}),
        (On.TOPIC, Op.READ, {"bob"}),
        (On.TOPIC, Op.DESCRIBE, {"alice", "bob"}),
        (On.TOPIC, Op.DESCRIBE_CONFIGS, {"alice", "bob"}),
        (On.TOPIC, Op.CREATE, {"boss"}),
        (On.TOPIC, Op.DELETE, {"boss"}),
        (On.TOPIC, Op.ALTER, {"boss"}),
        (On.TOPIC, Op.ALTER_CONFIGS, {"boss"}),
        (On.GROUP, Op.READ, {"bob"}),
        (On.GROUP, Op.DESCRIBE, {"alice", "bob"}),
        (On.GROUP, Op.DELETE, {"boss"}),
        (On.GROUP, Op.ALTER_CONFIGS, {"boss"}),
        (On.TRANSACTIONAL_ID, Op.WRITE, {"alice"}),
        (On.TRANSACTIONAL_ID, Op.DESCRIBE, {"alice"}),
        (On.CLUSTER, Op.IDEMPOTENT_WRITE, {"alice"}),
        (On.CLUSTER, Op.DESCRIBE, set()),
        (On.CLUSTER, Op.CREATE, set()),
        (On.CLUSTER, Op.ALTER, set()),
        (On.CLUSTER, Op.ALTER_CONFIGS, set()),
        (On.CLUSTER, Op.CLUSTER_ACTION, set()),
        (On.DELEGATION_TOKEN, Op.DESCRIBE, set()),
        (On.USER, Op.CREATE_TOKENS, set()),
    ],
)
def test_operation_requires_permission(
    resource: AclResource, operation: AclOperation, roles: set[str]
) -> None:
    assert allowed(resource, operation) == roles | {"root"}


def test_every_operation_on_other_topics_is_refused() -> None:
    for operation in AclOperation:
        assert not allowed(On.TOPIC, operation, name="invoices") & {"alice", "bob", "carol"}


def test_restricted_group_is_for_its_roles_only() -> None:
    granted = permissions()
    granted.groups["orders"] = {"alice"}
    assert allowed(On.GROUP, Op.READ, granted) == {"root"}
    assert allowed(On.GROUP, Op.DESCRIBE, granted) == {"alice", "root"}


@pytest.mark.parametrize(
    "principal",
    [
        ANONYMOUS,
        Principal("User", "ANONYMOUS", "acme/orders"),
        Principal("Group", "alice"),
        Principal("User", ""),
    ],
)
def test_principals_without_a_role_may_do_nothing(principal: Principal) -> None:
    granted = FakePermissions(
        writers={name: {"orders"} for name in ("", "ANONYMOUS", "alice")},
        administrators={"", "ANONYMOUS", "alice"},
    )
    made = PulsarAuthorizer(granted, [])
    for resource in (On.TOPIC, On.GROUP, On.CLUSTER, On.TRANSACTIONAL_ID):
        for operation in AclOperation:
            assert not made.authorize(principal, HOST, operation, resource, "orders")
    assert not made.authorize_any(principal, HOST, Op.WRITE, On.TOPIC)
    assert not made.may_auto_create(principal, HOST, "orders")


def test_write_to_any_topic_is_for_producers() -> None:
    made = PulsarAuthorizer(permissions(), ["User:root"])

    def roles(operation: AclOperation, resource: AclResource) -> list[str]:
        return [
            role
            for role in ("alice", "bob", "boss", "carol", "root")
            if made.authorize_any(Principal("User", role), HOST, operation, resource)
        ]

    assert roles(Op.WRITE, On.TOPIC) == ["alice", "root"]
    assert roles(Op.READ, On.TOPIC) == ["bob", "root"]
    assert roles(Op.READ, On.GROUP) == ["root"]


# A broker.


@pytest.fixture
def granted() -> FakePermissions:
    return permissions()


@pytest.fixture
def env(granted: FakePermissions) -> BrokerEnvironment:
    return open_environment(
        Medium(permissions=granted),
        authorizer="pulsar",
        super_users="User:root",
        store="pulsar://localhost:6650",
        pulsar_admin="http://localhost:8080",
    )


Login = Callable[[str], None]


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Login:
    """Make all callers from now on those of a role."""
    original = BrokerEnvironment.caller

    def log_in(role: str) -> None:
        def caller(env: BrokerEnvironment, version: int, client_id: str | None = "test") -> Caller:
            made = original(env, version, client_id)
            made.session.identify(Principal("User", role))
            return made

        monkeypatch.setattr(BrokerEnvironment, "caller", caller)

    return log_in


def metadata(env: BrokerEnvironment, *names: str, creates: bool = False) -> dict[str, int]:
    """Error codes by topic, of all topics without names."""
    rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=rows or None, allow_auto_topic_creation=creates)
    return {row.name: row.error_code for row in call(env, request, 4).topics}


def test_listings_show_what_the_role_may_use(
    env: BrokerEnvironment, granted: FakePermissions, login: Login
) -> None:
    env.topic("orders")
    seen = {}
    for role in ("alice", "bob", "boss", "carol", "root"):
        login(role)
        seen[role] = metadata(env)
    orders = {"orders": ErrorCode.NONE}
    assert seen == {"alice": orders, "bob": orders, "boss": {}, "carol": {}, "root": orders}
    assert granted.refreshes == 0


def test_cached_metadata_follows_the_version(
    env: BrokerEnvironment, granted: FakePermissions, login: Login
) -> None:
    env.topic("orders")
    login("carol")
    assert metadata(env) == {}
    granted.readers["carol"] = {"orders"}
    assert metadata(env) == {}
    granted.version += 1
    assert metadata(env) == {"orders": ErrorCode.NONE}


def test_refusal_asks_for_an_early_refresh(
    env: BrokerEnvironment, granted: FakePermissions, login: Login
) -> None:
    env.topic("orders")
    login("carol")
    assert metadata(env, "orders") == {"orders": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert granted.refreshes == 1
    for role in ("alice", ANONYMOUS.name):
        login(role)
        metadata(env, "orders")
    assert granted.refreshes == 1


# As in KoP, and as brokers do for producers and consumers.
@pytest.mark.parametrize("role", ["alice", "bob", "root"])
def test_producers_and_consumers_create_topics_by_metadata(
    env: BrokerEnvironment, login: Login, role: str
) -> None:
    login(role)
    assert metadata(env, "orders", creates=True) == {"orders": ErrorCode.NONE}
    assert "orders" in env.store.topics


def test_create_topics_requires_an_administrator(env: BrokerEnvironment, login: Login) -> None:
    row = CreateTopicsRequest.CreatableTopic(
        name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[row], timeout_ms=1000, validate_only=False)
    codes = {}
    for role in ("alice", "carol", "boss"):
        login(role)
        (codes[role],) = [one.error_code for one in call(env, request, 4).topics]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert codes == {"alice": refused, "carol": refused, "boss": ErrorCode.NONE}


def test_acl_requests_are_answered_as_without_an_authorizer(
    env: BrokerEnvironment, login: Login
) -> None:
    login("root")
    pattern = {
        "resource_type_filter": On.TOPIC,
        "resource_name_filter": None,
        "pattern_type_filter": AclPattern.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Op.ANY,
        "permission_type": AclPermission.ANY,
    }
    assert (
        call(env, DescribeAclsRequest(**pattern), 1).error_code,
        call(env, CreateAclsRequest(creations=[]), 1).results,
    ) == (ErrorCode.SECURITY_DISABLED, [])
    login("alice")
    refused = call(env, DescribeAclsRequest(**pattern), 1).error_code
    assert refused == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_store_without_users_is_refused() -> None:
    with pytest.raises(ValueError, match="authorizer=pulsar"):
        open_environment(authorizer="pulsar", store="pulsar://h:6650", pulsar_admin="http://h:8080")
