"""Topic names: Kafka's rules for the last part, the store's rules for the rest."""

from __future__ import annotations

import pytest

from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.topics.topic_names import TopicNames, check_name, unify_collision_chars
from tests.fakes.memory_store import MemoryStore


def names(*, has_namespaces: bool = True) -> TopicNames:
    store = MemoryStore()
    store.has_namespaces = has_namespaces
    return TopicNames(store)


def refusal(name: str, *, has_namespaces: bool = True) -> str:
    with pytest.raises(KafkaError) as refused:
        names(has_namespaces=has_namespaces).canonical(name)
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    return refused.value.message


def test_topic_of_default_namespace_has_short_name():
    assert [
        names().canonical(name) for name in ("orders", "public/default/orders", "sales/eu/orders")
    ] == [
        "orders",
        "orders",
        "persistent://sales/eu/orders",
    ]


def test_topic_name_with_slash_is_refused_by_store_without_namespaces():
    assert refusal("sales/eu/orders", has_namespaces=False).endswith(
        "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    )


def test_name_refused_by_store_is_refused():
    assert "contains one or more characters" in refusal("eu/orders")


@pytest.mark.parametrize("last", ["", ".", "..", "ä", "a b", "x" * 250])
def test_last_part_of_topic_name_follows_kafka_rules(last):
    refusal(f"sales/eu/{last}")
    refusal(last)


def test_length_limit_applies_to_last_part_of_topic_name():
    name = "tenant/namespace/" + "x" * 249
    assert names().canonical(name) == f"persistent://{name}"
    check_name("x" * 249)


def test_colliding_names_have_equal_unified_form():
    assert (
        unify_collision_chars("a.b_c")
        == unify_collision_chars("a_b.c")
        != unify_collision_chars("a-b.c")
    )
