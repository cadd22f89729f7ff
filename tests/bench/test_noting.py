"""What telling the recorder takes, by itself."""

from __future__ import annotations

from bench import noting


def test_a_request_with_more_partitions_takes_less_for_the_same_bytes() -> None:
    assert 0 < noting.producing(6) < noting.producing(1)


def test_a_fetch_of_many_batches_takes_less_than_as_many_requests_of_one_batch() -> None:
    assert 0 < noting.fetching() < noting.producing(1)
