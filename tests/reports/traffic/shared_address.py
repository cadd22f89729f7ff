"""A log in which recorded clients share an address and a library's default client id."""

from __future__ import annotations

import json

from compat.fingerprint.table import OBSERVED, version_numbers
from tests.reports.traffic.traffic_logs import Process, ms

KIB = 1024
#: By client id, the recorded clients that share it, and their traffic in KiB.
BEHIND = {
    "rdkafka": {
        "confluent-0.11.6": 100,
        "confluent-1.0.0": 200,
        "confluent-1.7.0": 300,
        "confluent-2.16.1": 400,
    },
    "sarama": {"sarama-1.10.0": 200, "sarama-1.61.1": 200},
    "alone": {"confluent-1.0.0": 10},
}


def recorded():
    rows = [json.loads(line) for line in OBSERVED.read_text("utf-8").splitlines()]
    return {row["client"]: row for row in rows if row["scenario"] == "group"}


def write(logs, day):
    """One connection per recorded opening of a client.

    The traffic and the later requests are on the connection that joins a group, or on the longest
    one; the client of the other connections may be ambiguous.
    """
    process, rows, clients = Process(logs, 2), [], recorded()
    begin, end = ms(day, 12, 1), ms(day, 12, 59)
    for client_id, behind in BEHIND.items():
        for name, kib in behind.items():
            row = clients[name]
            main = max(
                row["first"],
                key=lambda first: (any(one.startswith("11:") for one in first), len(first)),
            )
            seen = {request for first in row["first"] for request in first}
            later = [
                f"{key}:{version}"
                for key, versions in row["requests"].items()
                for version in versions
            ]
            said = {
                key: row[key]
                for key in ("software", "software_version", "api_versions")
                if key in row
            }
            habits = {key: values[0] for key, values in row["habits"].items()}
            for first in row["first"]:
                sent = sorted(
                    {*first, *([one for one in later if one not in seen] if first is main else [])}
                )
                pairs = [tuple(map(int, one.split(":"))) for one in sent]
                requests = [
                    (key, version, 1, kib * KIB if first is main and place == 0 else 0, 0)
                    for place, (key, version) in enumerate(pairs)
                ]
                its = habits if first is main else {}
                rows += process.connection(
                    begin, end, [client_id], requests, first_requests=first, habits=its, **said
                )
    process.file(day, 12, rows)


def libraries(row):
    """The libraries of a row of clients.csv."""
    return json.loads(row["libraries"])


def is_within(one, version):
    """Whether the version is in the range of one of the libraries."""
    low, high = one.get("version_low"), one.get("version_high")
    return version_numbers(low) <= version_numbers(version) and (
        high is None or version_numbers(version) <= version_numbers(high)
    )
