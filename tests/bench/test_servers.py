"""The servers of the benchmarks start with the flags that the benchmarks use."""

from __future__ import annotations

import pytest

from bench.servers import COLLECTORS, KafkaServer


@pytest.mark.peer
@pytest.mark.parametrize("collector", COLLECTORS)
def test_kafka_starts_with_each_garbage_collector(collector: str) -> None:
    server = KafkaServer.start(collector)
    try:
        assert server.cpu_seconds() > 0
    finally:
        server.stop()
