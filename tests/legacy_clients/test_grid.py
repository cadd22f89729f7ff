"""The grid shows the versions, formats and outcome of each client."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.legacy_clients.clients import table
from tests.legacy_clients.grid import Refusal, outcomes_by_client, render_grid, render_refusals


def report(
    name: str,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    why: str = "",
    when: Literal["setup", "call"] = "call",
    spoken: object = None,
    refused: Refusal | None = None,
) -> pytest.TestReport:
    properties = [("spoken", spoken)] if spoken else []
    properties += [("refused", refused)] if refused else []
    return pytest.TestReport(
        f"tests/x.py::test_y[{name}]",
        ("x.py", 1, "y"),
        {},
        outcome,
        why or None,
        when,
        user_properties=properties,
    )


def line_of(name: str, *reports: pytest.TestReport) -> list[str]:
    (line,) = [
        one
        for one in render_grid(table(), outcomes_by_client(reports)).splitlines()
        if one.startswith(f"{name} ")
    ]
    return line.split()


def test_passed_client_shows_highest_versions_and_formats() -> None:
    spoken = {0: 1, 1: 1, 3: 0, 8: 2, 9: 1, 10: 0, 11: 0}
    found = line_of(
        "java-0.9.0.1",
        report("java-0.9.0.1", when="setup"),
        report("java-0.9.0.1", spoken=spoken),
        report("java-0.9.0.1"),
    )
    assert found == [
        "java-0.9.0.1",
        "1",
        "1",
        "0",
        "-",
        "0",
        "0",
        "2",
        "1",
        "0",
        "/",
        "0",
        "-",
        "-",
        "passed",
        "(2)",
    ]


def test_failed_client_shows_the_reason() -> None:
    found = line_of(
        "kcat-1.7.1", report("kcat-1.7.1"), report("kcat-1.7.1", "failed", "it timed out\nand more")
    )
    assert " ".join(found[14:]) == "failed: it timed out"


def test_skipped_client_shows_the_reason() -> None:
    found = line_of("kcat-1.7.1", report("kcat-1.7.1", "skipped", "no kcat here", when="setup"))
    assert " ".join(found[14:]) == "skipped: no kcat here"


def test_test_of_a_pair_counts_for_both_clients() -> None:
    for name in ("java-0.9.0.1", "java-4.4.0"):
        found = line_of(
            name, report(name), report("java-0.9.0.1+java-4.4.0", "failed", "they did not meet")
        )
        assert " ".join(found[14:]) == "failed: they did not meet"


def refusal(mechanism: str, seconds: float) -> Refusal:
    return {
        "mechanism": mechanism,
        "seconds": seconds,
        "handshake": 0,
        "connections": 3,
        "error": "it did not work",
    }


def test_longest_time_until_a_refusal_is_reported_is_shown() -> None:
    name = "java-3.9.2"
    found = line_of(
        name,
        report(f"{name}+PLAIN", refused=refusal("PLAIN", 0.25)),
        report(f"{name}+SCRAM-SHA-256", refused=refusal("SCRAM-SHA-256", 8.04)),
        report(f"{name}+SCRAM-SHA-512", refused=refusal("SCRAM-SHA-512", 1)),
    )
    assert found[12:14] == ["0.2", "8.0"]


def test_refusals_are_listed_by_client_and_mechanism() -> None:
    name = "kcat-1.7.1"
    outcomes = outcomes_by_client([report(f"{name}+PLAIN", refused=refusal("PLAIN", 0.25))])
    head, row = render_refusals(table(), outcomes).splitlines()
    assert head.split() == ["client", "mechanism", "handshake", "connections", "seconds", "error"]
    assert row.split(maxsplit=5) == [name, "PLAIN", "0", "3", "0.2", "it did not work"]


def test_without_refusals_there_is_no_list() -> None:
    assert render_refusals(table(), outcomes_by_client([report("kcat-1.7.1")])) == ""


def test_client_without_tests_has_no_line() -> None:
    assert not any(
        one.startswith("kcat-1.7.1")
        for one in render_grid(table(), outcomes_by_client([report("java-3.9.2")])).splitlines()
    )
