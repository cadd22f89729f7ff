"""The checks of a chaos run find each kind of violation, and a seed always gives the same
faults.
"""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.peers.chaos.client_processes import GroupLibrary
from tests.peers.chaos.evidence import (
    Commits,
    Log,
    Observations,
    Position,
    ProducerRecords,
    complaints,
)
from tests.peers.chaos.faults import (
    GATEWAY_ONLY,
    IN_CLUSTER,
    WITH_BROKER,
    Action,
    ServerFault,
    Target,
    plan_faults,
)
from tests.peers.chaos.report import draw_svg, summary, table
from tests.peers.chaos.run import Outcome, Recovery
from tests.peers.chaos.servers import Servers

GOOD: Mapping[Position, str] = {(0, 0): "4.0", (0, 1): "17", (0, 2): "4.1", (1, 0): "4.2"}


def complaints_for(
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
    observations = Observations()
    for place, value in (GOOD if seen is None else seen).items():
        observations.note("someone", place, value)
    return complaints(
        Log(values, ends or {0: 3, 1: 1}),
        [idempotent, plain],
        observations,
        more.get("commits", ()),
    )


def test_good_run_has_no_complaints() -> None:
    assert complaints_for() == []


def test_lost_acknowledged_record_is_reported() -> None:
    (lost,) = [
        one for one in complaints_for({**GOOD, (1, 0): "4.3"}, seen={}) if "acknowledged" in one
    ]
    assert lost.startswith("java-4.3.1: 1 acknowledged and lost")


def test_duplicate_of_idempotent_producer_is_reported() -> None:
    assert complaints_for({**GOOD, (1, 1): "4.2"}, {0: 3, 1: 2}) == [
        "java-4.3.1: 1 duplicates: [2]"
    ]


def test_duplicates_are_reported_with_their_producers() -> None:
    batches = {(1, 0): "producer id 7", (1, 1): "producer id 8"}
    log = Log({**GOOD, (1, 1): "4.2"}, {0: 3, 1: 2}, batches=batches)
    producer = ProducerRecords("java-4.3.1", "4", True)
    assert complaints(log, [producer], Observations(), ()) == [
        "java-4.3.1: 1 duplicates: [2]",
        "java-4.3.1: 2 at 1:0: producer id 7",
        "java-4.3.1: 2 at 1:1: producer id 8",
    ]


def test_duplicate_of_plain_producer_is_allowed() -> None:
    assert complaints_for({**GOOD, (1, 1): "17"}, {0: 3, 1: 2}) == []


def test_reordered_records_of_idempotent_producer_are_reported() -> None:
    assert complaints_for({**GOOD, (1, 1): "4.1000", (1, 2): "4.999"}, {0: 3, 1: 3}) == [
        "java-4.3.1: reordered in partition 1"
    ]


@pytest.mark.parametrize("end", [2, 4])
def test_gap_and_records_beyond_log_end_are_reported(end: int) -> None:
    assert [one for one in complaints_for(ends={0: end, 1: 1}) if "partition 0 should have" in one]


def test_allowed_gaps_do_not_hide_lost_acknowledged_records() -> None:
    log = Log({(0, 0): "a", (0, 5): "b"}, {0: 6}, allows_gaps=True)
    assert complaints(log, [], Observations(), ()) == []
    producer = ProducerRecords("someone", "", False, [((0, 3), "c")])
    assert complaints(log, [producer], Observations(), ()) == [
        "someone: 1 acknowledged and lost: [((0, 3), 'c')]"
    ]
    assert complaints(Log({(0, 6): "b"}, {0: 6}, allows_gaps=True), [], Observations(), ()) != []


def test_offset_with_two_values_over_time_is_reported() -> None:
    """The record was not acknowledged, but a consumer saw it: the offset was assigned twice."""
    assert complaints_for(seen={**GOOD, (0, 1): "16"}) == ["0:1 was read as '16' and is '17'"]


def test_record_that_disappears_after_a_read_is_reported() -> None:
    assert complaints_for(seen={**GOOD, (1, 1): "18"}) == ["1:1 was read as '18' and is None"]


def test_different_values_seen_at_one_offset_are_reported() -> None:
    observations = Observations()
    observations.note("a", (0, 7), "x")
    observations.note("b", (0, 7), "y")
    assert observations.contradictions == ["0:7 was 'x', but b read 'y'"]


def test_committed_offset_that_goes_back_is_reported() -> None:
    commits = Commits("group")
    commits.check({0: 5}, commits.minimums())
    commits.check({0: 4}, commits.minimums())
    assert complaints_for(commits=[commits]) == [
        "group, partition 0: committed offset went from 5 to 4"
    ]


def test_lost_acknowledged_commit_is_reported() -> None:
    commits = Commits("group")
    commits.acknowledged(0, 9)
    commits.check({0: 5}, commits.minimums())
    assert complaints_for(commits=[commits]) == [
        "group, partition 0: committed offset went from 9 to 5"
    ]


def test_commit_during_offset_fetch_is_not_reported() -> None:
    commits = Commits("group")
    promised = commits.minimums()
    commits.acknowledged(0, 9)
    commits.check({0: 5}, promised)
    assert complaints_for(commits=[commits]) == []


@pytest.mark.parametrize("nodes", [{1, 3}, set()])
def test_epoch_of_two_leaders_or_an_unknown_one_is_reported(nodes: set[int]) -> None:
    leaders = {(0, 4): frozenset({1}), (0, 5): frozenset(nodes)}
    log = Log(GOOD, {0: 3, 1: 1}, leaders=leaders)
    assert complaints(log, [], Observations(), ()) == [
        f"partition 0: nodes {sorted(nodes)} stored messages in epoch 5"
    ]


def test_record_that_a_group_skipped_is_reported() -> None:
    commits = Commits("group", reports_reads=True)
    commits.note_read((0, 1))
    commits.acknowledged(0, 2)
    assert complaints_for(commits=[commits]) == ["group: 1 committed and not read: [(0, 0)]"]
    commits.note_read((0, 0))
    assert complaints_for(commits=[commits]) == []


def test_verifiable_consumer_reports_what_it_reads_and_commits(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"name": "startup_complete"},
        {"name": "partitions_assigned", "partitions": partitions(0, 1)},
        {"name": "record_data", "partition": 0, "offset": 0, "value": "4.0"},
        {"name": "offsets_committed", "success": True, "offsets": [{"partition": 0, "offset": 1}]},
        {"name": "offsets_committed", "success": False, "error": "e", "offsets": []},
        {"name": "partitions_revoked", "partitions": partitions(0)},
        # With the consumer protocol only the new partitions.
        {"name": "partitions_assigned", "partitions": partitions(2)},
    ]
    lines = "\n".join(map(json.dumps, events))
    program = [sys.executable, "-c", f"print({lines!r})"]
    group = GroupLibrary("tool", lambda: program, is_tool=True)
    sightings, commits = Observations(), Commits("tool", reports_reads=True)
    member = group.join(tmp_path, "127.0.0.1:9092", 0, sightings, commits)
    member.process.wait(60)
    member.receive()
    assert (member.assigned, member.read) == ([1, 2], 1)
    assert sightings.values == {(0, 0): "4.0"}
    assert (commits.read, commits.minimums()) == ({(0, 0)}, {0: 1})


def partitions(*numbers: int) -> list[dict[str, int]]:
    return [{"partition": number} for number in numbers]


def test_faults_depend_only_on_seed() -> None:
    assert (
        plan_faults(7, 300, WITH_BROKER)
        == plan_faults(7, 300, WITH_BROKER)
        != plan_faults(8, 300, WITH_BROKER)
    )


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_kind_occurs_before_any_is_repeated(seed: int) -> None:
    """And no fault is so late that it could not end: the longest takes 40 s."""
    faults = plan_faults(seed, 600, WITH_BROKER)
    assert {(one.target, one.action) for one in faults[: len(WITH_BROKER)]} == set(WITH_BROKER)
    assert faults[-1].at + 40 > 560


def test_processes_are_not_cut() -> None:
    assert Action.CUT not in {action for _, action in WITH_BROKER}


def test_short_plan_is_prefix_of_longer_plan() -> None:
    short = plan_faults(7, 100, GATEWAY_ONLY)
    assert plan_faults(7, 300, GATEWAY_ONLY)[: len(short)] == short


def test_rounds_of_a_cluster_include_each_kind_and_each_gateway() -> None:
    faults = plan_faults(7, math.inf, IN_CLUSTER, 3, 40)
    assert len(faults) == 40
    assert {(one.target, one.action) for one in faults[: len(IN_CLUSTER)]} == set(IN_CLUSTER)
    assert {one.node for one in faults} == {1, 2, 3}
    assert {one.target for one in faults if one.action is Action.CUT} == {Target.LINK}


class RecordedServer:
    """Records what is done to it in `calls`."""

    def __init__(self, name: str, calls: list[str]) -> None:
        for verb in ("kill", "pause", "resume", "end", "launch", "cut", "mend"):
            setattr(self, verb, partial(calls.append, f"{verb} {name}"))


@pytest.mark.parametrize(
    ("target", "action", "calls"),
    [
        (Target.GATEWAY, Action.KILL, ["kill gateway 2", "launch gateway 2"]),
        (Target.GATEWAY, Action.STOP, ["end gateway 2", "launch gateway 2"]),
        (Target.BROKER, Action.PAUSE, ["pause broker", "resume broker"]),
        (Target.LINK, Action.CUT, ["cut link 2", "mend link 2"]),
        (
            Target.BOTH,
            Action.KILL,
            ["kill gateway 2", "kill broker", "launch broker", "launch gateway 2"],
        ),
    ],
)
def test_fault_is_injected_into_its_gateway_and_undone(
    target: Target, action: Action, calls: list[str]
) -> None:
    done: list[str] = []
    gateways = [RecordedServer(f"gateway {node}", done) for node in (1, 2)]
    links = [RecordedServer(f"link {node}", done) for node in (1, 2)]
    servers = Servers(gateways, RecordedServer("broker", done), links)
    fault = ServerFault(3.0, target, action, 1.0, 2)
    servers.inject(fault)
    servers.recover(fault)
    assert done == calls


RECOVERY = Recovery(
    ServerFault(3.0, Target.GATEWAY, Action.KILL, 1.0),
    3.1,
    2.25,
    {"producer-java-4.3.1": 0.5, "member-java-4.4.0-0": 1.5, "member-java-4.4.0-1": 0.25},
)

QUICKER = Recovery(
    ServerFault(9.0, Target.BROKER, Action.PAUSE, 1.0),
    9.1,
    1.0,
    {"producer-java-4.3.1": 0.6, "member-java-4.4.0-0": 0.3},
)


def test_table_shows_slowest_client_of_each_kind_and_maximum() -> None:
    lines = [line.split() for line in table(Outcome([RECOVERY, QUICKER])).splitlines()]
    assert lines[2:4] == [
        ["producer", "group"],
        ["at", "fault", "served", "java-4.3.1", "java-4.4.0", "all"],
    ]
    assert lines[5] == ["3.1", "gateway", "killed,", "1.0", "s", "2.2", "0.5", "1.5", "3.8"]
    assert lines[-1] == ["longest", "2.2", "0.6", "1.5", "3.8"]


def test_summary_ends_with_failed_checks_or_success() -> None:
    assert summary(Outcome([RECOVERY])).endswith("\nALL CHECKS PASSED")
    assert summary(Outcome([RECOVERY], complaints=["lost", "moved"])).endswith(
        "\nFAILED CHECKS, 2:\nlost\nmoved"
    )


def test_svg_is_well_formed_and_names_slowest_client() -> None:
    drawn = xml.etree.ElementTree.fromstring(draw_svg([RECOVERY], "a < b"))
    assert [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")][
        -1
    ] == "3.8 java-4.4.0 group"
