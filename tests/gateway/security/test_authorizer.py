from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from auth.mechanism import Principal
from gateway.coroutines import TimeSlices
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.security import authorizer as module
from gateway.security.acls import (
    AclBinding,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
)
from gateway.security.authorizer import AclAuthorizer, TopicDecisions
from tests.fakes.broker import ended
from tests.fakes.memory_store import MemoryStore

ALICE, HOST = Principal("User", "alice"), "1.2.3.4"
TOPIC, READ, WRITE = AclResource.TOPIC, AclOperation.READ, AclOperation.WRITE
LITERAL, PREFIXED = AclPattern.LITERAL, AclPattern.PREFIXED


def added(made, *rules):
    ended(made.add(rules, TimeSlices(Clock())))


def removed(made, *rules):
    ended(made.remove(rules, TimeSlices(Clock())))


def rule(
    name, operation=READ, permission="ALLOW", pattern=LITERAL, principal="User:alice", host="*"
):
    return AclBinding(TOPIC, name, pattern, principal, host, operation, AclPermission[permission])


def opened(store=None, *, super_users=(), allows_unlisted=False, max_acls=1000):
    store = store or MemoryStore()
    ended(store.open())
    made = AclAuthorizer(
        ended(store.table("acls")), super_users, allows_unlisted=allows_unlisted, max_acls=max_acls
    )
    ended(made.open())
    return made


def with_rules(*rules, **options):
    made = opened(**options)
    added(made, *rules)
    return made


def reads(made, name="orders", operation=READ):
    return made.authorize(ALICE, HOST, operation, TOPIC, name)


def test_nothing_is_allowed_without_acls():
    assert not reads(opened())


def test_unlisted_resources_may_be_open_to_everyone():
    made = with_rules(rule("orders", principal="User:bob"), allows_unlisted=True)
    assert reads(made, "other")
    assert not reads(made, "orders")


def test_super_users_may_do_everything():
    made = with_rules(rule("orders", AclOperation.ALL, "DENY"), super_users=["User:alice"])
    assert reads(made)


def test_denial_wins_over_permission():
    made = with_rules(rule("*"), rule("ord", permission="DENY", pattern=PREFIXED))
    assert not reads(made)
    assert reads(made, "invoices")


def test_change_of_acls_applies_at_once():
    made = opened()
    assert not reads(made)
    added(made, rule("orders"))
    assert reads(made)
    removed(made, rule("orders"))
    assert not reads(made)


def test_acls_survive_a_restart():
    store = MemoryStore()
    made = opened(store)
    added(made, rule("orders"), rule("a" * 249, pattern=PREFIXED))
    removed(made, rule("orders"), rule("absent"))
    again = AclAuthorizer(ended(store.table("acls")), (), allows_unlisted=False, max_acls=10)
    ended(again.open())
    assert again.bindings() == [rule("a" * 249, pattern=PREFIXED)]


def test_existing_binding_is_added_once():
    made = with_rules(rule("orders"), rule("orders"))
    version = made.version
    added(made, rule("orders"))
    assert len(made.bindings()) == 1
    assert made.version == version


def test_number_of_acls_is_limited():
    made = with_rules(rule("a"), rule("b"), max_acls=2)
    with pytest.raises(KafkaError) as refusal:
        added(made, rule("c"))
    assert refusal.value.code is ErrorCode.POLICY_VIOLATION
    added(made, rule("b"))


def test_number_of_kept_decisions_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MAX_DECISIONS", 10)
    made = with_rules(rule("t", pattern=PREFIXED))
    assert all(reads(made, f"t{index}") for index in range(100))
    assert len(made._decisions) <= 10


def test_any_resource_is_allowed_by_a_single_permission():
    assert not opened().authorize_any(ALICE, HOST, WRITE, TOPIC)
    made = with_rules(rule("orders", WRITE))
    assert made.authorize_any(ALICE, HOST, WRITE, TOPIC)
    assert not made.authorize_any(ALICE, HOST, WRITE, AclResource.GROUP)
    assert not made.authorize_any(Principal("User", "bob"), HOST, WRITE, TOPIC)
    assert not made.authorize_any(ALICE, HOST, AclOperation.DESCRIBE, TOPIC)


def test_any_resource_is_denied_to_an_address_in_each_form():
    made = with_rules(rule("orders", WRITE), rule("*", WRITE, "DENY", host="2001:db8:0:0:0:0:0:1"))
    assert not made.authorize_any(ALICE, "2001:db8::1", WRITE, TOPIC)
    assert made.authorize_any(ALICE, "2001:db8::2", WRITE, TOPIC)


@pytest.mark.parametrize(
    ("allowed", "denied", "expected"),
    [
        (("orders", LITERAL), ("orders", LITERAL), False),
        (("orders", LITERAL), ("ord", PREFIXED), False),
        (("orders", PREFIXED), ("ord", PREFIXED), False),
        (("orders", PREFIXED), ("orders", LITERAL), True),
        (("ord", PREFIXED), ("orders", PREFIXED), True),
        (("*", LITERAL), ("orders", LITERAL), True),
        (("*", LITERAL), ("*", LITERAL), False),
    ],
)
def test_any_resource_considers_denials_that_cover_the_permission(allowed, denied, expected):
    made = with_rules(
        rule(allowed[0], WRITE, pattern=allowed[1]), rule(denied[0], WRITE, "DENY", denied[1])
    )
    assert made.authorize_any(ALICE, HOST, WRITE, TOPIC) is expected


def test_any_resource_is_allowed_to_super_users():
    made = with_rules(rule("*", WRITE, "DENY"), super_users=["User:alice"])
    assert made.authorize_any(ALICE, HOST, WRITE, TOPIC)


def test_decisions_of_a_connection_end_with_the_version_of_the_acls():
    kept = TopicDecisions()
    assert kept.get(READ, "orders", 1) is None
    kept.put(READ, "orders", True)
    kept.put(WRITE, "orders", False)
    assert (kept.get(READ, "orders", 1), kept.get(WRITE, "orders", 1)) == (True, False)
    assert kept.get(READ, "other", 1) is None
    assert kept.get(READ, "orders", 2) is None
    kept.put(READ, "orders", False)
    assert kept.get(READ, "orders", 2) is False


def test_number_of_decisions_of_a_connection_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MAX_CONNECTION_DECISIONS", 10)
    kept = TopicDecisions()
    kept.get(READ, "", 1)
    for index in range(25):
        kept.put(READ, str(index), True)
        kept.put(WRITE, str(index), True)
    operations = (READ, WRITE)
    found = [kept.get(one, str(index), 1) for index in range(25) for one in operations]
    assert 0 < len(found) - found.count(None) <= 10
    kept.put(READ, "n" * 1000, True)
    assert kept.get(READ, "n" * 1000, 1) is None
