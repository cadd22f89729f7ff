from __future__ import annotations

import pytest

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.security.acls import (
    AclBinding,
    AclFilter,
    AclIndex,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    make_binding,
    make_filter,
)

TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
LITERAL, PREFIXED = AclPattern.LITERAL, AclPattern.PREFIXED
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY


def binding(
    name="orders",
    operation=AclOperation.READ,
    *,
    resource=TOPIC,
    pattern=LITERAL,
    principal="User:alice",
    host="*",
    permission=ALLOW,
):
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER", "DESCRIBE", "ALL"])
def test_operations_imply_describe(operation):
    rule = binding(operation=AclOperation[operation])
    assert rule.result("User:alice", "1.2.3.4", AclOperation.DESCRIBE) is ALLOW


@pytest.mark.parametrize("operation", ["CREATE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"])
def test_other_operations_do_not_imply_describe(operation):
    rule = binding(operation=AclOperation[operation])
    assert rule.result("User:alice", "1.2.3.4", AclOperation.DESCRIBE) is None


def test_alter_configs_implies_describe_configs():
    rule = binding(operation=AclOperation.ALTER_CONFIGS)
    assert rule.result("User:alice", "1.2.3.4", AclOperation.DESCRIBE_CONFIGS) is ALLOW


def test_denial_implies_nothing():
    rule = binding(operation=AclOperation.READ, permission=DENY)
    assert rule.result("User:alice", "1.2.3.4", AclOperation.READ) is DENY
    assert rule.result("User:alice", "1.2.3.4", AclOperation.DESCRIBE) is None


@pytest.mark.parametrize(
    ("principal", "host", "applies"),
    [
        ("User:alice", "*", True),
        ("User:*", "1.2.3.4", True),
        ("User:bob", "*", False),
        ("User:alice", "1.2.3.5", False),
        ("Group:*", "*", False),
    ],
)
def test_principal_and_host_must_match(principal, host, applies):
    rule = binding(principal=principal, host=host)
    assert (rule.result("User:alice", "1.2.3.4", AclOperation.READ) is ALLOW) is applies


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),  # Java's InetAddress.getHostAddress
        ("2001:DB8::0001", "2001:db8::1"),
        ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
    ],
)
def test_each_form_of_an_address_is_the_same_host(written, host):
    read = AclOperation.READ
    assert binding(host=written).result("User:alice", host, read) is ALLOW
    assert binding(host=written, permission=DENY).result("User:alice", host, read) is DENY
    assert binding(host=written).result("User:alice", "2001:db8::2", read) is None


def test_index_finds_literal_wildcard_and_prefixed_rules():
    rules = [
        binding("orders"),
        binding("*"),
        binding("ord", pattern=PREFIXED),
        binding("orders", pattern=PREFIXED),
        binding("order"),
        binding("orders-2", pattern=PREFIXED),
        binding("orders", resource=GROUP),
    ]
    index = AclIndex(rules)
    assert set(index.of_resource(TOPIC, "orders")) == set(rules[:4])
    for rule in rules:
        index.remove(rule)
    assert list(index.of_resource(TOPIC, "orders")) == []
    assert len(index) == 0


def test_literal_prefix_star_matches_names_with_a_star_only():
    index = AclIndex([binding("*", pattern=PREFIXED)])
    assert list(index.of_resource(TOPIC, "orders")) == []
    assert len(list(index.of_resource(TOPIC, "*x"))) == 1


def test_filter_any_matches_exact_names_only():
    selected = AclFilter(TOPIC, "orders")
    assert selected.matches(binding("orders"))
    assert selected.matches(binding("orders", pattern=PREFIXED))
    assert not selected.matches(binding("ord", pattern=PREFIXED))
    assert not selected.matches(binding("*"))


def test_filter_match_selects_what_applies_to_the_name():
    selected = AclFilter(TOPIC, "orders", AclPattern.MATCH)
    assert selected.matches(binding("orders"))
    assert selected.matches(binding("ord", pattern=PREFIXED))
    assert selected.matches(binding("*"))
    assert not selected.matches(binding("orders-2", pattern=PREFIXED))
    assert not selected.matches(binding("ord"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("principal", "User:bob"), ("host", "1.2.3.4"), ("operation", AclOperation.WRITE),
     ("permission", DENY), ("resource", GROUP)],
)  # fmt: skip
def test_filter_compares_each_field(field, value):
    assert not AclFilter(**{field: value}).matches(binding())
    assert AclFilter(**{field: value}).matches(binding(**{field: value}))


@pytest.mark.parametrize(
    "fields",
    [
        (CLUSTER, "other", LITERAL, "User:a", "*", 3, 3),
        (TOPIC, "", LITERAL, "User:a", "*", 3, 3),
        (1, "t", LITERAL, "User:a", "*", 3, 3),
        (99, "t", LITERAL, "User:a", "*", 3, 3),
        (TOPIC, "t", AclPattern.MATCH, "User:a", "*", 3, 3),
        (TOPIC, "t", AclPattern.ANY, "User:a", "*", 3, 3),
        (TOPIC, "t", 0, "User:a", "*", 3, 3),
        (TOPIC, "t", LITERAL, "alice", "*", 3, 3),
        (TOPIC, "t", LITERAL, "User:a", "*", 1, 3),
        (TOPIC, "t", LITERAL, "User:a", "*", 0, 3),
        (TOPIC, "t", LITERAL, "User:a", "*", 3, 1),
        (TOPIC, "t", LITERAL, "User:a", "*", 3, 0),
        (TOPIC, "t" * 5_000, LITERAL, "User:a", "*", 3, 3),
    ],
)
def test_invalid_binding_is_refused(fields):
    with pytest.raises(KafkaError) as refusal:
        make_binding(*fields)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_valid_binding():
    assert make_binding(4, "kafka-cluster", 3, "User:a", "*", 7, 2) == AclBinding(
        CLUSTER, "kafka-cluster", LITERAL, "User:a", "*", AclOperation.ALTER, DENY
    )


@pytest.mark.parametrize("codes", [(0, 1, 1, 1), (1, 9, 1, 1), (1, 1, 0, 1), (1, 1, 1, 7)])
def test_filter_with_unknown_codes_is_refused(codes):
    resource, pattern, operation, permission = codes
    with pytest.raises(KafkaError) as refusal:
        make_filter(resource, None, pattern, None, None, operation, permission)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
