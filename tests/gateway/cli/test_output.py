from __future__ import annotations

import json

import pytest

from gateway.cli.output import (
    count_of,
    error_lines,
    error_reason,
    exit_if_errors,
    format_table,
    print_json,
    print_results,
)

UNKNOWN, DENIED = 3, 29


def row(name, code=0, message=None):
    return {"name": name, "error_code": code, "error_message": message}


def test_table_columns_fit_and_none_is_dash():
    assert format_table(["A", "LONG"], [["xyz", None], ["x", 0]]) == [
        "A    LONG",
        "xyz  -",
        "x    0",
    ]


HOSTILE = "g\x1b]0;t\x07\nforged\x9b\u202e\U000e0001"
ESCAPED = "g\\u001b]0;t\\u0007\\u000aforged\\u009b\\u202e\\udb40\\udc01"


def test_control_characters_of_names_do_not_reach_the_terminal(capsys):
    assert format_table(["A"], [[HOSTILE]])[1] == ESCAPED
    assert error_lines([row(HOSTILE, DENIED, HOSTILE)]) == [f"{ESCAPED}: {ESCAPED}"]
    print_results([row(HOSTILE)], "deleted", as_json=False)
    print_json([HOSTILE])
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{ESCAPED} deleted"
    assert second.isprintable()
    assert json.loads(second) == [HOSTILE]


def test_results_are_printed_in_order(capsys):
    print_results([row("b"), row("a")], "deleted", as_json=False)
    assert capsys.readouterr().out == "a deleted\nb deleted\n"


def test_json_has_row_and_error_per_name(capsys):
    with pytest.raises(SystemExit) as end:
        print_results([row("a"), row("b", DENIED, "not yours")], "deleted", as_json=True)
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [
        {"name": "a", "error_code": 0, "error": None},
        {"name": "b", "error_code": DENIED, "error": "not yours"},
    ]
    assert printed.err == "Error: b: not yours\n"


def test_allowed_error_prints_nothing_and_does_not_fail(capsys):
    print_results([row("a", UNKNOWN)], "deleted", as_json=False, allowed={UNKNOWN})
    assert capsys.readouterr() == ("", "")


def test_error_without_message_uses_text_of_its_code():
    assert error_lines([row("a"), row("b", UNKNOWN)]) == [
        "b: This request is for a topic or partition that does not exist on this broker."
    ]


def test_command_without_errors_does_not_exit(capsys):
    exit_if_errors([])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (54, "No Authorizer is configured.", "No Authorizer is configured; start the gateway with"),
        (31, None, "log in (--user)"),
        (DENIED, "not yours", "not yours"),
    ],
)
def test_reason_of_an_error_says_what_to_do(code, message, reason):
    assert reason in error_reason(code, message)


@pytest.mark.parametrize(
    ("number", "words"), [(0, "no members"), (1, "1 member"), (2, "2 members")]
)
def test_counts_use_singular_and_plural(number, words):
    assert count_of(number, "member") == words
