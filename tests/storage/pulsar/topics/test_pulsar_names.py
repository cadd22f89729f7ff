"""Topic names, by KoP's rules."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.topics.topic_names import TRAFFIC_TOPIC
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.pulsar_names import (
    MAX_NAME_CHARACTERS,
    PulsarNames,
    partition_name,
    partition_of,
    path_of,
)

NAMES = PulsarNames(
    PulsarSettings(
        "pulsar://h:1",
        "http://h:1",
        tenant="acme",
        namespace="shop",
        allowed_namespaces=("acme/stock", "other/shop", "acme/shop"),
    )
)


@pytest.mark.parametrize(
    ("name", "full", "canonical"),
    [
        ("orders", "persistent://acme/shop/orders", "orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders", "orders"),
        ("persistent://acme/shop/orders", "persistent://acme/shop/orders", "orders"),
        ("acme/stock/orders", "persistent://acme/stock/orders", "persistent://acme/stock/orders"),
        (
            "persistent://other/shop/orders",
            "persistent://other/shop/orders",
            "persistent://other/shop/orders",
        ),
        (
            "persistent:///acme/stock/orders",
            "persistent://acme/stock/orders",
            "persistent://acme/stock/orders",
        ),
        ("orders-partition-3", "persistent://acme/shop/orders-partition-3", "orders-partition-3"),
        (TRAFFIC_TOPIC, f"persistent://acme/shop/{TRAFFIC_TOPIC}", TRAFFIC_TOPIC),
    ],
)
def test_all_forms_of_a_name_have_one_canonical_name(name: str, full: str, canonical: str) -> None:
    assert (NAMES.full_name(name), NAMES.canonical(name)) == (full, canonical)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("shop/orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("a/b/c/d", "use NAME, TENANT/NAMESPACE/NAME"),
        ("persistent://orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("/acme/stock/orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("persistent:////acme/stock/orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("persistent://shop/orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("non-persistent://acme/shop/orders", "use NAME, TENANT/NAMESPACE/NAME"),
        ("acme/other/orders", "allowed_namespaces"),
        ("", "1 to 512 printable characters"),
        ("acme/shop/", "1 to 512 printable characters"),
        ("..", "1 to 512 printable characters"),
        ("a\nb", "1 to 512 printable characters"),
        ("x" * (MAX_NAME_CHARACTERS + 1), "1 to 512 printable characters"),
        ("__kopgate-lock", "internal topics"),
        (f"{TRAFFIC_TOPIC}-partition-0", "internal topics"),
        ("__change_events", "internal topics"),
        ("__change_events-partition-0", "internal topics"),
        ("__transaction_buffer_snapshot", "internal topics"),
        ("orders-sub__transaction_pending_ack", "internal topics"),
    ],
)
def test_invalid_name_is_refused_with_reason(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NAMES.canonical(name)


def test_namespaces_are_unique_with_default_first() -> None:
    assert NAMES.namespaces == ("acme/shop", "acme/stock", "other/shop")


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["acme", "shop", "stock", "other", "t", ""]), max_size=5).map(
        "/".join
    )
)
def test_any_text_is_a_valid_name_or_refused(name: str) -> None:
    try:
        canonical = NAMES.canonical(name)
    except ValueError:
        return
    assert NAMES.canonical(canonical) == canonical
    assert NAMES.full_name(canonical) == NAMES.full_name(name)
    assert NAMES.canonical(NAMES.full_name(name)) == canonical
    assert NAMES.listed(NAMES.full_name(name)) == canonical


@given(st.text(min_size=1, max_size=40))
def test_path_has_four_parts_for_any_name(local: str) -> None:
    path = path_of(f"persistent://a/b/{local}")
    assert path.isascii()
    assert not set(path) & set("?# ")
    assert [unquote(part) for part in path.split("/")] == ["", "persistent", "a", "b", local]


@given(st.text(min_size=1, max_size=20), st.integers(0, 10_000))
def test_partition_of_inverts_partition_name(full_name: str, partition: int) -> None:
    assert partition_of(partition_name(full_name, partition)) == (full_name, partition)


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-partition-",
        "orders-partition-x",
        "orders-partition-03",
        "-partition-1",
        "a-partition--1",
    ],
)
def test_other_names_are_not_partitions(name: str) -> None:
    assert partition_of(name) is None


def test_partition_index_is_last_suffix_of_topic_name() -> None:
    assert partition_of("a-partition-3-partition-1") == ("a-partition-3", 1)
