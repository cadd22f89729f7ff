"""The recorded observations are complete, separate from the test data, and still true for real
clients.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.legacy_clients.clients import Client, table
from tests.legacy_clients.fingerprints import verdicts
from tests.legacy_clients.fingerprints.observed import encode, merge, read
from tests.legacy_clients.fingerprints.record import (
    CLIENTS,
    HERE,
    OBSERVED,
    ROOT,
    TrafficLogWatch,
    pinned_options,
    record_with_retry,
    watch_gateway,
)
from tests.legacy_clients.fingerprints.scenarios import scenarios_of

UNSEEN = HERE / "unseen.toml"
TEST_DATA = ROOT / "tests" / "compat" / "fingerprint"
VERDICTS = TEST_DATA / "kafka-4.jsonl"


def expected(*tables: Path) -> set[tuple[str, str]]:
    return {
        (row.name, scenario)
        for file in tables
        for row in table(file).values()
        for scenario in scenarios_of(row)
    }


def test_every_client_is_recorded_in_every_scenario() -> None:
    assert expected(CLIENTS) <= set(read(OBSERVED))


def test_test_data_is_complete_and_not_in_the_training_data() -> None:
    seen, unseen = read(OBSERVED), read(TEST_DATA / "unseen.jsonl")
    assert set(unseen) == expected(UNSEEN)
    libraries = {(one.library, one.version) for one in seen.values()}
    assert not {(one.library, one.version) for one in unseen.values()} & libraries


def test_every_client_has_a_verdict_in_every_scenario() -> None:
    given = verdicts.read(VERDICTS)
    assert set(given) >= expected(CLIENTS, UNSEEN)
    assert verdicts.encode(given.values()) == VERDICTS.read_bytes()


def test_requests_below_the_targets_minimums_predict_the_verdicts() -> None:
    minimums = tomllib.loads((ROOT / "reports" / "targets" / "kafka-4.x.toml").read_text())[
        "minimums"
    ]
    given = verdicts.read(VERDICTS)
    wrong = {}
    for key, one in (read(OBSERVED) | read(TEST_DATA / "unseen.jsonl")).items():
        refused = {
            api: low for api, (low, *_) in one.requests.items() if low < minimums.get(api, 0)
        }
        if key in given and given[key].works == bool(refused):
            wrong[key] = refused
    assert not wrong


@pytest.mark.parametrize("file", [OBSERVED, TEST_DATA / "unseen.jsonl"])
def test_recorded_data_is_sorted(file: Path) -> None:
    assert encode(read(file).values()) == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "expected_options"),
    [
        ("java-2.8.2", None),
        ("kafka-python-2.0.2-as-0.9", "--api-version 0.9"),
        (
            "confluent-1.0.0-as-0.9",
            "--config api.version.request=false,broker.version.fallback=0.9.0",
        ),
        ("sarama-1.19.0-as-2.0.0", "--version 2.0.0"),
        ("franz-go-1.22.2-as-0.10", "--max-version v0.10.0"),
    ],
)
def test_pinned_protocol_versions_are_found_in_the_options(
    name: str, expected_options: str | None
) -> None:
    assert pinned_options(table()[name]) == expected_options


def test_client_id_option_does_not_pin_versions() -> None:
    assert (
        pinned_options(
            msgspec.structs.replace(table()["java-2.8.2"], options=("--client-id", "billing"))
        )
        is None
    )


@pytest.fixture(scope="module")
def watch(is_reference: bool) -> Iterator[TrafficLogWatch]:
    if is_reference:
        pytest.skip("Kafka has no such log")
    with watch_gateway() as running:
        yield running


@pytest.mark.peer
@pytest.mark.parametrize("scenario", ["produce", "beginning", "group-sasl"])
@pytest.mark.parametrize("name", ["java-0.10.2.2", "aiokafka-0.14.0"])
def test_real_client_matches_its_recorded_observation(
    name: str, scenario: str, watch: TrafficLogWatch, client: Callable[[str], Client]
) -> None:
    known = read(OBSERVED)[name, scenario]
    seen = record_with_retry(client(name), scenario, watch)
    both = merge([known, seen])
    # Which connection sends the first request varies; everything else is constant.
    assert msgspec.structs.replace(both, first=known.first) == known
    assert {one[0] for one in seen.first} == {one[0] for one in known.first}
