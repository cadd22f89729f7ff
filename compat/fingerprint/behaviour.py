"""What a client did, as the traffic log tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

API_VERSIONS = 18
NEVER_ASKED = -1
"""As a version of ApiVersions."""
LOG_IN = (17, 36)
"""SaslHandshake and SaslAuthenticate: whether they are there is the listener's doing."""
OPENING = 4
"""Requests that a connection is told by; those after them are the application's."""


@dataclass(frozen=True, slots=True)
class Doing:
    """`requests` has the versions that were sent, by api key; `openings` the api keys with which connections began, repetitions folded; `habits` the
    values that were seen, by name, as text; `named_like` the library whose own client ids it uses.

    `is_whole` is false for a single connection: a client that asks for ApiVersions may do so on another one.
    """

    requests: Mapping[int, frozenset[int]]
    openings: frozenset[tuple[int, ...]] = frozenset()
    habits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    named_like: str | None = None
    is_whole: bool = True

    @property
    def highest(self) -> dict[int, int]:
        """By api key; of ApiVersions NEVER_ASKED where a whole client sent none."""
        sent = {key: max(versions) for key, versions in self.requests.items() if versions}
        return {API_VERSIONS: NEVER_ASKED} | sent if self.is_whole else sent


def opening(first_requests: Iterable[str]) -> tuple[int, ...]:
    """From `first_requests` of a connection's row ("key:version"): the log-in left out, repetitions folded. Raises ValueError for anything else."""
    keys: list[int] = []
    for request in first_requests:
        key = int(request.partition(":")[0])
        if key not in LOG_IN and (not keys or keys[-1] != key):
            keys.append(key)
    return tuple(keys[:OPENING])


def texts(habits: Mapping[str, Iterable[Any]]) -> dict[str, frozenset[str]]:
    """Values of habits as texts: numbers, booleans and lists of names."""
    return {name: frozenset(text_of(value) for value in values) for name, values in habits.items()}


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
