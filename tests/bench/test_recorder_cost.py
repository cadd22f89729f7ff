"""What telling the recorder takes, by itself."""

from __future__ import annotations

from bench import recorder_cost


def test_a_request_with_more_partitions_takes_less_for_the_same_bytes() -> None:
    assert 0 < recorder_cost.produce_cost(6) < recorder_cost.produce_cost(1)


def test_a_fetch_of_many_batches_takes_less_than_as_many_requests_of_one_batch() -> None:
    assert 0 < recorder_cost.fetch_cost() < recorder_cost.produce_cost(1)
