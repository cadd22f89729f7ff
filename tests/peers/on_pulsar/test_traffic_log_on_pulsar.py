"""The traffic topic on a real Pulsar has the rows of the files, except those lost in an outage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from gateway.topics.topic_names import TRAFFIC_TOPIC
from tests.peers.on_pulsar.pulsar_gateway import bootstrap, gateway_on
from tests.testkit.gateway import GatewayProcess, Peer, Stopwatch, one_record
from tests.testkit.pulsar import Pulsar
from tests.testkit.traffic_rows import Row, read_rows, wait_for_rows

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

TOPIC = "orders"
SEND_TIMEOUT_MS = 15_000
#: Limit of a request that does not need Pulsar.
AT_ONCE_SECONDS = 2.0
RECOVER_SECONDS = 300.0


@pytest.fixture
def settings(restartable_pulsar: Pulsar) -> Any:
    return restartable_pulsar.tenant().settings()


def options_for(log: Path) -> list[str]:
    return ["--traffic-log", str(log), "--traffic-topic", "--set", "traffic_log_interval_ms=1000"]


def produce(peer: Peer) -> int:
    return int(peer.produce(TOPIC, one_record(b"v")).error_code)


def in_topic(
    running: GatewayProcess, seconds: float = 240.0, after: float | None = None
) -> list[Row]:
    """The rows of the topic up to its end, up to the first with a higher number than `after`, or
    until none arrives for `seconds`.
    """
    consumer = KafkaConsumer(
        TRAFFIC_TOPIC,
        bootstrap_servers=bootstrap(running),
        auto_offset_reset="earliest",
        consumer_timeout_ms=seconds * 1000,
    )
    try:
        place = TopicPartition(TRAFFIC_TOPIC, 0)
        end = consumer.end_offsets([place])[place]
        rows: list[Row] = []
        for record in consumer:
            rows.append(msgspec.json.decode(record.value))
            if rows[-1]["sequence"] > after if after is not None else record.offset + 1 >= end:
                break
        return rows
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "entry_format", ["mixed_kafka", pytest.param("pulsar", marks=pytest.mark.slow)]
)
def test_traffic_topic_has_the_rows_of_the_files_of_all_gateways(
    settings: Any, tmp_path: Path, entry_format: str
) -> None:
    log = tmp_path / "traffic"
    stored: list[int] = []
    for _ in range(2):
        before = len(read_rows(log))
        with gateway_on(
            settings, tmp_path, *options_for(log), "--set", f"entry_format={entry_format}"
        ) as running:
            with running.peer() as peer:
                peer.create_topic(TOPIC)
                assert produce(peer) == 0
            assert _closed(log, before)
            stored.append(len(read_rows(log)) - before)
            _waits_for_the_topic(running, before + stored[-1])
            assert running.stop() == 0
    processes: dict[str, list[Row]] = {}
    for row in read_rows(log):
        processes.setdefault(_process_of(row), []).append(row)
    assert len(processes) == 2
    with gateway_on(settings, tmp_path) as running:
        found = in_topic(running)
        assert running.stop() == 0
    # A shutdown leaves little time: the last rows of each process may be missing.
    for rows, least in zip(processes.values(), stored, strict=True):
        mine = [row for row in found if _process_of(row) == _process_of(rows[0])]
        assert mine == rows[: len(mine)]
        assert len(mine) >= least
    assert {_process_of(row) for row in found} == processes.keys()


@pytest.mark.parametrize("how", ["paused", pytest.param("killed", marks=pytest.mark.slow)])
def test_outage_of_pulsar_drops_only_traffic_topic_rows_and_is_logged(
    restartable_pulsar: Pulsar, settings: Any, tmp_path: Path, how: str
) -> None:
    log = tmp_path / "traffic"
    with gateway_on(
        settings, tmp_path, *options_for(log), "--set", f"pulsar_send_timeout_ms={SEND_TIMEOUT_MS}"
    ) as running:
        with running.peer() as peer:
            peer.create_topic(TOPIC)
            assert produce(peer) == 0
        assert wait_for_rows(log, lambda row: row.get("topic") == TOPIC)
        _waits_for_the_topic(running)
        restartable_pulsar.kill() if how == "killed" else restartable_pulsar.pause()
        try:
            _asks_until(
                running,
                lambda: any(
                    "traffic rows dropped" in line and TRAFFIC_TOPIC in line
                    for line in running.lines()
                ),
            )
            during = read_rows(log)[-1]["sequence"]
        finally:
            restartable_pulsar.serve()
        _serves_again(running)
        assert in_topic(running, RECOVER_SECONDS, during)[-1]["sequence"] > during
        assert running.stop() == 0
    written = read_rows(log)
    assert [row["sequence"] for row in written] == list(range(len(written)))
    with gateway_on(settings, tmp_path) as running:
        found = in_topic(running)
        assert running.stop() == 0
    numbers = [row["sequence"] for row in found]
    assert numbers == sorted(set(numbers))
    assert found == [written[number] for number in numbers]
    assert numbers[0] == 0
    assert numbers[-1] > during
    # Rows whose send timed out may have been stored.
    assert len(numbers) <= len(written)


def _process_of(row: Row) -> str:
    return str(row["connection"].split("-")[1])


def _closed(log: Path, before: int) -> bool:
    """Wait for a row that ends a connection, after the first `before` rows."""
    end = time.monotonic() + RECOVER_SECONDS
    while time.monotonic() < end:
        if any(row.get("event") == "closed" for row in read_rows(log)[before:]):
            return True
        time.sleep(0.05)
    return False


def _waits_for_the_topic(running: GatewayProcess, rows: int = 1) -> None:
    """Wait until the topic has this many rows; files have rows long before the topic is created."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap(running))
    try:
        end, place = time.monotonic() + RECOVER_SECONDS, TopicPartition(TRAFFIC_TOPIC, 0)
        while (
            not consumer.partitions_for_topic(TRAFFIC_TOPIC)
            or consumer.end_offsets([place])[place] < rows
        ):
            assert time.monotonic() < end, "\n".join(running.lines())
            time.sleep(0.1)
    finally:
        consumer.close()


def _asks_until(running: GatewayProcess, is_enough: Any) -> None:
    """Connect repeatedly, each time served at once, until it is so."""
    end = time.monotonic() + RECOVER_SECONDS
    while not is_enough():
        assert time.monotonic() < end, "\n".join(running.lines())
        watch = Stopwatch(running)
        with running.peer() as peer:
            assert peer.request(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
        assert watch.seconds() < AT_ONCE_SECONDS
        time.sleep(0.2)


def _serves_again(running: GatewayProcess) -> None:
    end = time.monotonic() + RECOVER_SECONDS
    while True:
        with running.peer() as peer:
            if produce(peer) == 0:
                return
        assert time.monotonic() < end, "\n".join(running.lines())
        time.sleep(0.5)
