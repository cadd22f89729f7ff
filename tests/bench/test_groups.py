"""The member program against a gateway, and the table of its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.clients import ClientFailed
from bench.groups import (
    STEP_SECONDS,
    SYNCED_KAFKA,
    GroupLoad,
    GroupsResult,
    LatencySummary,
    MemberProgram,
    measure,
    measure_in_turns,
    parse,
    server_starts,
    table,
)
from bench.servers import BenchCluster, BenchGateway, KafkaServer
from gateway.settings.model import Settings
from tests.legacy_clients.brokers import are_required
from tests.testkit.cache import CannotInstall
from tests.testkit.tenant import Tenant

LOAD = GroupLoad(groups=3, members=2, partitions=4, seconds=6, warm_up_seconds=0)


@pytest.mark.peer
def test_members_join_once_and_send_at_their_intervals() -> None:
    server = BenchGateway.start()
    try:
        found = measure(server, LOAD, lambda line: None)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    finally:
        server.stop()
    assert found.rejoined == 0
    # In six seconds a member sends two heartbeats and one or two commits. On a busy machine the
    # measurement can take longer, and a request can fall just outside it.
    assert LOAD.all_members <= found.heartbeat.count <= 4 * LOAD.all_members
    assert LOAD.all_members / 2 <= found.commit.count <= 3 * LOAD.all_members
    assert found.connected_seconds > 0
    # group.initial.rebalance.delay.ms of a new group.
    assert found.joined_seconds > Settings().group_initial_rebalance_delay_ms / 1000 - 0.1
    assert 0 < found.commit.p50 <= found.commit.p99 <= found.commit.max


@pytest.mark.peer
@pytest.mark.slow
def test_members_of_each_group_connect_to_their_coordinator(pulsar: Tenant) -> None:
    load = GroupLoad(groups=8, members=2, partitions=4, seconds=6, warm_up_seconds=0)
    server = BenchCluster.start(pulsar, 2)
    try:
        found = measure(server, load, lambda line: None)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    finally:
        server.stop()
    assert found.server == "2 gateways on Pulsar"
    # A gateway refuses the members of groups that it does not coordinate; they would not join.
    assert found.rejoined == 0
    assert load.all_members <= found.heartbeat.count


@pytest.mark.peer
def test_members_fail_without_a_server() -> None:
    try:
        members = MemberProgram("127.0.0.1:1", LOAD)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with members:
        members.start_step()
        with pytest.raises(ClientFailed, match="the members exited with 1"):
            members.read_line(STEP_SECONDS)


def test_memory_per_member_is_shown_for_the_gateway_only() -> None:
    took = LatencySummary(10, 0.25, 3.04, 17.6)
    ours, kafka = (
        GroupsResult(
            name, 1.0, 4.26, took, took, 0.5, 0.1, took, 0, 10 * 1024, 22 * 1024, 40 * 1024
        )
        for name in (BenchGateway.name, "Kafka 3.9.2")
    )
    assert table([ours, kafka], LOAD).splitlines()[2:] == [
        "| kopgate | 0.2 / 3.0 / 18 | 0.2 / 3.0 / 18 | 0.50 | 1.0 s | 4.3 s | 5.0, 2.0 for the "
        "connection |",
        "| Kafka 3.9.2 | 0.2 / 3.0 / 18 | 0.2 / 3.0 / 18 | 0.50 | 1.0 s | 4.3 s | - |",
    ]


def test_cores_of_pulsar_are_shown_beside_those_of_the_gateways() -> None:
    took = LatencySummary(10, 0.25, 3.04, 17.6)
    found = GroupsResult(
        "3 gateways on Pulsar", 1.0, 4.26, took, took, 0.5, 0.1, took, 0, 0, 0, 0, 0.625
    )
    assert "| 0.50, Pulsar 0.62 |" in table([found], LOAD)


def test_load_description_has_request_rates() -> None:
    assert str(GroupLoad(1000, 4, 8, 60)).endswith(
        "; 1,333 heartbeats and 800 commits per second for 60 s"
    )


def result(server: str, p99: float, cores: float = 0.5, end_bytes: int = 0) -> GroupsResult:
    took = LatencySummary(10, 0.2, p99, 17.6)
    return GroupsResult(server, 1.0, 4.3, took, took, cores, 0.1, took, 0, 0, 0, end_bytes)


def test_table_has_medians_and_ranges_over_the_rounds() -> None:
    kib = LOAD.all_members * 1024
    rounds = [
        result("kopgate", 3.0, 0.5, 9 * kib),
        result("kopgate in older", 8.0),
        result("kopgate in older", 6.0),
        result("kopgate", 2.0, 0.7, 8 * kib),
        result("kopgate", 7.0, 0.4, 6 * kib),
        result("kopgate in older", 7.0),
    ]
    ours, older = table(rounds, LOAD).splitlines()[2:]
    latency = "0.2 (0.2-0.2) / 3.0 (2.0-7.0) / 18 (18-18)"
    assert ours == (
        f"| kopgate | {latency} | {latency} | 0.50 (0.40-0.70) | 1.0 (1.0-1.0) s | 4.3 (4.3-4.3) s "
        "| 8.0 (6.0-9.0), 0.0 (0.0-0.0) for the connection |"
    )
    assert older.startswith("| kopgate in older | 0.2 (0.2-0.2) / 7.0 (6.0-8.0) / 18 (18-18) |")


class OneAtATime:
    """A server that must be the only one."""

    bootstrap = "127.0.0.1:1"
    running: str | None = None

    def __init__(self, name: str) -> None:
        assert OneAtATime.running is None
        OneAtATime.running = self.name = name

    def stop(self) -> None:
        assert OneAtATime.running == self.name
        OneAtATime.running = None

    def cpu_seconds(self) -> float:
        return 0.0

    def memory_bytes(self) -> int:
        return 0

    def own_memory_bytes(self) -> int:
        return 0


STARTS: dict[str, Callable[[], OneAtATime]] = {
    name: partial(OneAtATime, name) for name in ("a", "b", "c")
}


def test_servers_take_turns_and_run_one_at_a_time() -> None:
    said: list[str] = []
    found = measure_in_turns(STARTS, 2, lambda server: result(server.name, 1.0), said.append)
    assert [one.server for one in found] == ["a", "b", "c", "b", "c", "a"]
    assert said[2:4] == ["round 1, c", "round 2, b"]
    assert OneAtATime.running is None


def test_server_is_stopped_if_its_measurement_fails() -> None:
    def fail(_: object) -> GroupsResult:
        raise ClientFailed("the members exited with 1")

    with pytest.raises(ClientFailed):
        measure_in_turns(STARTS, 1, fail, lambda _: None)
    assert OneAtATime.running is None


def test_other_checkout_is_measured_between_this_one_and_kafka(tmp_path: Path) -> None:
    (tmp_path / "older" / "gateway").mkdir(parents=True)
    (tmp_path / "older" / "gateway" / "__init__.py").touch()
    options = parse(["--kafka", "--beside", str(tmp_path / "older")])
    kafka = [KafkaServer.name, SYNCED_KAFKA]
    assert [*server_starts(options, None)] == ["kopgate", "kopgate in older", *kafka]
    assert [*server_starts(parse(["--kafka"]), None)] == ["kopgate", *kafka]
    clusters = parse(["--gateways", "1", "3", "--beside", str(tmp_path / "older")])
    pulsar: Any = object()
    assert [*server_starts(clusters, pulsar)] == [
        "1 gateway on Pulsar",
        "1 gateway in older on Pulsar",
        "3 gateways on Pulsar",
        "3 gateways in older on Pulsar",
    ]
