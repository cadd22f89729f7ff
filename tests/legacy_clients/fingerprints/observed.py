"""Observations: what a traffic log shows of a client, the data that identifies libraries.

An observation has nothing specific to a run: no times, ports, counters, or names of topics and
groups. What varies from run to run, such as which connection sends the first request, is included
in all observed forms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.testkit.traffic_rows import Row

#: Number of first requests kept per connection, without repetitions: libraries differ in how a
#: connection begins.
FIRST = 6
#: The grid's client name by the reports' library name. Both bindings use librdkafka.
LIBRARIES = {"kafka-clients": "java", "confluent-kafka": "librdkafka", "kcat": "librdkafka"}

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
#: A version has dots, a counter has none.
_COUNTER = re.compile(r"(?<![\d.])\d+$")

T = TypeVar("T")
Habit = bool | int | str | list[str]


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One client in one scenario; docs/reports.md describes each field."""

    client: str
    library: str
    version: str
    pinned: str | None = None
    scenario: str
    road: str
    mechanism: str | None = None
    software: str | None = None
    software_version: str | None = None
    api_versions: int | None = None
    api_versions_refused: bool = False
    client_ids: list[str]
    requests: dict[str, list[int]]
    habits: dict[str, list[Habit]]
    first: list[list[str]]

    @property
    def key(self) -> tuple[str, str]:
        return self.client, self.scenario


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a run; `names` are the names of its topic and group."""

    client: str
    library: str
    version: str
    pinned: str | None
    scenario: str
    names: tuple[str, ...]


def observation(whose: RunIdentity, rows: Iterable[Row]) -> Observation:
    """Build the observation from all rows of the connections of one run."""
    rows = list(rows)
    closed = [
        row
        for row in rows
        if row["kind"] == "connection" and row["event"] == "closed" and row.get("first_requests")
    ]
    requests = _requests(rows)
    return Observation(
        client=whose.client,
        library=whose.library,
        version=whose.version,
        pinned=whose.pinned,
        scenario=whose.scenario,
        road=_login_paths(row["road"] for row in closed),
        mechanism=_single_value(row.get("mechanism") for row in closed),
        software=_single_value(row.get("software") for row in closed),
        software_version=_single_value(row.get("software_version") for row in closed),
        api_versions=max(requests.get("18", ()), default=None),
        api_versions_refused=any(row.get("api_versions_refused", False) for row in closed),
        client_ids=sorted(
            {
                mask_client_id(one, whose.names)
                for row in closed
                for one in row.get("client_ids", ())
            }
        ),
        requests=requests,
        habits=_habits(row.get("habits", {}) for row in closed),
        first=_distinct(fold_repetitions(row["first_requests"]) for row in closed),
    )


def fold_repetitions(requests: Sequence[str]) -> list[str]:
    """The first requests of a connection, without consecutive repetitions.

    How often a client repeats a request depends on timing.
    """
    return [one for one, _ in groupby(requests)][:FIRST]


def mask_client_id(client_id: str, names: Iterable[str]) -> str:
    """A client id without the names of topics and groups, random numbers and counters of a run."""
    for name in names:
        client_id = client_id.replace(name, "{group}")
    return _COUNTER.sub("{n}", _UUID.sub("{n}", client_id))


def merge(observations: Iterable[Observation]) -> Observation:
    """Merge several runs of one client in one scenario.

    Raises ValueError if they differ in what must be constant.
    """
    first, *others = observations
    for other in others:
        if _constant_fields(other) != _constant_fields(first):
            raise ValueError(
                f"{first.client} {first.scenario}: runs differ: "
                f"{_constant_fields(first)}, {_constant_fields(other)}"
            )
    every = [first, *others]
    return msgspec.structs.replace(
        first,
        road=_login_paths(one.road for one in every),
        client_ids=sorted({name for one in every for name in one.client_ids}),
        requests=_union([one.requests for one in every], sorted_keys),
        habits=_union([one.habits for one in every]),
        first=_distinct(connection for one in every for connection in one.first),
    )


def sorted_keys(names: Iterable[str]) -> list[str]:
    """API keys in numerical order."""
    return sorted(names, key=int)


def read(file: Path) -> dict[tuple[str, str], Observation]:
    """Read a file's observations by client and scenario; empty if it does not exist."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return {one.key: one for one in (msgspec.json.decode(line, type=Observation) for line in lines)}


def encode(observations: Iterable[Observation]) -> bytes:
    """Encode observations as lines, sorted by client and scenario."""
    return b"".join(
        msgspec.json.encode(one) + b"\n" for one in sorted(observations, key=lambda one: one.key)
    )


def _constant_fields(one: Observation) -> tuple[object, ...]:
    return (
        one.key,
        one.version,
        one.mechanism,
        one.software,
        one.software_version,
        one.api_versions,
        one.api_versions_refused,
    )


def _login_paths(paths: Iterable[str]) -> str:
    """How the client authenticated; some libraries do it differently on two connections."""
    seen = {path for joined in paths for path in joined.split("+")}
    return "+".join(sorted(seen - {"none"})) or "none"


def _single_value(values: Iterable[str | None]) -> str | None:
    """The only value of these connections; None if none has one."""
    said = set(values) - {None}
    if len(said) > 1:
        raise ValueError(f"connections of one run differ: {sorted(map(str, said))}")
    return said.pop() if said else None


def _requests(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Versions by API key, from all sources.

    Usage rows cover served requests; the first requests and highest versions include refused ones.
    """
    seen: dict[str, set[int]] = {}
    for row in rows:
        if row["kind"] == "usage":
            seen.setdefault(str(row["api_key"]), set()).add(row["api_version"])
        for key, version in row.get("highest", {}).items():
            seen.setdefault(key, set()).add(version)
        for one in row.get("first_requests", ()):
            key, _, version = one.partition(":")
            seen.setdefault(key, set()).add(int(version))
    return {key: sorted(seen[key]) for key in sorted_keys(seen)}


def _habits(habits: Iterable[dict[str, Habit]]) -> dict[str, list[Habit]]:
    return _union([{name: [value] for name, value in one.items()} for one in habits])


def _union(
    every: Sequence[Mapping[str, Iterable[T]]], order: Callable[[Iterable[str]], list[str]] = sorted
) -> dict[str, list[T]]:
    """By name, all values of all mappings."""
    return {
        name: _distinct(value for one in every for value in one.get(name, ()))
        for name in order({name for one in every for name in one})
    }


def _distinct(values: Iterable[T]) -> list[T]:
    """Distinct values, sorted; lists cannot be hashed."""
    kept: dict[bytes, Any] = {msgspec.json.encode(value): value for value in values}
    return sorted(kept.values())
