"""What topics may be called: Kafka's rules for the last part of a name, the store's for what stands before it."""

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


def test_a_topic_of_the_default_namespace_goes_by_its_last_part():
    assert [
        names().canonical(name) for name in ("orders", "public/default/orders", "sales/eu/orders")
    ] == [
        "orders",
        "orders",
        "sales/eu/orders",
    ]


def test_a_slash_is_no_part_of_a_name_where_the_store_knows_no_namespaces():
    assert refusal("sales/eu/orders", has_namespaces=False).endswith(
        "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    )


def test_what_the_store_refuses_is_refused():
    assert "contains one or more characters" in refusal("eu/orders")


@pytest.mark.parametrize("last", ["", ".", "..", "ä", "a b", "x" * 250])
def test_the_last_part_follows_kafkas_rules(last):
    refusal(f"sales/eu/{last}")
    refusal(last)


def test_the_length_counts_for_the_last_part_alone():
    name = "tenant/namespace/" + "x" * 249
    assert names().canonical(name) == name
    check_name("x" * 249)


def test_names_that_would_collide_in_metrics_have_something_in_common():
    assert (
        unify_collision_chars("a.b_c")
        == unify_collision_chars("a_b.c")
        != unify_collision_chars("a-b.c")
    )
