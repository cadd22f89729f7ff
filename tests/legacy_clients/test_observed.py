"""A line of the fingerprints' data says what a client did and nothing of the run in which it did it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.legacy_clients.observed import (
    RunIdentity,
    encode,
    fold_repetitions,
    mask_client_id,
    merge,
    observation,
    read,
)

WHOSE = RunIdentity(
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


def test_a_request_that_follows_itself_is_told_once() -> None:
    assert fold_repetitions(["18:3", "3:11", "3:11", "3:11", "1:12", "3:11"]) == [
        "18:3",
        "3:11",
        "1:12",
        "3:11",
    ]


def test_of_the_first_requests_six_are_told_after_folding() -> None:
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
def test_a_client_id_is_shown_without_what_is_of_one_run(client_id: str, shown: str) -> None:
    assert mask_client_id(client_id, WHOSE.names) == shown


def test_versions_are_gathered_from_all_that_tells_of_them() -> None:
    rows = [
        used(3, 9),
        used(1, 12),
        closed(1, highest={"18": 3, "3": 11, "0": 9}, first_requests=["18:4", "18:3"]),
    ]
    seen = observation(WHOSE, rows)
    assert seen.requests == {"0": [9], "1": [12], "3": [9, 11], "18": [3, 4]}
    assert seen.api_versions == 4
    assert list(seen.requests) == ["0", "1", "3", "18"]


def test_a_connection_that_asked_nothing_is_not_told() -> None:
    nothing = {**closed(2), "first_requests": [], "highest": {}}
    assert observation(WHOSE, [closed(1), nothing]).first == [["18:3", "3:11"]]


def test_connections_are_told_once_each_and_in_order_and_so_are_their_habits() -> None:
    first = closed(1, habits={"acks": -1, "protocols": ["range"]}, client_ids=["producer-2"])
    second = closed(
        2,
        first_requests=["10:0"],
        habits={"acks": 1, "protocols": ["range"]},
        client_ids=["producer-1"],
    )
    seen = observation(WHOSE, [second, first, {**first, "connection": "0-abc-3"}])
    assert seen.first == [["10:0"], ["18:3", "3:11"]]
    assert seen.habits == {"acks": [-1, 1], "protocols": [["range"]]}
    assert seen.client_ids == ["producer-{n}"]


def test_who_never_asked_for_versions_has_none() -> None:
    seen = observation(WHOSE, [closed(1, first_requests=["3:0"], highest={"3": 0})])
    assert b"api_versions" not in encode([seen])


def test_a_log_in_is_told_even_where_one_connection_had_none() -> None:
    seen = observation(WHOSE, [closed(1), closed(2, road="handshake-v1", mechanism="PLAIN")])
    assert (seen.road, seen.mechanism) == ("handshake-v1", "PLAIN")


def test_who_logs_in_in_two_ways_has_both_roads() -> None:
    seen = observation(
        WHOSE, [closed(1, road="handshake-v1"), closed(2, road="handshake-v0-bare"), closed(3)]
    )
    assert seen.road == "handshake-v0-bare+handshake-v1"
    assert merge([msgspec.structs.replace(seen, road="handshake-v1"), seen]).road == seen.road
    assert merge([msgspec.structs.replace(seen, road="none")] * 2).road == "none"


def test_one_run_is_of_one_library() -> None:
    with pytest.raises(ValueError, match="differ"):
        observation(
            WHOSE, [closed(1, software="librdkafka"), closed(2, software="apache-kafka-java")]
        )


def test_of_several_runs_all_is_kept_that_was_seen() -> None:
    one = observation(WHOSE, [closed(1, habits={"acks": 1})])
    other = observation(
        WHOSE,
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


def test_runs_of_different_clients_are_not_merged() -> None:
    one = observation(WHOSE, [closed(1)])
    with pytest.raises(ValueError, match="not the same"):
        merge([one, msgspec.structs.replace(one, software="other")])


def test_what_was_written_is_read_again_and_written_the_same(tmp_path: Path) -> None:
    group = observation(
        WHOSE, [closed(1, habits={"acks": -1, "metadata_all": False, "protocols": ["range"]})]
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
