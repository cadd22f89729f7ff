"""The order of the steps, and the end of the warm-up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import clients
from bench.servers import BenchGateway
from bench.steps import PACED, RoundLoad, WarmUpLimits, plan, repeat_until_stable, warm_up
from tests.legacy_clients.brokers import are_required
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall


class Idle:
    """A server that receives no requests."""

    bootstrap = "127.0.0.1:1"

    def __init__(self, name: str) -> None:
        self.name = name

    def cpu_seconds(self) -> float:
        return 0.0

    def memory_bytes(self) -> int:
        return 0

    def stop(self) -> None:
        pass


def names(rounds: int, *codecs: str, partitions: tuple[int, ...] = (1, 6)) -> list[str]:
    return [
        step.name
        for step in plan([Idle("a"), Idle("b")], rounds, RoundLoad(100, codecs, partitions))
    ]


def test_each_step_runs_on_both_servers_in_turn() -> None:
    assert names(1, "lz4") == [
        "produce, 1 partition, lz4, a",
        "produce, 1 partition, lz4, b",
        "produce, 6 partitions, lz4, a",
        "produce, 6 partitions, lz4, b",
        "produce, 1 partition, both sync, lz4, a",
        "produce, 1 partition, both sync, lz4, b",
        "fetch, as stored, lz4, a",
        "fetch, as stored, lz4, b",
        "fetch, to format 1, lz4, a",
        "fetch, to format 1, lz4, b",
        "fetch, to format 0, lz4, a",
        "fetch, to format 0, lz4, b",
        f"{PACED}, none, a",
        f"{PACED}, none, b",
        f"{PACED}, both sync, none, a",
        f"{PACED}, both sync, none, b",
    ]


def test_small_batches_are_sent_before_full_ones_or_alone() -> None:
    load = RoundLoad(100, ("none",), (6,), (1, 16), only_small=True)
    small = [
        "produce, 1 record per batch, 1 partition, none, a",
        "produce, 1 record per batch, 1 partition, none, b",
        "produce, 1 record per batch, 16 partitions, none, a",
        "produce, 1 record per batch, 16 partitions, none, b",
    ]
    assert [step.name for step in plan([Idle("a"), Idle("b")], 1, load)] == small
    load = RoundLoad(100, ("none",), (6,), (1, 16))
    both = [step.name for step in plan([Idle("a"), Idle("b")], 1, load)]
    assert both == [*small, *names(1, "none", partitions=(6,))]


def test_first_server_alternates_between_rounds() -> None:
    assert [name[-1] for name in names(3, "none", partitions=(1,))[::14]] == ["a", "b", "a"]


def test_three_servers_take_turns_within_one_round() -> None:
    load = RoundLoad(100, ("none",), (6,), (1,), only_small=True)
    servers = [Idle("ours"), Idle("Kafka"), Idle("older")]
    assert [step.name.rpartition(", ")[2] for step in plan(servers, 2, load)] == [
        *("ours", "Kafka", "older"),
        *("Kafka", "older", "ours"),
    ]


def test_zstd_is_fetched_by_clients_that_support_it() -> None:
    assert [name for name in names(1, "zstd") if name.startswith("fetch")] == [
        "fetch, as stored, zstd, a",
        "fetch, as stored, zstd, b",
    ]


def test_steps_of_one_partition_are_left_out_without_such_a_topic() -> None:
    assert not [
        name
        for name in names(1, "none", partitions=(6,))
        if name.startswith("fetch") or "partition, both sync" in name
    ]


def test_mib_per_round_counts_topics_and_paced_records() -> None:
    # 2,000 records per second of 1 KiB for 25 seconds are 48.8 MiB, twice per round.
    assert RoundLoad(100, ("none", "lz4"), (1, 6)).mib_per_round() == 697
    assert RoundLoad(100, ("none", "lz4"), (1, 6), (1, 16)).mib_per_round() == 697 + 2 * 16


def costs(*values: float) -> tuple[Iterator[float], list[str]]:
    return iter(values), []


def test_warm_up_ends_when_two_passes_cost_the_same() -> None:
    left, said = costs(10, 5, 4.6, 99)
    repeat_until_stable(lambda: next(left), WarmUpLimits(share=0.1, limit=6), said.append)
    assert list(left) == [99]
    assert said == [
        f"pass {number} of at most 6: {cost} CPU s/GiB"
        for number, cost in ((1, "10.00"), (2, "5.00"), (3, "4.60"))
    ]


def test_unstable_warm_up_ends_at_its_limit() -> None:
    left, said = costs(10, 5, 10, 5, 10)
    repeat_until_stable(lambda: next(left), WarmUpLimits(share=0.1, limit=4), said.append)
    assert list(left) == [10]
    assert said[-1] == "not stable after 4 passes"


@pytest.mark.peer
@pytest.mark.slow
def test_all_steps_run_with_real_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PACE_WARM_UP_SECONDS", 1)
    monkeypatch.setattr(clients, "PACE_SECONDS", 2)
    monkeypatch.setattr(clients, "JVM_FLAGS", jvm.CLIENT)
    load = RoundLoad(1, ("none",), (1, 2))
    server = BenchGateway.start()
    try:
        warm_up(server, load, WarmUpLimits(limit=1), lambda line: None)
        figures = [step.run() for step in plan([server], 1, load)]
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    finally:
        server.stop()
    assert all(figure.cpu_per_gib > 0 and figure.rate > 0 for figure in figures)
    paced = figures[-1]
    assert paced.p50 is not None
    assert paced.p99 is not None
    # delivery.timeout.ms is two minutes.
    assert 0 < paced.p50 <= paced.p99 < 120_000
