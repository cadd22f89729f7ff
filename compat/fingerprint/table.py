"""What is known of libraries: the recorded runs of each, how their versions are ordered, and what may be configured."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from compat.fingerprint.behaviour import API_VERSIONS, Behaviour, habit_texts, opening

PACKAGE = files("compat.fingerprint")
"""Of a package that may lie in an archive, as on a cluster's workers."""
OBSERVED = PACKAGE / "observed.jsonl"


def version_numbers(version: str) -> tuple[int, ...]:
    """A version as it is ordered. Raises ValueError for what is no release."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One recorded run: what a version of a library did in one scenario. `is_configured` where an option told it to speak an older protocol."""

    client: str
    library: str
    version: str
    scenario: str
    is_configured: bool
    client_ids: tuple[str, ...]
    software: str | None
    behaviour: Behaviour


@dataclass(frozen=True, slots=True)
class VersionProfile:
    """All runs of one version together, or of one version under one configuration."""

    version: str
    behaviour: Behaviour

    @property
    def highest(self) -> dict[int, int]:
        return self.behaviour.highest


@dataclass(frozen=True)
class ClientLibrary:
    """`by_version` is in the order of versions, oldest first; `configured` stands beside it. `releases` are all there are, oldest first."""

    name: str
    protocol_config: str
    client_ids: tuple[str, ...]
    releases: tuple[str, ...]
    by_version: tuple[VersionProfile, ...]
    configured: tuple[VersionProfile, ...]

    @cached_property
    def profiles(self) -> tuple[VersionProfile, ...]:
        return (*self.by_version, *self.configured)

    @cached_property
    def habits(self) -> dict[str, frozenset[str]]:
        names = {name for profile in self.profiles for name in profile.behaviour.habits}
        return {
            name: frozenset().union(
                *(profile.behaviour.habits.get(name, frozenset()) for profile in self.profiles)
            )
            for name in names
        }

    @cached_property
    def openings(self) -> frozenset[tuple[int, ...]]:
        return frozenset().union(*(profile.behaviour.openings for profile in self.profiles))

    @cached_property
    def requests(self) -> frozenset[int]:
        return frozenset(key for profile in self.profiles for key in profile.behaviour.requests)


@dataclass(frozen=True)
class LibraryTable:
    libraries: tuple[ClientLibrary, ...]

    @cached_property
    def patterns(self) -> dict[str, str]:
        """Of client ids, by library: one regular expression (Java's and Python's alike) for the whole id."""
        return {
            library.name: f"^({'|'.join(library.client_ids)})$"
            for library in self.libraries
            if library.client_ids
        }

    def client_id_library(self, client_ids: Iterable[str]) -> str | None:
        """The library whose own client ids these are; None where they are the application's, or of several libraries."""
        found = {
            name
            for name, pattern in self.patterns.items()
            for client_id in client_ids
            if re.search(pattern, client_id)
        }
        return found.pop() if len(found) == 1 else None


def build_table(runs: Iterable[RecordedRun]) -> LibraryTable:
    """From recorded runs, all or some of them; a library without a run is not in it."""
    known = _toml("libraries.toml")
    releases = _toml("releases.toml")
    by_library: dict[str, list[RecordedRun]] = {}
    for run in runs:
        by_library.setdefault(run.library, []).append(run)
    return LibraryTable(
        tuple(
            _library(name, known[name], releases[name], own)
            for name, own in sorted(by_library.items())
        )
    )


def protocol_settings() -> dict[str, tuple[str, str]]:
    """Of each library that an application can tell to speak an older protocol: when that shows ("unasked" or "always"), and the name of that setting."""
    return {
        name: (known["configured"], known["setting"])
        for name, known in _toml("libraries.toml").items()
        if "setting" in known
    }


def read_runs(path: Traversable = OBSERVED) -> list[RecordedRun]:
    """The lines of a recording. Raises ValueError or KeyError for a line that is none."""
    return [_run(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _run(row: Mapping[str, Any]) -> RecordedRun:
    requests = {int(key): frozenset(versions) for key, versions in row["requests"].items()}
    if row.get("api_versions") is not None:
        requests[API_VERSIONS] = requests.get(API_VERSIONS, frozenset()) | {row["api_versions"]}
    openings = frozenset(opening(first) for first in row["first"])
    behaviour = Behaviour(requests, openings, habit_texts(row.get("habits", {})))
    return RecordedRun(
        row["client"],
        row["library"],
        row["version"],
        row["scenario"],
        "pinned" in row,
        _client_ids(row),
        row.get("software"),
        behaviour,
    )


def _client_ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What was masked because it is another in each run stands there again as something."""
    return tuple(
        client_id.replace("{n}", "1").replace("{group}", "billing")
        for client_id in row.get("client_ids", ())
    )


def _library(
    name: str, known: Mapping[str, Any], releases: list[str], runs: list[RecordedRun]
) -> ClientLibrary:
    by_version: dict[str, list[RecordedRun]] = {}
    configured: dict[str, list[RecordedRun]] = {}
    for run in runs:
        if run.is_configured:
            configured.setdefault(run.client, []).append(run)
        else:
            by_version.setdefault(run.version, []).append(run)
    return ClientLibrary(
        name,
        known["configured"],
        tuple(known["client_ids"]),
        tuple(sorted({*releases, *(run.version for run in runs)}, key=version_numbers)),
        tuple(_profile(by_version[version]) for version in sorted(by_version, key=version_numbers)),
        tuple(_profile(configured[client]) for client in sorted(configured)),
    )


def _profile(runs: list[RecordedRun]) -> VersionProfile:
    requests: dict[int, frozenset[int]] = {}
    habits: dict[str, frozenset[str]] = {}
    for run in runs:
        for key, versions in run.behaviour.requests.items():
            requests[key] = requests.get(key, frozenset()) | versions
        for name, values in run.behaviour.habits.items():
            habits[name] = habits.get(name, frozenset()) | values
    return VersionProfile(
        runs[0].version,
        Behaviour(requests, frozenset().union(*(run.behaviour.openings for run in runs)), habits),
    )


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGE / name).read_text("utf-8"))
