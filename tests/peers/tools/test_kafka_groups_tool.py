"""kafka-consumer-groups of Kafka 3.9.2 prints the same for the gateway as for Kafka."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from tests.peers.comparison import (
    TOOL_TIMEOUT_MS,
    Command,
    CommandOutput,
    ComparedBrokers,
)
from tests.peers.groups import group_setups
from tests.peers.tools.tool_steps import Ends, Outputs, Steps, in_steps, play_selected
from tests.testkit.kafka import VERSION

pytestmark = [
    pytest.mark.peer,
    pytest.mark.xdist_group("kafka groups tool"),
]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def sides(compared_brokers: ComparedBrokers) -> ComparedBrokers:
    return compared_brokers


@pytest.fixture(scope="module")
def ends(request: pytest.FixtureRequest, sides: ComparedBrokers) -> Ends:
    return play_selected(request, sides, VERSION)


def prepare(
    sides: ComparedBrokers,
    topic: str,
    *records: int,
    group: str = "",
    committed: Mapping[int, int] | None = None,
) -> None:
    """Create a topic on both sides with this many records per partition, and commit a group's
    offsets.
    """
    for at in (sides.gateway, sides.kafka):
        group_setups.create_topic(at, topic, *records)
        if committed:
            group_setups.commit_offsets(
                at, group, {(topic, partition): offset for partition, offset in committed.items()}
            )


@contextmanager
def members(sides: ComparedBrokers, group: str, topic: str, *names: str) -> Iterator[None]:
    with ExitStack() as stack:
        for at in (sides.gateway, sides.kafka):
            stack.enter_context(group_setups.members(at, group, topic, *names))
        yield


def tool(*arguments: str) -> Command:
    return ("kafka-consumer-groups", "--timeout", str(TOOL_TIMEOUT_MS), *arguments)


def same(
    *commands: Command, codes: Sequence[int] = ()
) -> Generator[Sequence[Command], Outputs, list[str]]:
    """A step whose outputs must be equal on both sides; returns them.

    `codes` are the expected exit codes, by default 0. Members have no defined order, and member ids
    are random.
    """
    ours, theirs = yield commands
    assert [one.code for one in theirs] == list(codes or [0] * len(commands)), theirs
    assert [_lines(one) for one in ours] == [_lines(one) for one in theirs]
    assert [one.code for one in ours] == [one.code for one in theirs]
    return [one.output for one in ours]


def _lines(printed: CommandOutput) -> list[str]:
    return sorted(_UUID.sub("UUID", printed.output).splitlines())


def committed(sides: ComparedBrokers, group: str, topic: str, *partitions: int) -> list[int | None]:
    """Return the group's committed offsets, which must be equal on both sides."""
    ours, theirs = (
        group_setups.committed_offsets(at, group, *((topic, one) for one in partitions))
        for at in (sides.gateway, sides.kafka)
    )
    assert ours == theirs
    return ours


@in_steps
def test_list_by_state_and_type_matches_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "listed", 1, group="listed-empty", committed={0: 1})
    with members(sides, "listed-stable", "listed", "x"):
        every, states, empty, types, _ = yield from same(
            tool("--list"),
            tool("--list", "--state"),
            tool("--list", "--state", "Empty"),
            tool("--list", "--type"),
            tool("--list", "--state", "sleepy"),
            codes=[0, 0, 0, 0, 1],
        )
    assert {"listed-empty", "listed-stable"} <= set(every.split())
    assert re.search(r"^listed-stable +Stable *$", states, re.MULTILINE)
    assert "listed-stable" not in empty
    assert re.search(r"^listed-empty +Classic *$", types, re.MULTILINE)


@in_steps
def test_describe_of_group_with_members_matches_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "described", 4, 2, 0, group="described-app", committed={0: 1, 2: 0})
    prepare(sides, "left", 3, group="described-app", committed={0: 2})
    group = ("--describe", "--group", "described-app")
    with members(sides, "described-app", "described", "x", "static-y"):
        lag, who, verbose, state = yield from same(
            tool(*group),
            tool(*group, "--members"),
            tool(*group, "--members", "--verbose"),
            tool(*group, "--state"),
        )
    assert re.search(r"^described-app +described +0 +1 +4 +3 +static-y-", lag, re.MULTILINE)
    assert re.search(r"^described-app +left +0 +2 +3 +1 +- +- +- *$", lag, re.MULTILINE)
    assert re.search(r" static-y +/127\.0\.0\.1 +static-y +2 *$", who, re.MULTILINE)
    assert re.search(r" x +1 +\(2\)$", verbose, re.MULTILINE)
    assert re.search(r" range +Stable +2$", state, re.MULTILINE)


@in_steps
def test_describe_of_empty_and_missing_groups_matches_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "quiet", 3, group="quiet-app", committed={0: 1})
    group = ("--describe", "--group", "quiet-app")
    outputs = yield from same(
        tool(*group),
        tool(*group, "--members"),
        tool(*group, "--state"),
        tool("--describe", "--group", "never"),
        tool("--describe", "--group", "never", "--members"),
    )
    assert "Consumer group 'quiet-app' has no active members." in outputs[0]
    assert "Consumer group 'never' does not exist." in outputs[3]


@in_steps
def test_offset_reset_matches_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "reset", 4, 2, group="reset-app", committed={0: 3, 1: 1})
    planned = {
        ("--to-earliest", "--all-topics"): [0, 0],
        ("--to-offset", "9", "--topic", "reset:0,1"): [4, 2],
        ("--to-current", "--all-topics"): [3, 1],
        ("--by-duration", "PT1H", "--all-topics"): [4, 2],
        ("--shift-by", "-9", "--all-topics"): [0, 0],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("reset,0,2\nreset,1,9\n")
        file.flush()
        executed = {
            ("--to-datetime", "1970-01-01T00:00:02.000", "--topic", "reset"): [1, 1],
            ("--shift-by", "2", "--topic", "reset:0"): [3, 1],
            ("--from-file", file.name): [2, 2],
            ("--to-latest", "--all-topics"): [4, 2],
        }
        reset = [
            ("--reset-offsets", "--group", "reset-app", *arguments)
            for arguments in (*planned, *executed)
        ]
        *plans, export = yield from same(
            *(tool(*arguments, "--dry-run") for arguments in reset),
            tool(*reset[0], "--dry-run", "--export"),
        )
        assert "reset,0,0" in export.replace('"', "")
        assert committed(sides, "reset-app", "reset", 0, 1) == [3, 1]
        describe = tool("--describe", "--group", "reset-app")
        outputs = yield from same(
            *(
                command
                for arguments in reset[len(planned) :]
                for command in (tool(*arguments, "--execute"), describe)
            ),
        )
    row = re.compile(r"reset-app +reset +(\d) +(\d+)")

    def offsets(output: str) -> list[int]:
        return [int(offset) for _, offset in sorted(row.findall(output))]

    assert [offsets(plan) for plan in plans[: len(planned)]] == list(planned.values())
    assert [offsets(described) for described in outputs[1::2]] == list(executed.values())


@in_steps
def test_group_with_members_is_neither_reset_nor_deleted(sides: ComparedBrokers) -> Steps:
    prepare(sides, "busy", 4, group="busy-app", committed={0: 3})
    with members(sides, "busy-app", "busy", "x"):
        reset, offsets, deleted = yield from same(
            tool(
                "--reset-offsets",
                "--group",
                "busy-app",
                "--to-earliest",
                "--all-topics",
                "--execute",
            ),
            tool("--delete-offsets", "--group", "busy-app", "--topic", "busy"),
            tool("--delete", "--group", "busy-app"),
        )
    assert "the current state is Stable" in reset
    assert "actively subscribed" in offsets
    assert "The group is not empty" in deleted
    assert committed(sides, "busy-app", "busy", 0) == [3]


@in_steps
def test_delete_offsets_matches_kafka(sides: ComparedBrokers) -> Steps:
    prepare(sides, "partly", 1, 1, group="partly-app", committed={0: 1, 1: 1})
    outputs = yield from same(
        tool("--delete-offsets", "--group", "partly-app", "--topic", "partly:1"),
        tool("--delete-offsets", "--group", "partly-app", "--topic", "never:0"),
        tool("--delete-offsets", "--group", "never", "--topic", "partly:0"),
    )
    assert "Successful" in outputs[0]
    assert committed(sides, "partly-app", "partly", 0, 1) == [1, None]


@in_steps
def test_delete_removes_groups_and_their_offsets(sides: ComparedBrokers) -> Steps:
    prepare(sides, "deleted", 1, group="deleted-a", committed={0: 1})
    prepare(sides, "deleted-too", 1, group="deleted-b", committed={0: 1})
    outputs = yield from same(
        tool("--delete", "--group", "deleted-a", "--group", "deleted-b"),
        tool("--delete", "--group", "deleted-a"),
        tool("--describe", "--group", "deleted-b"),
    )
    assert "was successful" in outputs[0]
    assert "does not exist" in outputs[2]
    assert committed(sides, "deleted-a", "deleted", 0) == [None]


@in_steps
def test_deleting_a_topic_removes_its_committed_offsets(sides: ComparedBrokers) -> Steps:
    prepare(sides, "staying", 1, group="traced-app", committed={0: 1})
    prepare(sides, "going", 1, group="traced-app", committed={0: 1})
    yield from same(("kafka-topics", "--delete", "--topic", "going"))
    # If a commit of a deleted topic remained, the tool would time out looking up its end offset.
    described, offsets = yield from same(
        tool("--describe", "--group", "traced-app"),
        tool("--reset-offsets", "--group", "traced-app", "--to-earliest", "--all-topics"),
    )
    assert "staying" in described
    assert "going" not in described + offsets
