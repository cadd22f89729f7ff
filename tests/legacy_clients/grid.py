"""Summary of a run of the real clients.

One table has versions, record formats and outcome of each client, the other what each shows after a
wrong password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

import pytest

from tests.legacy_clients.clients import Client
from tests.legacy_clients.relay import Versions

#: Column heading and API key.
APIS = {"P": 0, "F": 1, "M": 3, "AV": 18, "FC": 10, "JG": 11, "OC": 8, "OF": 9}
LEGEND = (
    "P Produce, F Fetch, M Metadata, AV ApiVersions, FC FindCoordinator, JG JoinGroup, "
    "OC OffsetCommit, OF OffsetFetch: the highest version sent.\n"
    "formats: of the records that it writes, and the newest that it is sent.\n"
    "PLAIN, SCRAM: seconds until it reports a wrong password, of SCRAM the longer time."
)
REASON_CHARACTERS = 100


class Refusal(TypedDict):
    """What a client did after a wrong password, as its test records it.

    `handshake` is the version of SaslHandshake, `connections` counts its attempts, `error` is what
    it reports `seconds` after the first.
    """

    mechanism: str
    seconds: float
    handshake: int
    connections: int
    error: str


@dataclass(slots=True)
class ClientOutcome:
    """The result of one client; `reasons` are those of tests that did not pass."""

    passed: int = 0
    reasons: list[str] = field(default_factory=list)
    spoken: Versions = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)


def outcomes_by_client(reports: Iterable[pytest.TestReport]) -> dict[str, ClientOutcome]:
    """Outcomes by client, from tests parametrized with its name, alone or as `name+other`."""
    lines: dict[str, ClientOutcome] = {}
    for report in reports:
        named = re.search(r"\[([^\]]+)\]$", report.nodeid)
        for name in named[1].split("+") if named else ():
            _add_report(report, lines.setdefault(name, ClientOutcome()))
    return lines


def _add_report(report: pytest.TestReport, line: ClientOutcome) -> None:
    properties = dict(report.user_properties)
    line.spoken |= properties.get("spoken", {})
    if report.when == "call" and "refused" in properties:
        line.refusals.append(properties["refused"])
    if not report.passed:
        line.reasons.append(f"{report.outcome}: {_reason(report)}")
    elif report.when == "call":
        line.passed += 1


def render_grid(table: Mapping[str, Client], lines: Mapping[str, ClientOutcome]) -> str:
    """The grid in the table's order; clients without tests have no line."""
    width = max(map(len, table))
    head = f"{'client':{width}}  " + "".join(f"{name:>3}" for name in APIS)
    head += "  formats  PLAIN  SCRAM  outcome"
    rows = [
        f"{name:{width}}  "
        + "".join(f"{_version(lines[name].spoken, key):>3}" for key in APIS.values())
        + f"  {_formats(client):7}  {_noticed(lines[name], 'PLAIN'):>5}"
        + f"  {_noticed(lines[name], 'SCRAM'):>5}  {_outcome(lines[name])}"
        for name, client in table.items()
        if name in lines
    ]
    return "\n".join([head, *rows, LEGEND])


def render_refusals(table: Mapping[str, Client], lines: Mapping[str, ClientOutcome]) -> str:
    """What each client shows after a wrong password; empty without such tests."""
    width = max(map(len, table))
    rows = [
        f"{name:{width}}  {one['mechanism']:13}  {one['handshake']:>9}"
        f"  {one['connections']:>11}  {one['seconds']:>7.1f}  {one['error'][:REASON_CHARACTERS]}"
        for name in table
        if name in lines
        for one in sorted(lines[name].refusals, key=lambda one: one["mechanism"])
    ]
    if not rows:
        return ""
    head = "  mechanism      handshake  connections  seconds  error"
    return "\n".join([f"{'client':{width}}{head}", *rows])


def _noticed(line: ClientOutcome, mechanism: str) -> str:
    seconds = [one["seconds"] for one in line.refusals if one["mechanism"].startswith(mechanism)]
    return f"{max(seconds):.1f}" if seconds else "-"


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
