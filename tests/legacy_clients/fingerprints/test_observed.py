"""An observation has what a client did, and nothing specific to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.legacy_clients.fingerprints.observed import (
    RunIdentity,
    encode,
    fold_repetitions,
    mask_client_id,
    merge,
    observation,
    read,
)

RUN = RunIdentity(
    client="java-2.8.2",
    library="java",
    version="2.8.2",
    pinned=None,
    scenario="group",
    names=("group-of-recorded-1f", "recorded-1f"),
)


def closed(number: int, **more: Any) -> dict[str, Any]:
    row = {
        "kind": "connection",
        "event": "closed",
        "connection": f"0-abc-{number}",
        "road": "none",
        "first_requests": ["18:3", "3:11"],
    }
    return row | {"highest": {"18": 3, "3": 11}} | more


def used(api_key: int, version: int) -> dict[str, Any]:
    return {"kind": "usage", "connection": "0-abc-1", "api_key": api_key, "api_version": version}


def test_consecutive_repetitions_of_a_request_are_folded() -> None:
    assert fold_repetitions(["18:3", "3:11", "3:11", "3:11", "1:12", "3:11"]) == [
        "18:3",
        "3:11",
        "1:12",
        "3:11",
    ]


def test_six_first_requests_are_kept_after_folding() -> None:
    assert fold_repetitions(["3:0", "3:0", "1:0", "2:0", "3:0", "1:0", "2:0", "3:0"]) == [
        "3:0",
        "1:0",
        "2:0",
        "3:0",
        "1:0",
        "2:0",
    ]


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [
        ("rdkafka", "rdkafka"),
        ("producer-1", "producer-{n}"),
        ("consumer-group-of-recorded-1f-12", "consumer-{group}-{n}"),
        ("recorded-1f", "{group}"),
        # A version belongs to the library.
        ("kafka-python-2.0.2", "kafka-python-2.0.2"),
        ("aiokafka-0.14.0", "aiokafka-0.14.0"),
        ("member-0B9F6D0E-58a6-4f0e-9f0d-1d2f3a4b5c6d", "member-{n}"),
    ],
)
def test_client_id_is_masked_where_it_is_specific_to_a_run(client_id: str, shown: str) -> None:
    assert mask_client_id(client_id, RUN.names) == shown


def test_versions_are_collected_from_all_rows() -> None:
    rows = [
        used(3, 9),
        used(1, 12),
        closed(1, highest={"18": 3, "3": 11, "0": 9}, first_requests=["18:4", "18:3"]),
    ]
    seen = observation(RUN, rows)
    assert seen.requests == {"0": [9], "1": [12], "3": [9, 11], "18": [3, 4]}
    assert seen.api_versions == 4
    assert list(seen.requests) == ["0", "1", "3", "18"]


def test_connection_without_requests_is_ignored() -> None:
    nothing = {**closed(2), "first_requests": [], "highest": {}}
    assert observation(RUN, [closed(1), nothing]).first == [["18:3", "3:11"]]


def test_connections_and_habits_are_distinct_and_sorted() -> None:
    first = closed(1, habits={"acks": -1, "protocols": ["range"]}, client_ids=["producer-2"])
    second = closed(
        2,
        first_requests=["10:0"],
        habits={"acks": 1, "protocols": ["range"]},
        client_ids=["producer-1"],
    )
    seen = observation(RUN, [second, first, {**first, "connection": "0-abc-3"}])
    assert seen.first == [["10:0"], ["18:3", "3:11"]]
    assert seen.habits == {"acks": [-1, 1], "protocols": [["range"]]}
    assert seen.client_ids == ["producer-{n}"]


def test_recording_without_api_versions_request_omits_its_field() -> None:
    seen = observation(RUN, [closed(1, first_requests=["3:0"], highest={"3": 0})])
    assert b"api_versions" not in encode([seen])


def test_login_of_any_connection_is_recorded() -> None:
    seen = observation(RUN, [closed(1), closed(2, road="handshake-v1", mechanism="PLAIN")])
    assert (seen.road, seen.mechanism) == ("handshake-v1", "PLAIN")


def test_two_login_paths_are_both_recorded() -> None:
    seen = observation(
        RUN, [closed(1, road="handshake-v1"), closed(2, road="handshake-v0-bare"), closed(3)]
    )
    assert seen.road == "handshake-v0-bare+handshake-v1"
    assert merge([msgspec.structs.replace(seen, road="handshake-v1"), seen]).road == seen.road
    assert merge([msgspec.structs.replace(seen, road="none")] * 2).road == "none"


def test_connections_with_different_libraries_are_rejected() -> None:
    with pytest.raises(ValueError, match="differ"):
        observation(
            RUN, [closed(1, software="librdkafka"), closed(2, software="apache-kafka-java")]
        )


def test_merge_keeps_everything_observed() -> None:
    one = observation(RUN, [closed(1, habits={"acks": 1})])
    other = observation(
        RUN,
        [
            closed(
                1,
                first_requests=["3:11"],
                highest={"3": 11, "12": 4, "18": 3},
                habits={"metadata_all": True},
            )
        ],
    )
    both = merge([one, other])
    assert both == merge([other, one]) == merge([both, both])
    assert both.requests == {"3": [11], "12": [4], "18": [3]}
    assert both.habits == {"acks": [1], "metadata_all": [True]}
    assert both.first == [["18:3", "3:11"], ["3:11"]]


def test_merge_of_different_clients_is_rejected() -> None:
    one = observation(RUN, [closed(1)])
    with pytest.raises(ValueError, match="runs differ"):
        merge([one, msgspec.structs.replace(one, software="other")])


def test_written_observations_can_be_read_and_written_identically(tmp_path: Path) -> None:
    group = observation(
        RUN, [closed(1, habits={"acks": -1, "metadata_all": False, "protocols": ["range"]})]
    )
    consume = msgspec.structs.replace(group, scenario="consume")
    file = tmp_path / "observed.jsonl"
    assert read(file) == {}
    file.write_bytes(encode([group, consume]))
    assert read(file) == {("java-2.8.2", "consume"): consume, ("java-2.8.2", "group"): group}
    assert encode(read(file).values()) == file.read_bytes()
    assert [msgspec.json.decode(line)["scenario"] for line in file.read_bytes().splitlines()] == [
        "consume",
        "group",
    ]
