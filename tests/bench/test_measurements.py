"""The table: medians, ratios per round, and latencies."""

from __future__ import annotations

import pytest

from bench.measurements import Comparison, Measurement, compare, table, tables


def figures(
    server: str, *costs: float, row: str = "produce", codec: str = "none"
) -> list[Measurement]:
    return [Measurement(row, codec, server, cost, cost * 10) for cost in costs]


def test_ratio_compares_measurements_of_the_same_round() -> None:
    # The ratio of the medians, 20 and 10, would be 2.
    one = Comparison("produce", "none", figures("a", 10, 20, 60), figures("b", 10, 40, 8))
    assert one.ratios == [0.5, 1.0, 7.5]
    assert one.ratio == 1.0


def test_rows_and_rounds_keep_their_order() -> None:
    measured = [
        *figures("a", 1),
        *figures("b", 2),
        *figures("b", 3, codec="lz4"),
        *figures("a", 4, codec="lz4"),
        *figures("b", 5),
        *figures("a", 6),
    ]
    first, second = compare(measured, "a", "b")
    assert (
        first.codec,
        [one.cpu_per_gib for one in first.ours],
        [one.cpu_per_gib for one in first.theirs],
    ) == ("none", [1, 6], [2, 5])
    assert (
        second.codec,
        [one.cpu_per_gib for one in second.ours],
        [one.cpu_per_gib for one in second.theirs],
    ) == ("lz4", [4], [3])


def test_unpaired_measurement_raises() -> None:
    with pytest.raises(ValueError):
        table(compare([*figures("a", 1, 2), *figures("b", 1)], "a", "b"))


def test_table_has_medians_and_range_of_ratios() -> None:
    last = table(compare([*figures("a", 1, 3, 2), *figures("b", 4, 4, 4)], "a", "b")).splitlines()[
        -1
    ]
    assert last == "| produce | none | 2.00 | 4.00 | **0.50** (0.25-0.75) | 20 | 40 | - | - |"


def test_latencies_are_shown_if_measured() -> None:
    both = [
        Measurement("paced", "none", server, 1.0, 2.0, p50, p99)
        for server in "ab"
        for p50, p99 in ((5, 9), (6, 30), (7, 10))
    ]
    assert table(compare(both, "a", "b")).splitlines()[-1].endswith("| 6.0 / 10.0 | 6.0 / 10.0 |")


THREE = [*figures("a", 1, 3), *figures("Kafka 3.9.2", 4, 4), *figures("a in older", 2, 4)]


def test_other_checkout_has_a_column_of_ratios_and_a_table() -> None:
    names = ["a", "Kafka 3.9.2", "a in older"]
    first, second = tables(THREE, names, "Kafka", "a in older").split("\n\na in older:\n\n")
    assert first.splitlines()[::2] == [
        "| step | codec | kopgate CPU s/GiB | Kafka CPU s/GiB | ratio to Kafka (min-max) | ratio "
        "to a in older (min-max) | kopgate MiB/s | Kafka MiB/s | kopgate p50 / p99 ms | Kafka p50 "
        "/ p99 ms |",
        # The ratios of the rounds are 1 / 4 and 3 / 4, and 1 / 2 and 3 / 4.
        "| produce | none | 2.00 | 4.00 | **0.50** (0.25-0.75) | **0.62** (0.50-0.75) | 20 | 40 | "
        "- | - |",
    ]
    assert second.splitlines()[1].count("---") == first.splitlines()[1].count("---") - 1
    # 2 / 4 and 4 / 4.
    assert second.splitlines()[-1] == (
        "| produce | none | 3.00 | 4.00 | **0.75** (0.50-1.00) | 30 | 40 | - | - |"
    )


def test_without_kafka_there_is_one_table_and_one_ratio() -> None:
    names = ["a", "a in older"]
    assert tables(THREE, names, "a in older", "a in older") == table(
        compare(THREE, *names), "a in older"
    )
    assert "| ratio (min-max) |" in table(compare(THREE, *names), "a in older")


def test_server_that_is_not_another_checkout_has_only_a_table() -> None:
    names = ["a", "Kafka 3.9.2", "a in older"]
    first, _ = tables(THREE, names, "Kafka").split("\n\na in older:\n\n")
    assert first == table(compare(THREE, *names[:2]))
