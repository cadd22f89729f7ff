"""The five lines, and the exit code."""

from __future__ import annotations

import pytest

from reports.page import answer

APPLICATION = {"principal": "User:a", "client_id": "billing", "address": "10.0.0.1"}


@pytest.fixture
def summary():
    return {
        "target": "kafka-4.0", "ready": True, "from": "2026-11-01", "until": "2026-11-20",
        "applications": {"total": 1, "refused": 0, "below": 0, "unknown": 0, "fine": 1},
        "blockers": [], "bindings": {"topics": 0, "groups": 0, "first": None}, "conversions": {"conversions": 0},
        "trend": {"days": 0, "first": None, "last": None, "reaches_zero": None, "why": "it takes 7 full days, and there are 0"},
    }  # fmt: skip


def test_where_nothing_is_refused_the_answer_is_ready(summary):
    lines = answer.five_lines(summary)
    assert len(lines) == 5
    assert lines[0].startswith(
        "kafka-4.0: ready. 1 application from 2026-11-01 to 2026-11-20: 0 refused"
    )
    assert lines[1:4] == [
        "to move first: nobody",
        "bound together: no topic and no group has both old and new applications",
        "conversions: none",
    ]
    assert answer.exit_code(summary) == 0


def test_one_day_is_told_as_one(summary):
    assert "1 application on 2026-11-20: " in answer.five_lines(summary | {"from": "2026-11-20"})[0]


def test_who_is_refused_is_named_with_what_it_needs(summary):
    blocker = {
        **APPLICATION,
        "bytes": 5 << 30,
        "reasons": "Produce 1 (served from version 3)",
        "needs": "java 2.1.0",
    }
    summary |= {"ready": False, "blockers": [blocker]}
    lines = answer.five_lines(summary)
    assert "NOT READY" in lines[0]
    assert lines[1] == (
        "to move first: billing (User:a at 10.0.0.1), 5.0 GiB in all, sends Produce 1 (served from version 3); it needs java 2.1.0"
    )
    assert answer.exit_code(summary) == 3


def test_the_trend_says_the_day_or_why_there_is_none(summary):
    assert (
        answer.five_lines(summary)[4]
        == "trend: no full day yet; from which day on there are none cannot be told: it takes 7 full days, and there are 0"
    )
    summary["trend"] = {
        "days": 9,
        "first": 7,
        "last": 2,
        "reaches_zero": "2026-12-24",
        "why": "at the pace of these days",
    }
    assert (
        answer.five_lines(summary)[4]
        == "trend: from 7 to 2 refused applications a day; none from 2026-12-24 (at the pace of these days)"
    )


def test_an_application_without_names_is_called_something():
    assert (
        answer.describe({"principal": "", "client_id": "", "address": ""})
        == "no client id (nobody at somewhere)"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 60, "1024.0 PiB")]
)
def test_a_size_is_told_in_the_unit_that_fits(number, text):
    assert answer.format_bytes(number) == text


def test_a_long_name_is_cut_and_keeps_its_end():
    assert answer.shorten("a" * 100 + "-east", 11) == "aaaaaaa…ast"
    assert answer.shorten("a" * 80) == "a" * 80
    assert len(answer.shorten("a" * 81)) == 80


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 ms"),
        (0.0002, "under 1 ms"),
        (0.001, "1 ms"),
        (0.0634, "63 ms"),
        (1, "1.0 s"),
        (12345.6, "12,345.6 s"),
    ],
)
def test_seconds_are_told_so_that_few_are_not_none(number, text):
    assert answer.format_seconds(number) == text


def test_what_a_client_calls_itself_does_nothing_to_a_terminal(summary):
    evil = {
        **APPLICATION,
        "client_id": "a\nb\x1b[31m\u202ec",
        "bytes": 1,
        "reasons": "Produce 1",
        "needs": "",
    }
    lines = answer.five_lines(summary | {"blockers": [evil]})
    assert lines[1].startswith(
        "to move first: a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}c ("
    )
