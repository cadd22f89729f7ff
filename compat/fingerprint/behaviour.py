"""The behaviour of a client, as recorded in the traffic log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

API_VERSIONS = 18
NOT_SENT = -1
"""Pseudo version: the client sent no ApiVersions request."""
SASL_REQUESTS = (17, 36)
"""SaslHandshake and SaslAuthenticate. Whether a client sends them depends on the listener."""
OPENING_REQUESTS = 4
"""Number of first requests that identify a library; later ones depend on the application."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one client did.

    `requests` holds the versions sent, by api key. `openings` holds the api keys of the first
    requests of its connections, without consecutive repetitions. `habits` holds observed values of
    request fields as text, by name. `client_id_library` is the library whose default client id the
    client uses. `is_complete` is false for a single connection: the client may have sent
    ApiVersions on another one.
    """

    requests: Mapping[int, frozenset[int]]
    openings: frozenset[tuple[int, ...]] = frozenset()
    habits: Mapping[str, frozenset[str]] = field(default_factory=dict)
    client_id_library: str | None = None
    is_complete: bool = True

    @property
    def highest(self) -> dict[int, int]:
        """Highest version by api key. NOT_SENT for ApiVersions if a complete client sent none."""
        sent = {key: max(versions) for key, versions in self.requests.items() if versions}
        return {API_VERSIONS: NOT_SENT} | sent if self.is_complete else sent


def opening(first_requests: Iterable[str]) -> tuple[int, ...]:
    """Parse the `first_requests` of a connection row ("key:version").

    SASL requests and consecutive repetitions are left out. Raises ValueError for other input.
    """
    keys: list[int] = []
    for request in first_requests:
        key = int(request.partition(":")[0])
        if key not in SASL_REQUESTS and (not keys or keys[-1] != key):
            keys.append(key)
    return tuple(keys[:OPENING_REQUESTS])


def habit_texts(habits: Mapping[str, Iterable[Any]]) -> dict[str, frozenset[str]]:
    """Convert habit values (numbers, booleans, lists of names) to text."""
    return {
        name: frozenset(habit_text(value) for value in values) for name, values in habits.items()
    }


def habit_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
