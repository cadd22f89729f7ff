"""Which gateways `make bench-cluster` stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.cluster.__main__ import find_victim


def gateways(controller: int, leaders: dict[int, int]) -> Any:
    return SimpleNamespace(controller=lambda: controller, wait_until_led=lambda topic: leaders)


def test_victims_have_their_role_and_take_turns() -> None:
    cluster = gateways(2, {0: 3, 1: 1, 2: 2, 3: 3})
    assert [find_victim(cluster, "member", number) for number in range(3)] == [1, 3, 1]
    assert [find_victim(cluster, "controller", number) for number in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("controller", "role", "expected"),
    [(1, "controller", None), (1, "member", 2), (2, "controller", 2), (2, "member", 3)],
)
def test_gateway_without_partitions_is_not_stopped(
    controller: int, role: str, expected: int | None
) -> None:
    assert find_victim(gateways(controller, {0: 2, 1: 3}), role, 0) == expected
