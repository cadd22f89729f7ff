"""What the gateway writes and what a report reads are one: field by field, and of one type."""

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
"""Whether a row is of a whole request or of topics is told by its `requests`, also where topics are merged."""


def plain(hint):
    """A field's type where it applies."""
    if isinstance(hint, UnionType) or type(None) in get_args(hint):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    return str if get_origin(hint) is Literal else hint


@pytest.fixture
def schema(pyspark):
    from reports.ingest import schema

    return schema


def test_every_field_that_is_written_is_read_and_no_other(schema):
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


def test_every_habit_that_is_written_is_read_and_no_other(schema):
    assert set(schema.HABITS.fieldNames()) == set(get_args(HabitName))


def test_the_version_that_is_written_is_read(schema):
    assert traffic_rows.VERSION in schema.VERSIONS
