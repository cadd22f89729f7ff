"""Namespace policies."""

from __future__ import annotations

import pytest

from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.namespaces import own_namespaces, retains_at_least
from storage.pulsar.topics.retention_policies import Retention


@pytest.mark.parametrize(
    ("has", "wanted", "enough"),
    [
        ((-1, -1), (10, 10), True),
        ((-1, -1), (-1, -1), True),
        ((10, -1), (10, -1), True),
        ((10, -1), (11, -1), False),
        ((10, -1), (-1, -1), False),
        ((-1, 10), (-1, 10), True),
        ((-1, 10), (-1, -1), False),
        ((-1, 10), (5, 11), False),
        ((0, 0), (1, 1), False),
    ],
)
def test_retention_suffices_if_neither_limit_is_lower(
    has: tuple[int, int], wanted: tuple[int, int], enough: bool
) -> None:
    assert retains_at_least(Retention(*has), Retention(*wanted)) is enough


def test_topics_and_tables_may_share_a_namespace() -> None:
    one = PulsarSettings("pulsar://h:1", "http://h:1", metadata_namespace="default")
    assert own_namespaces(one) == ("public/default",)
    assert own_namespaces(PulsarSettings("pulsar://h:1", "http://h:1")) == (
        "public/default",
        "public/__kafka",
    )
