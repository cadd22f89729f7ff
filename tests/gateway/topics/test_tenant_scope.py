"""Names of clients that are bound to a namespace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.topics.tenant_scope import (
    ForeignName,
    TenantScope,
    namespace_of,
    plain_id,
    printable_id,
    printable_topic,
)

SALES = TenantScope("acme/sales")
DEFAULT = TenantScope("public/default", is_default=True)

NAMES = (
    st.lists(
        st.sampled_from(
            [
                "acme",
                "sales",
                "/",
                "persistent://",
                "public/default/",
                "acme/sales/",
                "\0",
                "t",
                "ü",
            ]
        ),
        max_size=6,
    ).map("".join)
    | st.text()
)


@pytest.mark.parametrize(
    ("sent", "inside", "owned"),
    [
        ("t", "persistent://acme/sales/t", True),
        ("acme/sales/t", "acme/sales/t", True),
        ("persistent://acme/sales/t", "persistent:///acme/sales/t", True),
        ("acme/other/t", "\0acme/other/t", False),
        ("persistent://public/default/t", "\0persistent://public/default/t", False),
        ("a/t", "\0a/t", False),
        ("acme/sales", "\0acme/sales", False),
        ("acme/salesmen/t", "\0acme/salesmen/t", False),
        ("\0t", "\0\0t", False),
    ],
)
def test_topic_name_is_translated_to_its_inner_form(sent: str, inside: str, owned: bool) -> None:
    assert (SALES.topic_from_client(sent), SALES.owns_topic(inside)) == (inside, owned)


@pytest.mark.parametrize(
    ("sent", "inside", "owned"),
    [
        ("t", "t", True),
        ("public/default/t", "public/default/t", True),
        ("persistent://public/default/t", "persistent://public/default/t", True),
        ("acme/sales/t", "\0acme/sales/t", False),
        ("__kopgate_traffic", "\0__kopgate_traffic", False),
        ("public/default/__kopgate_traffic", "\0public/default/__kopgate_traffic", False),
        ("\0t", "\0\0t", False),
    ],
)
def test_names_in_default_namespace_are_unchanged(sent: str, inside: str, owned: bool) -> None:
    assert (DEFAULT.topic_from_client(sent), DEFAULT.owns_topic(inside)) == (inside, owned)


@pytest.mark.parametrize("scope", [SALES, DEFAULT])
@given(st.data())
def test_every_name_is_returned_as_it_was_sent(scope: TenantScope, data: st.DataObject) -> None:
    name = data.draw(NAMES)
    assert scope.topic_to_client(scope.topic_from_client(name)) == name
    assert scope.id_to_client(scope.id_from_client(name)) == name


@pytest.mark.parametrize("scope", [SALES, DEFAULT])
@given(NAMES, NAMES)
def test_different_names_stay_different(scope: TenantScope, one: str, other: str) -> None:
    assert (scope.topic_from_client(one) == scope.topic_from_client(other)) == (one == other)
    assert (scope.id_from_client(one) == scope.id_from_client(other)) == (one == other)


@pytest.mark.parametrize("name", ["t", "acme/other/t", "persistent://public/default/t"])
def test_foreign_topic_is_never_returned(name: str) -> None:
    with pytest.raises(ForeignName):
        SALES.topic_to_client(name)
    assert not SALES.owns_topic(name)


@pytest.mark.parametrize("name", ["g", "\0acme/other\0g", "\0acme/sales/g", ""])
def test_foreign_id_is_never_returned(name: str) -> None:
    with pytest.raises(ForeignName):
        SALES.id_to_client(name)
    assert not SALES.owns_id(name)


def test_messages_contain_the_names_of_the_client() -> None:
    text = (
        "persistent://acme/sales/t exists; persistent:///acme/sales/t; acme/sales/t; "
        "Group \0acme/sales\0g; \0a/b/c"
    )
    assert SALES.text_to_client(text) == (
        "t exists; persistent://acme/sales/t; acme/sales/t; Group g; a/b/c"
    )
    assert DEFAULT.text_to_client("persistent://public/default/t \0public/default\0g \0x") == (
        "persistent://public/default/t g x"
    )


def test_id_tells_its_namespace() -> None:
    inside = SALES.id_from_client("g")
    assert (namespace_of(inside), plain_id(inside), printable_id(inside)) == (
        "acme/sales",
        "g",
        "acme/sales/g",
    )
    assert (namespace_of("g"), plain_id("g"), printable_id("g")) == (None, "g", "g")
    assert plain_id(SALES.id_from_client("")) == ""
    assert printable_id("\0no tenant's") == "\0no tenant's"


def test_printable_topic_has_no_mark() -> None:
    assert printable_topic(SALES.topic_from_client("a/b/c")) == "a/b/c"
