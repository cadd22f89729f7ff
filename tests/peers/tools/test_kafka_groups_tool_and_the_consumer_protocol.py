"""kafka-consumer-groups of Kafka 3.9.2 and 4.3.1 on consumer groups (KIP-848).

It prints the same for the gateway as for Kafka 4.3.1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka.admin import AdminClient

from tests.legacy_clients.brokers import gateway
from tests.peers.comparison import (
    MATCHING_OPTIONS,
    TOOL_TIMEOUT_MS,
    Command,
    CommandOutput,
    ComparedBrokers,
)
from tests.peers.groups import group_setups
from tests.peers.tools.conftest import HEARTBEAT_INTERVAL
from tests.peers.tools.tool_steps import Ends, Outputs, Steps, in_steps, play_selected
from tests.testkit.kafka import MODERN, VERSION

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("kafka groups tool and the consumer protocol"),
]

_RANDOM_ID = re.compile(
    r"(?<=[ -])[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<= )[\w+/-]{22}(?= )"
)
_NUMBER = re.compile(r"(?<= )\d+(?= )")


def _set(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def sides(modern_kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedBrokers]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway(folder, arguments=[*MATCHING_OPTIONS, *_set(HEARTBEAT_INTERVAL)]) as ours:
        yield ComparedBrokers(ours.bootstrap, modern_kafka)


@pytest.fixture(scope="module", params=[pytest.param(VERSION, marks=pytest.mark.slow), MODERN])
def ends(request: pytest.FixtureRequest, sides: ComparedBrokers) -> Ends:
    return play_selected(request, sides, request.param, request.param)


def prepare(sides: ComparedBrokers, topic: str, *records: int) -> None:
    for at in (sides.gateway, sides.kafka):
        group_setups.create_topic(at, topic, *records)


@contextmanager
def members(sides: ComparedBrokers, group: str, topic: str, *names: str) -> Iterator[None]:
    """Members that have their target assignment on both sides."""
    with ExitStack() as stack:
        for at in (sides.gateway, sides.kafka):
            stack.enter_context(group_setups.members(at, group, topic, *names, protocol="consumer"))
            _wait_until_stable(at, group)
        yield


def _wait_until_stable(at: str, group: str) -> None:
    end = time.monotonic() + group_setups.SECONDS
    admin = AdminClient({"bootstrap.servers": at})
    while (
        found := admin.describe_consumer_groups([group])[group].result(group_setups.SECONDS)
    ).state.name != "STABLE":
        assert time.monotonic() < end, found.state
        time.sleep(0.1)


def tool(*arguments: str) -> Command:
    return ("kafka-consumer-groups", "--timeout", str(TOOL_TIMEOUT_MS), *arguments)


def same(
    *commands: Command, codes: Sequence[int] = ()
) -> Generator[Sequence[Command], Outputs, list[str]]:
    """A step whose outputs must be equal on both sides; returns them.

    `codes` are the expected exit codes, by default 0.
    """
    ours, theirs = yield commands
    assert [one.code for one in theirs] == list(codes or [0] * len(commands)), theirs
    assert [_lines(one) for one in ours] == [_lines(one) for one in theirs]
    assert [one.code for one in ours] == [one.code for one in theirs]
    return [one.output for one in ours]


def _lines(printed: CommandOutput) -> list[str]:
    """The lines of the output, comparable between both sides.

    Members have no defined order. Kafka 4 counts epochs from one higher, so numbers and column
    widths of tables with epochs are removed.
    """
    text = _RANDOM_ID.sub("ID", printed.output)
    if "-EPOCH" in text:
        text = _NUMBER.sub("N", text)
    return sorted(re.sub(" +", " ", line) for line in text.splitlines())


@in_steps
def test_list_and_describe_match_kafka(sides: ComparedBrokers, version: str) -> Steps:
    name = f"described-{version}"
    prepare(sides, name, 4, 2, 0)
    group = ("--describe", "--group", name)
    with members(sides, name, name, "static-x", "static-y"):
        lag, who, verbose, state, epochs, types, states, only = yield from same(
            tool(*group),
            tool(*group, "--members"),
            tool(*group, "--members", "--verbose"),
            tool(*group, "--state"),
            tool(*group, "--state", "--verbose"),
            tool("--list", "--type"),
            tool("--list", "--state"),
            tool("--list", "--type", "Consumer"),
        )
    assert re.search(
        rf"^{name} +{name} +2 +- +0 +- +\S+ +/127\.0\.0\.1 +static-y *$", lag, re.MULTILINE
    )
    assert re.search(r" static-x +2 *$", who, re.MULTILINE)
    assert re.search(r" static-x +/127\.0\.0\.1 +static-x +2 .*\b0,1\b", verbose)
    assert re.search(r" range +Stable +2$", state, re.MULTILINE)
    assert re.search(r" Stable ", epochs)
    assert re.search(rf"^{name} +Consumer *$", types, re.MULTILINE)
    assert re.search(rf"^{name} +Stable *$", states, re.MULTILINE)
    assert name in only


@in_steps
def test_group_with_members_is_neither_reset_nor_deleted(
    sides: ComparedBrokers, version: str
) -> Steps:
    name = f"busy-{version}"
    prepare(sides, name, 4)
    with members(sides, name, name, "static-x"):
        reset, offsets, deleted = yield from same(
            tool("--reset-offsets", "--group", name, "--to-earliest", "--all-topics", "--execute"),
            tool("--delete-offsets", "--group", name, "--topic", name),
            tool("--delete", "--group", name),
        )
    assert "the current state is Stable" in reset
    assert "actively subscribed" in offsets
    assert "The group is not empty" in deleted


@in_steps
def test_group_without_members_is_reset_and_deleted(sides: ComparedBrokers, version: str) -> Steps:
    name = f"left-{version}"
    prepare(sides, name, 4, 2)
    with members(sides, name, name, "x"):
        pass
    group = ("--describe", "--group", name)
    empty, state, reset, described, offsets, deleted, gone = yield from same(
        tool(*group, "--members"),
        tool(*group, "--state"),
        tool("--reset-offsets", "--group", name, "--to-offset", "1", "--topic", name, "--execute"),
        tool(*group),
        tool("--delete-offsets", "--group", name, "--topic", f"{name}:1"),
        tool("--delete", "--group", name),
        tool(*group),
    )
    assert "has no active members" in empty
    assert " Empty " in state
    assert re.search(rf"{name} +{name} +0 +1\b", reset)
    assert re.search(rf"^{name} +{name} +0 +1 +4 +3 +- +- +- *$", described, re.MULTILINE)
    assert "Successful" in offsets
    assert "was successful" in deleted
    assert "does not exist" in gone or "not found" in gone


@in_steps
def test_kafka_configs_of_a_group_match_kafka(sides: ComparedBrokers, version: str) -> Steps:
    if version != MODERN:
        pytest.skip("groups have configs since Kafka 4")
    group = ("--entity-type", "groups", "--entity-name", "configured")
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    wrong = [
        f"{session}=1",
        f"{session}=70000",
        f"{interval}=1",
        f"{interval}=20000",
        f"{interval}=x",
        "nonsense=1",
    ]
    ours, theirs = yield [
        ("kafka-configs", "--alter", *group, "--add-config", f"{session}=50000,{interval}=6000"),
        *(("kafka-configs", "--alter", *group, "--add-config", change) for change in wrong),
    ]
    assert ours == theirs
    assert [one.code for one in ours] == [0] + [1] * len(wrong)
    ours, theirs = yield [
        ("kafka-configs", "--describe", *group),
        ("kafka-configs", "--alter", *group, "--delete-config", session),
    ]
    assert ours == theirs
    assert f"DYNAMIC_GROUP_CONFIG:{session}=50000" in ours[0].output
    ours, theirs = yield [("kafka-configs", "--describe", *group)]
    assert ours == theirs
    assert session not in ours[0].output
