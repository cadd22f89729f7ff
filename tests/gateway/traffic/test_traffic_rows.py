from __future__ import annotations

import json
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
    encode_lines,
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


class Named(msgspec.Struct):
    name: str


@pytest.mark.parametrize("code", [0, 0x1B, 0x1F, 0x80, 0x85, 0x9B, 0x9F])
def test_control_characters_are_escaped(code):
    lines = encode_lines([Named(f"a{chr(code)}\\{chr(code)}"), Named("b")])
    assert chr(code) not in lines.decode()
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"name": f"a{chr(code)}\\{chr(code)}"},
        {"name": "b"},
    ]


def test_other_characters_are_not_escaped():
    name = "\xa0\xa9 \xc2\u0100\u2080\U0001f980"
    assert encode_lines([Named(name)]) == f'{{"name":"{name}"}}\n'.encode()


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
