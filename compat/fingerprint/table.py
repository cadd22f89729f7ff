"""The known libraries: recorded runs, order of versions, and protocol settings."""

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
"""A Traversable: on a cluster's workers the package may be in an archive."""
OBSERVED = PACKAGE / "observed.jsonl"


def version_numbers(version: str) -> tuple[int, ...]:
    """Parse a release number for ordering. Raises ValueError for anything else."""
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One recorded run of one library version in one scenario.

    `is_configured` tells that an option made it speak an older protocol.
    """

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
    """The combined behaviour of all runs of one version, or of one version under one
    configuration.
    """

    version: str
    behaviour: Behaviour

    @property
    def highest(self) -> dict[int, int]:
        return self.behaviour.highest


@dataclass(frozen=True)
class ClientLibrary:
    """A library.

    `by_version` are its profiles, oldest first; `configured` are the profiles of configured runs.
    `releases` are all releases, oldest first.
    """

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
        """By library, one regular expression (valid in Java and Python) that matches its default
        client ids.
        """
        return {
            library.name: f"^({'|'.join(library.client_ids)})$"
            for library in self.libraries
            if library.client_ids
        }

    def client_id_library(self, client_ids: Iterable[str]) -> str | None:
        """The library whose default client ids these are; None if there is no such library or more
        than one.
        """
        found = {
            name
            for name, pattern in self.patterns.items()
            for client_id in client_ids
            if re.search(pattern, client_id)
        }
        return found.pop() if len(found) == 1 else None


def build_table(runs: Iterable[RecordedRun]) -> LibraryTable:
    """Build the table of the libraries that have a run in `runs`."""
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
    """For each library with a protocol setting: when the setting shows ("unasked" or "always") and
    its name.
    """
    return {
        name: (known["configured"], known["setting"])
        for name, known in _toml("libraries.toml").items()
        if "setting" in known
    }


def read_runs(path: Traversable = OBSERVED) -> list[RecordedRun]:
    """Read a recording. Raises ValueError or KeyError for an invalid line."""
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
    """Replace the placeholders of parts that differ in each run with sample values."""
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
