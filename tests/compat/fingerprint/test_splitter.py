"""Splitting of recorded connections: one client stays one, clients with different request versions
are split.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import pytest

from compat.fingerprint.behaviour import API_VERSIONS, Behaviour
from compat.fingerprint.matcher import identify
from compat.fingerprint.splitter import NOT_COMPARED, InferredClient, NamedClient, Splitter
from compat.fingerprint.table import build_table, read_runs, version_numbers
from tests.compat.fingerprint.connections import client_ids, connections_of, rows, told_apart

PRODUCE, FETCH, METADATA = 0, 1, 3
TABLE = build_table(read_runs())
ROWS = rows()
NAMELESS = [row for row in ROWS if not row.get("software")]


@pytest.fixture(scope="module")
def splitter():
    return Splitter(TABLE)


def name_of(row):
    return row["client"], row["scenario"]


def connection(**sent):
    """A connection with, for example, `produce=2` or `metadata=(0, 1)`."""
    keys = {"produce": PRODUCE, "fetch": FETCH, "metadata": METADATA, "asks": API_VERSIONS}
    requests = {
        keys[name]: frozenset([versions] if isinstance(versions, int) else versions)
        for name, versions in sent.items()
    }
    return Behaviour(requests, is_complete=False)


def highest(row):
    return {
        int(key): max(versions)
        for key, versions in row["requests"].items()
        if int(key) not in NOT_COMPARED
    }


def differ(one, other):
    """Whether both send a common request in different versions."""
    first, second = highest(one), highest(other)
    return any(first[key] != second[key] for key in first.keys() & second.keys())


@pytest.mark.long
@pytest.mark.parametrize(
    "has_own_ids", [True, False], ids=["own client ids", "client ids of applications"]
)
def test_connections_of_one_recorded_client_stay_together(splitter, has_own_ids):
    split = {}
    for row in ROWS:
        connections, named = told_apart(row)
        clients = splitter.split(
            connections, named, TABLE.client_id_library(client_ids(row)) if has_own_ids else None
        )
        if len(clients) != 1:
            split[name_of(row)] = clients
    assert split == {}


def test_connections_of_an_unrecorded_version_stay_together():
    chosen = Random(7).sample(sorted({(row["library"], row["version"]) for row in NAMELESS}), 12)
    runs = read_runs()
    split = {}
    for library, version in chosen:
        splitter = Splitter(
            build_table(run for run in runs if (run.library, run.version) != (library, version))
        )
        for row in NAMELESS:
            if (row["library"], row["version"]) == (library, version):
                clients = splitter.split(connections_of(row), client_id_library=library)
                if len(clients) != 1:
                    split[name_of(row)] = clients
    assert split == {}


PAIRS = [
    (one, other)
    for one, other in itertools.combinations([row for row in NAMELESS if "pinned" not in row], 2)
    if one["library"] == other["library"]
    and one["scenario"] == other["scenario"]
    and one["scenario"] in ("produce", "group")
]


@pytest.mark.parametrize("library", ["librdkafka", "java", "kafkajs", "sarama"])
def test_two_versions_with_default_client_id_are_split_and_ranges_contain_them(splitter, library):
    """Connections that both clients open in the same way may be assigned to either."""
    pairs = [pair for pair in PAIRS if pair[0]["library"] == library and differ(*pair)]
    assert len(pairs) > 3
    wrong = {}
    for one, other in Random(3).sample(pairs, min(15, len(pairs))):
        connections = [*connections_of(one), *connections_of(other)]
        clients = splitter.split(connections, client_id_library=library)
        found = sorted(
            range_of([connections[index] for index in client.connections], library)
            for client in clients
        )
        wanted = sorted(version_numbers(row["version"]) for row in (one, other))
        is_right = len(found) == 2 and all(
            low <= version <= high for (low, high), version in zip(found, wanted, strict=True)
        )
        if not is_right:
            wrong[name_of(one), name_of(other)] = found
    assert wrong == {}


def range_of(connections, library):
    requests = {
        key: frozenset().union(*(one.requests.get(key, ()) for one in connections))
        for one in connections
        for key in one.requests
    }
    verdict = identify(
        replace(
            Behaviour(requests, frozenset().union(*(one.openings for one in connections))),
            client_id_library=library,
        ),
        TABLE,
    )
    assert verdict.library == library
    return version_numbers(verdict.version_low), version_numbers(verdict.version_high or "9999")


def test_clients_with_equal_requests_are_not_split(splitter):
    same = connection(produce=2, metadata=1, asks=0)
    assert splitter.split([same, same], client_id_library="librdkafka") == [
        InferredClient(None, (0, 1))
    ]


def test_unnamed_connection_joins_named_client_of_matching_version(
    splitter,
):
    """franz-go sends ApiVersions only on its first connection to a broker."""
    row = next(
        row for row in ROWS if row["client"] == "franz-go-1.14.0" and row["scenario"] == "group"
    )
    connections, named = told_apart(row)
    assert connections
    older = connection(fetch=4, metadata=1)
    clients = splitter.split([*connections, older], named, "franz-go")
    assert clients == [
        InferredClient(0, tuple(range(len(connections)))),
        InferredClient(None, (len(connections),)),
    ]


def test_clients_with_different_names_are_always_split(splitter):
    sent = {PRODUCE: frozenset([9])}
    names = [NamedClient("librdkafka", "1.6.1", sent), NamedClient("librdkafka", "2.3.0", sent)]
    assert splitter.split([], names, "librdkafka") == [InferredClient(0, ()), InferredClient(1, ())]


def test_unrecorded_library_is_split_only_by_different_versions_of_a_request(
    splitter,
):
    strange = [connection(produce=90), connection(fetch=90, metadata=80), connection(metadata=80)]
    assert len(splitter.split(strange)) == 1
    assert len(splitter.split([*strange, connection(produce=95)])) == 2
    named = [NamedClient("strange", None, {METADATA: frozenset([80])})]
    assert splitter.split([connection(metadata=80), connection(metadata=95)], named) == [
        InferredClient(0, (0,)),
        InferredClient(None, (1,)),
    ]
