"""The five-line answer and the exit code."""

from __future__ import annotations

import pytest

from reports.page import answer

APPLICATION = {"principal": "User:a", "client_id": "billing", "address": "10.0.0.1"}


@pytest.fixture
def summary():
    return {
        "target": "kafka-4.0",
        "ready": True,
        "from": "2026-11-01",
        "until": "2026-11-20",
        "applications": {"total": 1, "refused": 0, "below": 0, "unknown": 0, "fine": 1},
        "blockers": [],
        "bindings": {"topics": 0, "groups": 0, "first": None},
        "conversions": {"conversions": 0},
        "trend": {
            "days": 0,
            "first": None,
            "last": None,
            "reaches_zero": None,
            "why": ("needs 7 full days of data, has 0"),
        },
    }


def test_answer_is_ready_if_nothing_is_refused(summary):
    lines = answer.five_lines(summary)
    assert len(lines) == 5
    assert lines[0].startswith(
        "kafka-4.0: ready. 1 application from 2026-11-01 to 2026-11-20: 0 refused"
    )
    assert lines[1:4] == [
        "migrate first: none",
        "shared: no topic or group has both old and new applications",
        "conversions: none",
    ]
    assert answer.exit_code(summary) == 0


def test_period_of_one_day_is_one_date(summary):
    assert "1 application on 2026-11-20: " in answer.five_lines(summary | {"from": "2026-11-20"})[0]


def test_refused_application_is_named_with_its_advice(summary):
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
        "migrate first: billing (User:a at 10.0.0.1), 5.0 GiB in total, "
        "sends Produce 1 (served from version 3); needs java 2.1.0"
    )
    assert answer.exit_code(summary) == 3


def test_trend_gives_day_or_reason_for_none(summary):
    assert answer.five_lines(summary)[4] == "trend: needs 7 full days of data, has 0"
    summary["trend"] = {
        "days": 9,
        "first": 7,
        "last": 2,
        "reaches_zero": "2026-12-24",
        "why": "at the current rate",
    }
    assert answer.five_lines(summary)[4] == (
        "trend: from 7 to 2 refused applications a day; none from 2026-12-24 (at the current rate)"
    )


def test_application_without_names_gets_placeholders():
    assert (
        answer.describe({"principal": "", "client_id": "", "address": ""})
        == "no client id (no principal at unknown address)"
    )


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 60, "1024.0 PiB")]
)
def test_size_uses_fitting_unit(number, text):
    assert answer.format_bytes(number) == text


def test_long_name_is_shortened_in_the_middle():
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
def test_short_times_are_not_shown_as_zero(number, text):
    assert answer.format_seconds(number) == text


def test_control_characters_in_names_are_replaced(summary):
    evil = {
        **APPLICATION,
        "client_id": "a\nb\x1b[31m\u202ec",
        "bytes": 1,
        "reasons": "Produce 1",
        "needs": "",
    }
    lines = answer.five_lines(summary | {"blockers": [evil]})
    assert lines[1].startswith(
        "migrate first: a\N{REPLACEMENT CHARACTER}b"
        "\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}c ("
    )
