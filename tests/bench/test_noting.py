"""What telling the recorder takes, by itself."""

from __future__ import annotations

from bench import noting


def test_a_request_with_more_partitions_takes_less_for_the_same_bytes() -> None:
    assert 0 < noting.producing(6) < noting.producing(1)


def test_a_fetch_is_told_in_microseconds_a_batch() -> None:
    batches = noting.GIB / noting.BATCH_BYTES
    assert 0 < noting.fetching() / batches < 10e-6
