"""Regular expressions of subscriptions match the same topics in the gateway as in Kafka's brokers,
which use RE2/J.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.groups.consumer.topic_regexes import TopicRegexes
from gateway.protocol.errors import KafkaError
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall, maven_jars

pytestmark = pytest.mark.peer

#: The version that Kafka 4 depends on.
RE2J = "com.google.re2j:re2j:1.8"
PROGRAM = Path(__file__).parent / "expressions" / "Match.java"
#: Hand-written expressions; and parts from which random expressions are built.
WRITTEN = (PROGRAM.parent / "written.txt").read_text("utf-8")
PIECES = r"a b ab . \. \w [ab] [^a] (a|b) (?:ab) (?i) | ^ $ * + ? {2} {1,} ( ) [ \d orders \b"
TOPICS = (
    "orders Orders ORDERS orders-eu orders.v2 orders_v2 "
    "a b ab aab abab aaa 0 42 a.b x-y_z.0 __internal"
)
NAMES = sorted(TOPICS.split())

#: Two groups with one name are accepted, because subscriptions never refer to groups.
DUPLICATE_GROUP_NAMES = "(?P<n>a)(?P<n>b)"


def random_expressions(count: int) -> Iterable[str]:
    chance = random.Random(1)
    for _ in range(count):
        yield "".join(chance.choices(PIECES.split(), k=chance.randint(1, 8)))


def ours(expression: str) -> str:
    try:
        found = TopicRegexes(2048).matching(expression, frozenset(NAMES))
    except KafkaError:
        return "refused"
    return "".join("1" if name in found else "0" for name in NAMES)


def theirs(expressions: list[str]) -> list[str]:
    try:
        jars = maven_jars((RE2J,))
    except CannotInstall as reason:
        pytest.skip(str(reason))
    lines = "".join(
        " ".join(word.encode().hex() for word in (expression, *NAMES)) + "\n"
        for expression in expressions
    )
    argv = jvm.argv([f"{jars}/*"], PROGRAM)
    done = subprocess.run(
        argv, input=lines, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_regex_matches_same_topics_or_is_refused_by_both() -> None:
    asked = ["", "a\n?", *WRITTEN.split(), *random_expressions(2000)]
    differences = [
        (one, our, their)
        for one, our, their in zip(asked, map(ours, asked), theirs(asked), strict=True)
        if our != their
    ]
    assert differences == []


def test_duplicate_group_names_in_regex_are_accepted() -> None:
    assert theirs([DUPLICATE_GROUP_NAMES]) == ["refused"]
    assert ours(DUPLICATE_GROUP_NAMES).count("1") == 1
