"""Memory of idle connections: the measurement with a few of them, and its table."""

from __future__ import annotations

import pytest

from bench.logins.idle import IdleMemory, measure, table


@pytest.mark.peer
@pytest.mark.parametrize("has_tls", [False, True])
def test_clients_connect_and_are_served(has_tls: bool) -> None:
    found = measure("some", 20, has_tls=has_tls, has_traffic_log=not has_tls, settle_seconds=0)
    assert found.connections == 20


def test_memory_is_shown_in_kib() -> None:
    assert table([IdleMemory("TLS", 2_000, 1024.0, 2560.0)]).splitlines() == [
        "| connections | number | KiB each, connected | KiB each, after the requests |",
        "| --- | --- | --- | --- |",
        "| TLS | 2,000 | 1.0 | 2.5 |",
    ]
