"""Members, leader and protocols of a classic group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.groups.classic.classic_member import ClassicGroupMember, MemberJoin
from gateway.groups.classic.classic_roster import ClassicRoster


def member(
    name: str, *protocols: str, instance: str | None = None, rebalance: int = 1
) -> ClassicGroupMember:
    return ClassicGroupMember(
        name,
        instance,
        "c",
        "/h",
        tuple((one, name.encode()) for one in protocols or ("range",)),
        1,
        rebalance,
        0,
    )


def roster(*members: ClassicGroupMember) -> ClassicRoster:
    made = ClassicRoster()
    for one in members:
        made.add(one)
    return made


def test_oldest_member_is_leader():
    first, second, third = member("a"), member("b"), member("c")
    all_three = roster(first, second, third)
    assert all_three.leader == "a"
    all_three.remove(second)
    all_three.remove(first)
    assert all_three.leader == "c"
    all_three.remove(third)
    assert all_three.leader is None


def test_most_preferred_common_protocol_is_selected():
    made = roster(
        member("a", "mine", "range", "sticky"),
        member("b", "sticky", "range"),
        member("c", "sticky", "range", "hers"),
    )
    assert made.select_protocol() == "sticky"
    made.remove(made.get("b"))
    made.remove(made.get("c"))
    assert made.select_protocol() == "mine"


def test_new_member_must_support_a_common_protocol():
    made = roster(member("a", "range", "sticky"), member("b", "sticky"))
    assert made.supports_protocols((("sticky", b""),))
    assert not made.supports_protocols((("range", b""), ("other", b"")))


def test_update_replaces_supported_protocols():
    made = roster(member("a", "range"), member("b", "range", "sticky"))
    made.update(
        made.get("a"), MemberJoin("a", None, "c2", "/h2", "consumer", (("sticky", b""),), 5, 9)
    )
    assert made.select_protocol() == "sticky"
    assert (made.get("a").client_host, made.rebalance_timeout_ms) == ("/h2", 9)


def test_static_member_changes_member_id():
    made = roster(member("a", instance="one"), member("b"))
    made.change_member_id(made.get("a"), "c")
    assert (made.leader, made.member_id_of("one"), "a" in made, made.get("c").instance_id) == (
        "c",
        "c",
        False,
        "one",
    )


def test_duplicate_instance_id_is_rejected():
    with pytest.raises(ValueError, match="already"):
        roster(member("a", instance="one"), member("b", instance="one"))
    with pytest.raises(ValueError, match="already"):
        roster(member("a"), member("a"))


def test_size_is_sum_of_member_sizes():
    one = member("a", "range", "sticky")
    made = roster(one)
    made.assign(one, bytes(100))
    made.update(
        one, MemberJoin("a", None, "longer", "/h", "consumer", (("range", bytes(1000)),), 1, 1)
    )
    made.change_member_id(one, "another")
    assert made.size == one.size == replace(one).size > 1_100
    made.remove(one)
    assert made.size == 0


def test_size_counts_overhead_of_each_protocol():
    many = member("a", *(f"{number:x}" for number in range(10_000)))
    assert many.size > 10_000 * 160
