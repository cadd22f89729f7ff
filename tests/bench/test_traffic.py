"""The CPU cost of the traffic log: turns, and the table."""

from __future__ import annotations

import pytest

from bench.traffic import CpuPair, LogCost, measure, median_interval, table


def test_first_listener_alternates_between_rounds() -> None:
    seen: list[str] = []

    def load(connection: str) -> float:
        seen.append(connection)
        return 2.0 if connection == "without" else 3.0

    (row,) = measure(("without", "with"), {"produce": load}, 3, lambda line: None)
    assert seen == ["without", "with", "with", "without", "without", "with"]
    assert row.pairs == [CpuPair(2.0, 3.0)] * 3


def test_ratio_is_the_median_of_all_rounds() -> None:
    row = LogCost(
        "produce",
        [CpuPair(10.0, 10.1), CpuPair(20.0, 21.0), CpuPair(11.0, 10.45)],
        recorder_seconds=0.11,
    )
    assert (
        table([row]).splitlines()[2]
        == "| produce | 11.00 | 10.45 | **1.010** (0.950-1.050) | 0.110 s/GiB, 1.0% |"
    )


@pytest.mark.parametrize(
    ("rounds", "rank"), [(1, 0), (5, 0), (6, 0), (9, 1), (10, 1), (20, 5), (30, 9), (40, 13)]
)
def test_median_interval_matches_binomial_tables(rounds: int, rank: int) -> None:
    assert median_interval(list(map(float, range(rounds)))) == (rank, rounds - 1 - rank)
