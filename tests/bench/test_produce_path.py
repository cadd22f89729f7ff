"""What a request costs without sockets: the measured requests are those of a producer."""

from __future__ import annotations

import pytest

from bench.produce_path.__main__ import BURST, LOADS, RecordedProducer, Shape


@pytest.mark.parametrize(
    ("shape", "reads", "is_embedded"),
    [*((*load, False) for load in LOADS), *((*load, True) for load in LOADS[::3])],
)
def test_each_measured_request_is_stored_and_answered(
    shape: Shape, reads: int, is_embedded: bool
) -> None:
    producer = RecordedProducer(shape, reads=reads, is_embedded=is_embedded)
    producer.serve(producer.bursts(2))
    assert producer.end_offsets() == [2 * BURST * shape.records] * shape.partitions
    # The replies of a burst leave together.
    assert producer.socket.writes == 2
    producer.close()
