"""Who is in a group."""

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


def test_the_first_leads_and_after_it_the_one_that_has_been_here_longest():
    first, second, third = member("a"), member("b"), member("c")
    all_three = roster(first, second, third)
    assert all_three.leader == "a"
    all_three.remove(second)
    all_three.remove(first)
    assert all_three.leader == "c"
    all_three.remove(third)
    assert all_three.leader is None


def test_the_protocol_that_most_like_best_is_elected_among_those_that_all_know():
    made = roster(
        member("a", "mine", "range", "sticky"),
        member("b", "sticky", "range"),
        member("c", "sticky", "range", "hers"),
    )
    assert made.select_protocol() == "sticky"
    made.remove(made.get("b"))
    made.remove(made.get("c"))
    assert made.select_protocol() == "mine"


def test_a_newcomer_must_share_a_protocol_with_everybody():
    made = roster(member("a", "range", "sticky"), member("b", "sticky"))
    assert made.supports_protocols((("sticky", b""),))
    assert not made.supports_protocols((("range", b""), ("other", b"")))


def test_a_member_that_joins_again_speaks_what_it_says_now():
    made = roster(member("a", "range"), member("b", "range", "sticky"))
    made.update(
        made.get("a"), MemberJoin("a", None, "c2", "/h2", "consumer", (("sticky", b""),), 5, 9)
    )
    assert made.select_protocol() == "sticky"
    assert (made.get("a").client_host, made.rebalance_timeout_ms) == ("/h2", 9)


def test_a_static_member_goes_on_under_its_new_id():
    made = roster(member("a", instance="one"), member("b"))
    made.change_member_id(made.get("a"), "c")
    assert (made.leader, made.member_id_of("one"), "a" in made, made.get("c").instance_id) == (
        "c",
        "c",
        False,
        "one",
    )


def test_an_instance_is_here_once():
    with pytest.raises(ValueError, match="already"):
        roster(member("a", instance="one"), member("b", instance="one"))
    with pytest.raises(ValueError, match="already"):
        roster(member("a"), member("a"))


def test_what_members_take_is_known_at_any_time():
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


def test_many_short_words_are_counted_with_what_each_of_them_takes():
    many = member("a", *(f"{number:x}" for number in range(10_000)))
    assert many.size > 10_000 * 160
