from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.traffic.traffic_rows import (
    MAX_TEXT,
    ConnectionRow,
    HabitName,
    Reason,
    UsageRow,
    bounded_text,
)

ROOT = Path(__file__).parent.parent.parent.parent


def test_fields_that_do_not_apply_are_omitted():
    row = ConnectionRow(
        v=1,
        at=5,
        node=0,
        cluster="c",
        connection="0-1-0",
        sequence=0,
        event="opened",
        listener="PLAINTEXT",
        peer="192.0.2.1",
        peer_port=5000,
        protocol="PLAINTEXT",
        road="none",
        opened_at=5,
    )
    assert msgspec.json.decode(msgspec.json.encode(row)) == {
        "kind": "connection",
        "v": 1,
        "at": 5,
        "node": 0,
        "cluster": "c",
        "connection": "0-1-0",
        "sequence": 0,
        "event": "opened",
        "listener": "PLAINTEXT",
        "peer": "192.0.2.1",
        "peer_port": 5000,
        "protocol": "PLAINTEXT",
        "road": "none",
        "opened_at": 5,
    }


def test_text_is_bounded_and_encodable():
    assert bounded_text("x" * 40_000) == "x" * MAX_TEXT
    assert msgspec.json.encode([bounded_text("a\ud800\n")]) == b'["a?\\n"]'


@pytest.fixture(scope="module")
def described():
    """Return the documentation of the rows, docs/traffic-log.md."""
    return (ROOT / "docs/traffic-log.md").read_text("utf-8").split("\n## Rows, version 1\n")[1]


def names(words):
    return set(re.findall(r"`([a-z_]+)`", words))


def row_of(described, field):
    """Return the fields in the tables of a section."""
    (found,) = re.findall(
        rf"^\| (?:`\w+`, )*`{field}`(?:, `\w+`)* \| (.*) \|$", described, re.MULTILINE
    )
    return found


def test_every_field_is_documented(described):
    written = {
        field.name for kind in (ConnectionRow, UsageRow) for field in msgspec.structs.fields(kind)
    }
    tables = {
        name
        for first in re.findall(r"^\| (`[^|]*) \|", described, re.MULTILINE)
        for name in names(first)
    }
    prose = names(re.sub(r"^\|.*", "", described, flags=re.MULTILINE))
    assert tables <= written
    # Common fields are documented before the tables.
    assert written - tables == {
        "v",
        "at",
        "node",
        "cluster",
        "connection",
        "sequence",
        "began",
        "api_key",
        "api_version",
    }
    assert written - tables <= prose


def test_every_habit_is_documented(described):
    assert names(row_of(described, "habits")) == set(get_args(HabitName))


def test_every_close_reason_is_documented(described):
    assert set(re.findall(r"`([a-z:-]+)`", row_of(described, "reason"))) == set(get_args(Reason))


def throttles(source):
    """Return where a response has a throttle time other than the constant 0.

    It can be set by keyword, by position, or as an attribute.
    """
    places = {"ProduceResponse": 2, "FetchResponse": 4}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            by_name = [word.value for word in node.keywords if word.arg == "throttle_time_ms"]
            given = by_name or node.args[places.get(called, 99) - 1 :][:1]
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            given = [
                node.value
                for target in targets
                if isinstance(target, ast.Attribute) and target.attr == "throttle_time_ms"
            ]
        else:
            continue
        yield from (
            ast.unparse(node)
            for value in given
            if not (isinstance(value, ast.Constant) and value.value == 0)
        )


@pytest.mark.parametrize(
    "source",
    [
        "HeartbeatResponse(throttle_time_ms=wait)",
        "wire.ProduceResponse(topics, 5)",
        "FetchResponse(topics, 0, 0, wait)",
        "reply.throttle_time_ms = wait",
    ],
)
def test_throttling_response_is_detected(source):
    assert list(throttles(source)) == [source]


def test_throttle_ms_is_absent_while_no_response_throttles(described):
    """A change that throttles responses must count them in `throttle_ms` and document it."""
    assert "always absent" in row_of(described, "throttle_ms")
    modules = (ROOT / "gateway").rglob("*.py")
    assert [
        f"{path.name}: {place}" for path in modules for place in throttles(path.read_text("utf-8"))
    ] == []
