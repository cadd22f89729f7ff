"""Lists the real peers of a test run in its summary, with the number of tests that used each.

Code that starts, addresses or installs a peer calls `uses`. A peer that is used while a fixture is
set up counts for every test with that fixture. `--junitxml` has the peers of each test as its
properties.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Generator

import pytest

Peer = tuple[str, str]

PROPERTY = "peer"
#: More versions of a peer than this are given as a range.
MAX_LISTED_VERSIONS = 4

_open: list[set[Peer]] = []


def uses(name: str, version: str) -> None:
    """Note that the current fixture or test uses a peer; without effect outside of tests."""
    if _open:
        _open[-1].add((name, version))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(UsedPeers(), "used-peers-of-run")


class UsedPeers:
    def __init__(self) -> None:
        self._by_fixture: dict[str, set[Peer]] = {}
        self._tests: dict[Peer, set[str]] = defaultdict(set)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        used: set[Peer] = set()
        _open.append(used)
        try:
            return (yield)
        finally:
            _open.pop()
            self._by_fixture[fixturedef.argname] = used
            if _open:
                _open[-1].update(used)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        used: set[Peer] = set()
        _open.append(used)
        try:
            return (yield)
        finally:
            _open.pop()
            for name in getattr(item, "fixturenames", ()):
                used |= self._by_fixture.get(name, set())
            item.user_properties += [(PROPERTY, " ".join(peer)) for peer in sorted(used)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call":
            return
        for key, value in report.user_properties:
            if key == PROPERTY:
                name, _, version = str(value).rpartition(" ")
                self._tests[name, version].add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.section("real peers")
        for line in summary(self._tests):
            terminalreporter.write_line(line)


def summary(tests: dict[Peer, set[str]]) -> list[str]:
    """A line for each peer: its versions, and how many tests used any of them."""
    names = sorted({name for name, _ in tests}, key=str.lower)
    lines = []
    for name in names:
        versions = sorted((v for n, v in tests if n == name), key=_by_number)
        used = set[str]().union(*(tests[name, version] for version in versions))
        shown = ", ".join(versions)
        if len(versions) > MAX_LISTED_VERSIONS:
            shown = f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
        lines.append(f"{name} {shown}: {len(used)} test{'s' if len(used) > 1 else ''}")
    return lines


def _by_number(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]
