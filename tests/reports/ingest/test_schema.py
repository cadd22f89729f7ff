"""The gateway's rows and the report's schema have the same fields and types."""

from __future__ import annotations

from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from gateway.traffic import traffic_rows
from gateway.traffic.traffic_rows import ConnectionRow, HabitName, UsageRow

pytestmark = pytest.mark.spark

WRITTEN = {
    bool: {"boolean"},
    int: {"int", "bigint"},
    str: {"string"},
    list[str]: {"array<string>"},
    list[int]: {"array<bigint>"},
}
WRITTEN |= {dict[str, int]: {"map<string,bigint>", "map<string,int>"}}

UNREAD = {"merged"}
"""`requests` tells whether a row is of a whole request or of topics, also for merged topics."""


def plain(hint):
    """The type of a field without its optional part."""
    if isinstance(hint, UnionType) or type(None) in get_args(hint):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return str if get_origin(hint) is Literal else hint


@pytest.fixture
def schema(pyspark):
    from reports.ingest import schema

    return schema


def test_every_written_field_is_read_and_no_other(schema):
    hints = {
        name: plain(hint)
        for kind in (ConnectionRow, UsageRow)
        for name, hint in get_type_hints(kind, vars(traffic_rows)).items()
    }
    read = {field.name: field.dataType.simpleString() for field in schema.LINE.fields}
    assert set(hints) - UNREAD == set(read) - {"kind", schema.BROKEN}
    hints = {name: hint for name, hint in hints.items() if name not in UNREAD | {"habits"}}
    assert {
        name: read[name] for name, hint in hints.items() if read[name] not in WRITTEN[hint]
    } == {}


def test_every_written_habit_is_read_and_no_other(schema):
    assert set(schema.HABITS.fieldNames()) == set(get_args(HabitName))


def test_written_version_is_read(schema):
    assert traffic_rows.VERSION in schema.VERSIONS
