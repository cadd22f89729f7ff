"""Connection checks of brokers, without a cluster."""

from __future__ import annotations

import socket

import pytest

from storage.pulsar.admin.cluster_checks import addresses, connect_error


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("pulsar://broker:16650", [("broker", 16650)]),
        ("pulsar://broker", [("broker", 6650)]),
        ("pulsar+ssl://broker/", [("broker", 6651)]),
        ("pulsar://one:1,two,three:3/", [("one", 1), ("two", 6650), ("three", 3)]),
        ("pulsar://[::1]:7,127.0.0.1:8", [("::1", 7), ("127.0.0.1", 8)]),
    ],
)
def test_service_url_is_split_into_addresses(url: str, expected: list[tuple[str, int]]) -> None:
    assert addresses(url) == expected


def test_one_reachable_broker_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert (
            connect_error(f"pulsar://127.0.0.1:1,127.0.0.1:{listening.getsockname()[1]}", 5) is None
        )


def test_error_names_every_unreachable_broker() -> None:
    reason = connect_error("pulsar://127.0.0.1:1,nowhere.invalid:2", 5)
    assert reason is not None
    first, second = reason.split(", ", 1)
    assert first == "127.0.0.1:1: Connection refused"
    assert second.startswith("nowhere.invalid:2: ")
