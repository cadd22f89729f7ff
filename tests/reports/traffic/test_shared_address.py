"""Real clients behind one address with a library's default client id: each library is
identified.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime

import pytest

from reports.analysis import facts
from tests.legacy_clients.applications import Application, ConsumeStep, ProduceStep, run
from tests.legacy_clients.brokers import are_required
from tests.reports.traffic.shared_address import is_within, libraries, recorded

pytestmark = [
    pytest.mark.spark,
    pytest.mark.peer,
    pytest.mark.timeout(1800),
]

#: Real clients that run one after the other with a library's default client id, without
#: authentication.
REAL = {
    "rdkafka": ("confluent-0.11.6", "confluent-1.0.0", "confluent-2.8.0", "confluent-2.16.1"),
    "sarama": ("sarama-1.19.0", "sarama-1.19.0-as-2.0.0", "sarama-1.61.1"),
}


@pytest.fixture(scope="module")
def real(spark, tmp_path_factory):
    """By client id, the clients that ran and the row of clients.csv."""
    folder = tmp_path_factory.mktemp("shared-by-real-clients")
    company = [
        Application(
            client_id,
            name,
            (ProduceStep("events", 50), ConsumeStep("events", f"group-of-{name}", 50)),
        )
        for client_id, names in REAL.items()
        for name in names
    ]
    ran = run(company, folder, folder / "logs")
    if ran.left_out and are_required():
        pytest.fail(f"left out: {ran.left_out}")
    from reports.run import ReportRequest
    from reports.run import run as made

    made(
        spark,
        ReportRequest(folder / "logs", folder / "out", facts.load_target("kafka-4.x")),
        datetime.now(UTC),
    )
    with (folder / "out" / "clients.csv").open(newline="") as file:
        rows = {row["client_id"]: row for row in csv.DictReader(file)}
    return {
        client_id: (
            [who.client for who in ran.applications if who.client_id == client_id],
            rows.get(client_id),
        )
        for client_id in REAL
    }


@pytest.mark.parametrize("client_id", REAL)
def test_libraries_behind_one_address_are_all_identified_and_no_others(real, client_id):
    """A binding's version is not that of its librdkafka."""
    names, application = real[client_id]
    if not names:
        pytest.skip(f"no client of {client_id} runs here")
    left = libraries(application)
    for name in names:
        row = recorded()[name]
        found = [
            one
            for one in left
            if one["library"] == row["library"] and is_within(one, row["version"])
        ]
        assert found, (name, left)
        left.remove(found[0])
    assert left == []
    assert application["state"] == "refused"
