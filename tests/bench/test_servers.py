"""The servers of the benchmarks start with the arguments that the benchmarks use."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.servers import COLLECTORS, BenchGateway, KafkaServer, is_balanced

CHECKOUT = Path(__file__).parents[2]


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


@pytest.mark.long
def test_the_gateway_of_another_checkout_is_named_after_its_folder() -> None:
    server = BenchGateway.start(subprocess.DEVNULL, checkout=CHECKOUT)
    try:
        assert server.name == f"kopgate in {CHECKOUT.name}"
    finally:
        server.stop()


def test_shards_are_balanced_if_each_node_leads_the_same_number_or_one_more() -> None:
    assert is_balanced(Counter({1: 11, 2: 11, 3: 10}), 3)
    assert is_balanced(Counter({1: 32}), 1)
    assert not is_balanced(Counter({1: 12, 2: 10, 3: 10}), 3)
    assert not is_balanced(Counter({1: 16, 2: 16}), 3)
    assert not is_balanced(Counter(), 1)
