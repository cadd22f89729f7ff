"""Compares our assignors with Kafka 3.9.2's: range is identical; uniform is as even and moves as
few partitions.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gateway.groups.consumer.assignors import (
    AssignedPartitions,
    Subscriber,
    assign_range,
    assign_uniform,
)
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import java

pytestmark = pytest.mark.peer

PROGRAM = Path(__file__).parent / "assignors" / "Assign.java"
ROUNDS = 150

#: Kafka 3.9's uniform assignor fails for some groups with different subscriptions; Kafka 4 replaced
#: it.
FAILURE = (
    "Mismatch in partition movement record with respect to partition ownership during a rebalance"
)

Group = tuple[dict[str, Subscriber], dict[bytes, int]]


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def number_of(topic_id: bytes) -> str:
    return str(int.from_bytes(topic_id, "big"))


def groups(seed: int, *, are_alike: bool) -> Iterator[Group]:
    """Groups without an assignment, each followed by the same group after members joined and
    left.
    """
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        partitions = {
            topic(number): chance.randint(1, 9) for number in range(1, chance.randint(2, 6))
        }
        every = list(partitions)

        def newcomer(every: list[bytes] = every) -> Subscriber:
            topics = frozenset(
                every if are_alike else chance.sample(every, chance.randint(1, len(every)))
            )
            return Subscriber(chance.choice([None, None, f"i{chance.random()}"]), topics, {})

        members = {f"m{chance.random()}": newcomer() for _ in range(chance.randint(1, 7))}
        yield members, partitions
        assigned = assign_uniform(members, partitions)
        stayed = chance.sample(sorted(members), chance.randint(1, len(members)))
        again = {
            name: Subscriber(members[name].instance_id, members[name].topics, assigned[name])
            for name in stayed
        }
        yield (
            again | {f"n{chance.random()}": newcomer() for _ in range(chance.randint(0, 3))},
            partitions,
        )


def format_partitions(owned: Mapping[bytes, frozenset[int]]) -> str:
    return ";".join(
        f"{number_of(topic_id)}={'.'.join(map(str, sorted(indexes)))}"
        for topic_id, indexes in sorted(owned.items())
    )


def line(assignor: str, group: Group) -> str:
    members, partitions = group
    rows = [
        f"{name}:{one.instance_id or ''}:{','.join(map(number_of, sorted(one.topics)))}"
        f":{format_partitions(one.owned)}"
        for name, one in members.items()
    ]
    return " ".join(
        [
            assignor,
            ",".join(f"{number_of(topic_id)}={count}" for topic_id, count in partitions.items()),
            *rows,
        ]
    )


def read(answer: str) -> dict[str, AssignedPartitions] | None:
    if answer == FAILURE:
        return None
    found: dict[str, AssignedPartitions] = {}
    for word in answer.split():
        name, _, rows = word.partition(":")
        pairs = [row.split("=") for row in rows.split(";") if row]
        found[name] = {
            topic(int(number)): frozenset(map(int, indexes.split("."))) for number, indexes in pairs
        }
    return found


QUESTIONS = [("range", True), ("range", False), ("uniform", True), ("uniform", False)]
Answers = dict[tuple[str, bool], list[tuple[Group, dict[str, AssignedPartitions] | None]]]


@pytest.fixture(scope="module")
def kafka_assignments() -> Answers:
    """Kafka's assignment for each group, by assignor and whether all members have the same
    subscription.
    """
    try:
        argv = java(PROGRAM, log_level="OFF")
    except CannotInstall as reason:
        pytest.skip(str(reason))
    asked = [
        (question, group)
        for seed, question in enumerate(QUESTIONS)
        for group in groups(seed, are_alike=question[1])
    ]
    lines = "".join(f"{line(assignor, group)}\n" for (assignor, _), group in asked)
    done = subprocess.run(
        argv, input=lines, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: Answers = {question: [] for question in QUESTIONS}
    for (question, group), answer in zip(asked, done.stdout.splitlines(), strict=True):
        answers[question].append((group, read(answer)))
    return answers


def unevenness(assigned: Mapping[str, AssignedPartitions]) -> int:
    return sum(sum(map(len, rows.values())) ** 2 for rows in assigned.values())


def moved(group: Group, assigned: Mapping[str, AssignedPartitions]) -> int:
    members, _ = group
    return sum(
        len(indexes - members[name].owned.get(topic_id, frozenset()))
        for name, rows in assigned.items()
        for topic_id, indexes in rows.items()
    )


@pytest.mark.parametrize("are_alike", [True, False], ids=["alike", "mixed"])
def test_range_assignment_is_identical(are_alike: bool, kafka_assignments: Answers) -> None:
    for group, theirs in kafka_assignments["range", are_alike]:
        assert assign_range(*group) == theirs


@pytest.mark.parametrize("are_alike", [True, False], ids=["alike", "mixed"])
def test_uniform_assignment_is_as_even_and_moves_no_more_partitions(
    are_alike: bool, kafka_assignments: Answers
) -> None:
    answers = kafka_assignments["uniform", are_alike]
    rows = [
        (group, assign_uniform(*group), theirs) for group, theirs in answers if theirs is not None
    ]
    assert len(rows) >= len(answers) - (0 if are_alike else 5)
    assert all(ours.keys() == theirs.keys() for _, ours, theirs in rows)
    if are_alike:
        assert all(unevenness(ours) == unevenness(theirs) for _, ours, theirs in rows)
        assert all(moved(group, ours) <= moved(group, theirs) for group, ours, theirs in rows)
    # With different subscriptions, either assignor can be one partition away from the optimum.
    assert sum(unevenness(ours) for _, ours, _ in rows) <= 1.001 * sum(
        unevenness(theirs) for _, _, theirs in rows
    )
    assert sum(moved(group, ours) for group, ours, _ in rows) <= sum(
        moved(group, theirs) for group, _, theirs in rows
    )
