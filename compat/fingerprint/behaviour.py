"""What a client did, as the traffic log tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

API_VERSIONS = 18
NOT_SENT = -1
"""As a version of ApiVersions."""
SASL_REQUESTS = (17, 36)
"""SaslHandshake and SaslAuthenticate: whether they are there is the listener's doing."""
OPENING_REQUESTS = 4
"""Requests that a connection is told by; those after them are the application's."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`requests` has the versions that were sent, by api key; `openings` the api keys with which connections began, repetitions folded; `habits` the
    values that were seen, by name, as text; `client_id_library` the library whose own client ids it uses.

    `is_complete` is false for a single connection: a client that asks for ApiVersions may do so on another one.
    """

    requests: Mapping[int, frozenset[int]]
    openings: frozenset[tuple[int, ...]] = frozenset()
    habits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    client_id_library: str | None = None
    is_complete: bool = True

    @property
    def highest(self) -> dict[int, int]:
        """By api key; of ApiVersions NEVER_ASKED where a whole client sent none."""
        sent = {key: max(versions) for key, versions in self.requests.items() if versions}
        return {API_VERSIONS: NOT_SENT} | sent if self.is_complete else sent


def opening(first_requests: Iterable[str]) -> tuple[int, ...]:
    """From `first_requests` of a connection's row ("key:version"): the log-in left out, repetitions folded. Raises ValueError for anything else."""
    keys: list[int] = []
    for request in first_requests:
        key = int(request.partition(":")[0])
        if key not in SASL_REQUESTS and (not keys or keys[-1] != key):
            keys.append(key)
    return tuple(keys[:OPENING_REQUESTS])


def habit_texts(habits: Mapping[str, Iterable[Any]]) -> dict[str, frozenset[str]]:
    """Values of habits as texts: numbers, booleans and lists of names."""
    return {
        name: frozenset(habit_text(value) for value in values) for name, values in habits.items()
    }


def habit_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
