"""The checks of a chaos run find each kind of violation, and a seed always gives the same
faults.
"""

from __future__ import annotations

import xml.etree.ElementTree
from collections.abc import Mapping
from typing import Any

import pytest

from tests.peers.chaos.evidence import (
    Commits,
    Log,
    Observations,
    Position,
    ProducerRecords,
    complaints,
)
from tests.peers.chaos.faults import GATEWAY_ONLY, WITH_BROKER, Action, Fault, Target, plan_faults
from tests.peers.chaos.report import draw_svg, summary, table
from tests.peers.chaos.run import Outcome, Recovery

GOOD: Mapping[Position, str] = {(0, 0): "4.0", (0, 1): "17", (0, 2): "4.1", (1, 0): "4.2"}


def judged(
    values: Mapping[Position, str] = GOOD,
    ends: Mapping[int, int] | None = None,
    seen: Mapping[Position, str] | None = None,
    **more: Any,
) -> list[str]:
    """Violations in this log, when everything in `GOOD` was acknowledged."""
    idempotent = ProducerRecords(
        "java-4.3.1",
        "4",
        True,
        [(place, value) for place, value in GOOD.items() if value.startswith("4.")],
    )
    plain = ProducerRecords("java-0.9.0.1", "", False, [((0, 1), "17")])
    sightings = Observations()
    for place, value in (GOOD if seen is None else seen).items():
        sightings.note("someone", place, value)
    return complaints(
        Log(values, ends or {0: 3, 1: 1}), [idempotent, plain], sightings, more.get("commits", ())
    )


def test_a_good_run_has_nothing_wrong() -> None:
    assert judged() == []


def test_an_acknowledged_record_that_is_not_there_is_seen() -> None:
    (lost,) = [one for one in judged({**GOOD, (1, 0): "4.3"}, seen={}) if "acknowledged" in one]
    assert lost.startswith("java-4.3.1: 1 acknowledged and not there")


def test_a_record_of_an_idempotent_producer_that_is_there_twice_is_seen() -> None:
    assert judged({**GOOD, (1, 1): "4.2"}, {0: 3, 1: 2}) == [
        "java-4.3.1: 1 there more than once: [2]"
    ]


def test_one_that_is_not_idempotent_may_store_a_record_twice() -> None:
    assert judged({**GOOD, (1, 1): "17"}, {0: 3, 1: 2}) == []


def test_records_of_an_idempotent_producer_that_changed_places_are_seen() -> None:
    assert judged({**GOOD, (1, 1): "4.1000", (1, 2): "4.999"}, {0: 3, 1: 3}) == [
        "java-4.3.1: not in its order in partition 1"
    ]


@pytest.mark.parametrize("end", [2, 4])
def test_a_gap_and_what_lies_beyond_the_end_are_seen(end: int) -> None:
    assert [one for one in judged(ends={0: end, 1: 1}) if "partition 0 should have" in one]


def test_where_offsets_may_be_left_out_only_those_that_somebody_was_told_of_are_missed() -> None:
    log = Log({(0, 0): "a", (0, 5): "b"}, {0: 6}, allows_gaps=True)
    assert complaints(log, [], Observations(), ()) == []
    producer = ProducerRecords("someone", "", False, [((0, 3), "c")])
    assert complaints(log, [producer], Observations(), ()) == [
        "someone: 1 acknowledged and not there: [((0, 3), 'c')]"
    ]
    assert complaints(Log({(0, 6): "b"}, {0: 6}, allows_gaps=True), [], Observations(), ()) != []


def test_an_offset_that_held_something_else_before_is_seen() -> None:
    """The record was not acknowledged, but a consumer saw it: the offset was assigned twice."""
    assert judged(seen={**GOOD, (0, 1): "16"}) == ["0:1 was seen as '16' and is '17'"]


def test_what_a_consumer_saw_and_is_gone_is_seen() -> None:
    assert judged(seen={**GOOD, (1, 1): "18"}) == ["1:1 was seen as '18' and is None"]


def test_two_who_saw_different_things_in_one_place_are_heard() -> None:
    sightings = Observations()
    sightings.note("a", (0, 7), "x")
    sightings.note("b", (0, 7), "y")
    assert sightings.contradictions == ["0:7 was 'x', and to b it is 'y'"]


def test_a_commit_that_goes_back_is_seen() -> None:
    commits = Commits("group")
    commits.check({0: 5}, commits.minimums())
    commits.check({0: 4}, commits.minimums())
    assert judged(commits=[commits]) == ["group, partition 0: stood at 5, and then at 4"]


def test_a_commit_that_a_member_was_told_of_and_that_is_not_there_is_seen() -> None:
    commits = Commits("group")
    commits.acknowledged(0, 9)
    commits.check({0: 5}, commits.minimums())
    assert judged(commits=[commits]) == ["group, partition 0: stood at 9, and then at 5"]


def test_a_commit_that_came_while_the_answer_was_under_way_is_no_complaint() -> None:
    commits = Commits("group")
    promised = commits.minimums()
    commits.acknowledged(0, 9)
    commits.check({0: 5}, promised)
    assert judged(commits=[commits]) == []


def test_a_seed_gives_the_same_faults_again_and_another_seed_gives_others() -> None:
    assert (
        plan_faults(7, 300, WITH_BROKER)
        == plan_faults(7, 300, WITH_BROKER)
        != plan_faults(8, 300, WITH_BROKER)
    )


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_fault_comes_before_any_comes_again(seed: int) -> None:
    """And no fault is so late that it could not end: the longest takes 40 s."""
    faults = plan_faults(seed, 600, WITH_BROKER)
    assert {(one.target, one.action) for one in faults[: len(WITH_BROKER)]} == set(WITH_BROKER)
    assert faults[-1].at + 40 > 560


def test_a_short_run_is_the_beginning_of_a_longer_one() -> None:
    short = plan_faults(7, 100, GATEWAY_ONLY)
    assert plan_faults(7, 300, GATEWAY_ONLY)[: len(short)] == short


RECOVERY = Recovery(
    Fault(3.0, Target.GATEWAY, Action.KILL, 1.0),
    3.1,
    2.25,
    {"producer-java-4.3.1": 0.5, "member-java-4.4.0-0": 1.5, "member-java-4.4.0-1": 0.25},
)

QUICKER = Recovery(
    Fault(9.0, Target.BROKER, Action.PAUSE, 1.0),
    9.1,
    1.0,
    {"producer-java-4.3.1": 0.6, "member-java-4.4.0-0": 0.3},
)


def test_the_table_has_for_each_kind_of_client_the_slowest_and_below_the_longest_of_all() -> None:
    lines = [line.split() for line in table(Outcome([RECOVERY, QUICKER])).splitlines()]
    assert lines[2:4] == [
        ["producer", "group"],
        ["at", "fault", "served", "java-4.3.1", "java-4.4.0", "all"],
    ]
    assert lines[5] == ["3.1", "gateway", "killed,", "1.0", "s", "2.2", "0.5", "1.5", "3.8"]
    assert lines[-1] == ["longest", "2.2", "0.6", "1.5", "3.8"]


def test_a_run_says_last_what_is_wrong_or_that_nothing_is() -> None:
    assert summary(Outcome([RECOVERY])).endswith("\nEVERY PROMISE WAS KEPT")
    assert summary(Outcome([RECOVERY], complaints=["lost", "moved"])).endswith(
        "\nBROKEN, 2:\nlost\nmoved"
    )


def test_the_picture_is_one_that_browsers_take_and_names_who_came_last() -> None:
    drawn = xml.etree.ElementTree.fromstring(draw_svg([RECOVERY], "a < b"))
    assert [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")][
        -1
    ] == "3.8 java-4.4.0 group"
