"""Summary of a run of the real clients, one line each: versions, record formats and outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.legacy_clients.clients import Client
from tests.legacy_clients.relay import Versions

#: Column heading and API key.
APIS = {"P": 0, "F": 1, "M": 3, "AV": 18, "FC": 10, "JG": 11, "OC": 8, "OF": 9}
LEGEND = (
    "P Produce, F Fetch, M Metadata, AV ApiVersions, FC FindCoordinator, JG JoinGroup, "
    "OC OffsetCommit, OF OffsetFetch: the highest version sent.\n"
    "formats: of the records that it writes, and the newest that it is sent."
)
REASON_CHARACTERS = 100


@dataclass(slots=True)
class ClientOutcome:
    """The result of one client; `reasons` are those of tests that did not pass."""

    passed: int = 0
    reasons: list[str] = field(default_factory=list)
    spoken: Versions = field(default_factory=dict)


def outcomes_by_client(reports: Iterable[pytest.TestReport]) -> dict[str, ClientOutcome]:
    """Outcomes by client, from tests parametrized with its name, alone or as `name+other`."""
    lines: dict[str, ClientOutcome] = {}
    for report in reports:
        named = re.search(r"\[([^\]]+)\]$", report.nodeid)
        for name in named[1].split("+") if named else ():
            _add_report(report, lines.setdefault(name, ClientOutcome()))
    return lines


def _add_report(report: pytest.TestReport, line: ClientOutcome) -> None:
    line.spoken |= dict(report.user_properties).get("spoken", {})
    if not report.passed:
        line.reasons.append(f"{report.outcome}: {_reason(report)}")
    elif report.when == "call":
        line.passed += 1


def render_grid(table: Mapping[str, Client], lines: Mapping[str, ClientOutcome]) -> str:
    """The grid in the table's order; clients without tests have no line."""
    width = max(map(len, table))
    head = f"{'client':{width}}  " + "".join(f"{name:>3}" for name in APIS) + "  formats  outcome"
    rows = [
        f"{name:{width}}  "
        + "".join(f"{_version(lines[name].spoken, key):>3}" for key in APIS.values())
        + f"  {_formats(client):7}  {_outcome(lines[name])}"
        for name, client in table.items()
        if name in lines
    ]
    return "\n".join([head, *rows, LEGEND])


def _version(spoken: Versions, key: int) -> str:
    return str(spoken.get(key, "-"))


def _formats(client: Client) -> str:
    return str(client.writes) if client.reads < 0 else f"{client.writes} / {client.reads}"


def _outcome(line: ClientOutcome) -> str:
    return line.reasons[0] if line.reasons else f"passed ({line.passed})"


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (
        crash.message
        if crash
        else report.longrepr[2]
        if isinstance(report.longrepr, tuple)
        else str(report.longrepr)
    )
    first, *_ = [*filter(None, map(str.strip, text.splitlines())), ""]
    return first[:REASON_CHARACTERS]
