"""Reconstructs single connections from recorded runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from compat.fingerprint.behaviour import API_VERSIONS, Behaviour, opening
from compat.fingerprint.splitter import NamedClient
from compat.fingerprint.table import OBSERVED
from tests.compat.fingerprint.evaluation import UNSEEN

NAMES_ITSELF = 3
"""The lowest ApiVersions version that contains the client's name."""
Row = Mapping[str, Any]


def rows() -> list[Row]:
    """All lines of the recordings, unparsed."""
    return [
        json.loads(line)
        for path in (OBSERVED, UNSEEN)
        for line in path.read_text("utf-8").splitlines()
    ]


def connections_of(row: Row) -> list[Behaviour]:
    """One connection per recorded opening.

    Later requests are assigned to the first connection that sends such requests, or to the longest
    one.
    """
    ways: list[tuple[list[str], dict[int, set[int]]]] = []
    for first in row["first"]:
        sent: dict[int, set[int]] = defaultdict(set)
        for request in first:
            key, version = map(int, request.split(":"))
            sent[key].add(version)
        ways.append((first, sent))
    for name, versions in row["requests"].items():
        key = int(name)
        for version in versions:
            if not any(version in sent.get(key, ()) for _, sent in ways):
                of_it = [sent for _, sent in ways if key in sent] or [
                    max(ways, key=lambda way: len(way[0]))[1]
                ]
                of_it[0][key].add(version)
    return [
        Behaviour(
            {key: frozenset(versions) for key, versions in sent.items()},
            frozenset([opening(first)]),
            is_complete=False,
        )
        for first, sent in ways
    ]


def told_apart(row: Row) -> tuple[list[Behaviour], list[NamedClient]]:
    """Return the connections without a name, and the client that sends its name on the others."""
    connections = connections_of(row)
    if not row.get("software"):
        return connections, []
    named = [
        one for one in connections if max(one.requests.get(API_VERSIONS, {-1})) >= NAMES_ITSELF
    ]
    requests: dict[int, frozenset[int]] = {}
    for one in named:
        for key, versions in one.requests.items():
            requests[key] = requests.get(key, frozenset()) | versions
    return [one for one in connections if one not in named], [
        NamedClient(row["library"], row["version"], requests)
    ]


def client_ids(row: Row) -> list[str]:
    return [
        name.replace("{n}", "1").replace("{group}", "billing") for name in row.get("client_ids", ())
    ]
