"""A gateway and Apache Kafka 3.9.2, configured alike, for the tests that compare their answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.comparison import ComparedBrokers, side_by_side


@pytest.fixture(scope="session")
def compared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedBrokers]:
    """Several files use them (`tests/distribution.py`), with different topics and groups."""
    with side_by_side(tmp_path_factory.mktemp("gateway")) as both:
        yield both
