"""The servers of the benchmarks start with the arguments that the benchmarks use."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.servers import (
    COLLECTORS,
    BenchCluster,
    BenchGateway,
    KafkaServer,
    in_turn,
    is_balanced,
    running,
)

#: A gateway that is ready at an address that no other one has.
OTHER_SOURCES = """
import time
print("ready listeners=PLAINTEXT://127.0.0.1:1 ", flush=True)
time.sleep(600)
"""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("collector", COLLECTORS)
def test_kafka_starts_with_each_garbage_collector(
    collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The options of tests with real peers choose one.
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    server = KafkaServer.start(collector)
    try:
        assert server.cpu_seconds() > 0
    finally:
        server.stop()


def test_the_gateway_of_another_checkout_runs_its_sources_and_is_named_after_its_folder(
    tmp_path: Path,
) -> None:
    checkout = tmp_path / "older"
    (checkout / "gateway").mkdir(parents=True)
    (checkout / "gateway" / "__init__.py").touch()
    (checkout / "gateway" / "__main__.py").write_text(OTHER_SOURCES)
    server = BenchGateway.start(subprocess.DEVNULL, checkout=checkout)
    try:
        assert (server.name, server.bootstrap) == ("kopgate in older", "127.0.0.1:1")
    finally:
        server.stop()


def test_clusters_are_named_after_their_size_and_checkout() -> None:
    assert BenchCluster.name_of(1) == "1 gateway on Pulsar"
    assert BenchCluster.name_of(3, Path("/src/older")) == "3 gateways in older on Pulsar"


def test_first_side_changes_every_round_and_each_has_every_place_once() -> None:
    assert ["".join(in_turn("ab", number)) for number in range(3)] == ["ab", "ba", "ab"]
    assert ["".join(in_turn("abc", number)) for number in range(4)] == ["abc", "bca", "cab", "abc"]


class Recorded:
    """A server whose starts and stops are recorded."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self._events = events
        events.append(f"{name} starts")

    def stop(self) -> None:
        self._events.append(f"{self.name} stops")


def test_all_servers_are_stopped_if_a_start_fails() -> None:
    events: list[str] = []

    def fail() -> Recorded:
        raise RuntimeError("the gateway did not start")

    with (
        pytest.raises(RuntimeError),
        running([lambda: Recorded("a", events), lambda: Recorded("b", events), fail]),
    ):
        events.append("measured")
    assert events == ["a starts", "b starts", "b stops", "a stops"]


def test_shards_are_balanced_if_each_node_leads_the_same_number_or_one_more() -> None:
    assert is_balanced(Counter({1: 11, 2: 11, 3: 10}), 3)
    assert is_balanced(Counter({1: 32}), 1)
    assert not is_balanced(Counter({1: 12, 2: 10, 3: 10}), 3)
    assert not is_balanced(Counter({1: 16, 2: 16}), 3)
    assert not is_balanced(Counter(), 1)
