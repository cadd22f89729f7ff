from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gateway.cli.groups.reset_options import with_reset_options
from gateway.cli.groups.reset_plan import ResetScope, ResetTarget, TargetKind


def read(*arguments):
    """Return the parsed options, and the exit code with the error."""
    said = []

    @click.command()
    @with_reset_options
    def command(target, scopes):
        said.append((target, scopes))

    result = CliRunner().invoke(command, arguments)
    return (said[0] if said else None), result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (["--to-earliest"], ResetTarget(TargetKind.EARLIEST)),
        (["--to-latest"], ResetTarget(TargetKind.LATEST)),
        (["--to-offset", "0"], ResetTarget(TargetKind.OFFSET, 0)),
        (["--shift-by", "-5"], ResetTarget(TargetKind.SHIFT, -5)),
        (["--shift-by", "0"], ResetTarget(TargetKind.SHIFT, 0)),
        (["--to-datetime", "1970-01-01T00:00:01"], ResetTarget(TargetKind.DATETIME, 1000)),
        (["--to-datetime", "1970-01-01T00:00:01.5Z"], ResetTarget(TargetKind.DATETIME, 1500)),
        (["--to-datetime", "1970-01-01T01:00:01+01:00"], ResetTarget(TargetKind.DATETIME, 1000)),
        (["--to-datetime", "1970-01-02"], ResetTarget(TargetKind.DATETIME, 86_400_000)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_target_options_are_parsed(arguments, target):
    assert read(*arguments, "--all-topics") == ((target, None), 0, "")


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("orders", ResetScope("orders")),
        ("orders:0", ResetScope("orders", (0,))),
        ("a.b_c-d:3,1", ResetScope("a.b_c-d", (3, 1))),
        ("persistent://public/default/orders", ResetScope("persistent://public/default/orders")),
        (
            "persistent://public/default/orders:7",
            ResetScope("persistent://public/default/orders", (7,)),
        ),
    ],
)
def test_scope_is_topic_with_optional_partitions(text, scope):
    assert read("--to-latest", "--topic", text)[0] == (ResetTarget(TargetKind.LATEST), [scope])


def test_topic_option_can_be_repeated():
    assert read("--to-latest", "--topic", "a", "--topic", "b:1")[0] == (
        ResetTarget(TargetKind.LATEST),
        [ResetScope("a"), ResetScope("b", (1,))],
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--all-topics"], "give one of --to-earliest"),
        (["--to-earliest", "--to-latest", "--all-topics"], "give one of --to-earliest"),
        (["--to-offset", "0", "--shift-by", "0", "--all-topics"], "give one of --to-earliest"),
        (["--to-latest"], "give either --topic or --all-topics"),
        (["--to-latest", "--topic", "a", "--all-topics"], "give either --topic or --all-topics"),
        (["--to-offset", "-1", "--all-topics"], "--to-offset"),
        (["--to-datetime", "yesterday", "--all-topics"], "'yesterday' is not a time like"),
        (["--to-datetime", "1969-12-31T23:59:59", "--all-topics"], "is before 1970"),
        (["--to-latest", "--topic", "a:"], "'a:' is not TOPIC or TOPIC:PARTITION"),
        (["--to-latest", "--topic", "a:x"], "is not TOPIC"),
        (["--to-latest", "--topic", "a:1,"], "is not TOPIC"),
        (["--to-latest", "--topic", "a:-1"], "is not TOPIC"),
        (["--to-latest", "--topic", ""], "is not TOPIC"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_contradicting_options_are_usage_errors(arguments, complaint):
    said, code, words = read(*arguments)
    assert (said, code) == (None, 2)
    assert complaint in words
