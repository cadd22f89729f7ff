"""CPU cost of the traffic log's recorder."""

from __future__ import annotations

from bench import recorder_cost


def test_more_partitions_per_request_cost_less_per_byte() -> None:
    assert 0 < recorder_cost.produce_cost(6) < recorder_cost.produce_cost(1)


def test_fetch_of_many_batches_costs_less_than_produce_requests_of_one() -> None:
    assert 0 < recorder_cost.fetch_cost() < recorder_cost.produce_cost(1)
