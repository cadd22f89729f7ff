"""Producers are told of their records, and consumers find in them, what Kafka 3.9.2 says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.sides import Sides, side_by_side
from tests.peers.test_admin_clients import agree, installed, java

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("records alike")]  # one pair of brokers for all of them


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    with side_by_side(tmp_path_factory.mktemp("gateway")) as both:
        yield both


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_java_producer_is_told_which_records_of_a_batch_are_invalid(sides: Sides, codec: str) -> None:
    ours, theirs = sides.run([*installed(lambda: java("InvalidRecords.java", "3.9.2")), codec])
    agree(ours, theirs)
    assert ours.output.count("Compacted topic cannot accept message without key") == 10
