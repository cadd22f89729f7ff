"""The known traffic plus one connection with most usage rows and one application with most
connections.

Expected results are calculated manually. The two have no principal and no client id, and nearly
always the same topic or group.
"""

from __future__ import annotations

from tests.reports.traffic import known_traffic
from tests.reports.traffic.traffic_logs import Process, ms

DAY = known_traffic.DAYS[-1]
FETCH, HEARTBEAT = 1, 12
MINUTES, CONNECTIONS = 1300, 600
#: A connection that reads `orders` all day in the group of `billing`, and a machine whose
#: connections send one request each that Kafka 4 does not serve.
MIRROR, MACHINE = ("", "", "10.9.0.2"), ("", "", "10.9.0.1")


def write(logs):
    known_traffic.write(logs)
    process, begin = Process(logs, 2, "hot"), ms(DAY, 1)
    rows = [*_mirror(process, begin)]
    for number in range(CONNECTIONS):
        at = begin + number * 60_000
        rows += process.connection(
            at, at + 59_000, [], [(FETCH, 3, 10, 100, 50)], principal=None, peer=MACHINE[2]
        )
    process.file(DAY, 1, rows)


def _mirror(process, begin):
    said = {
        "principal": None,
        "software": "apache-kafka-java",
        "software_version": "3.9.1",
        "peer": MIRROR[2],
        "api_versions": 3,
    }
    opened, used, closed = process.connection(
        begin, begin + MINUTES * 60_000, [], [(FETCH, 12, 1, 1, 1)], **said
    )
    yield from (opened, used, closed)
    named = {key: value for key, value in used.items() if key in ("connection", "listener", *said)}
    for minute in range(MINUTES):
        until = begin + (minute + 1) * 60_000
        each = [
            {
                "api_key": FETCH,
                "api_version": 12,
                "requests": 6,
                "bytes_in": 100,
                "bytes_out": 9000,
            },
            {
                "api_key": HEARTBEAT,
                "api_version": 4,
                "group": "billers",
                "requests": 2,
                "bytes_in": 50,
                "bytes_out": 10,
            },
            {
                "api_key": FETCH,
                "api_version": 12,
                "topic": "orders",
                "bytes_out": 8000,
                "records": 70,
                "magic_out": {"2": 3},
            },
        ]
        for one in each:
            yield process.row("usage", until, began=until - 60_000, **named, **one)


#: Expected fields of these two in clients.csv.
HOT = {
    MIRROR: {
        "state": "fine",
        "library": "java",
        "version_low": "3.9.1",
        "topics": '["orders"]',
        "groups": '["billers"]',
        "refused_requests": "0",
        "requests": str(1 + 8 * MINUTES),
        "bytes_in": str(1 + 150 * MINUTES),
        "bytes_out": str(1 + 9010 * MINUTES),
        "topic_bytes": str(8000 * MINUTES),
        "records": str(70 * MINUTES),
        "magic_out_2": str(3 * MINUTES),
        "magic_in_2": "0",
    },
    MACHINE: {
        "state": "refused",
        "reasons": ("Fetch 3 (served from version 4)"),
        "topics": "[]",
        "groups": "[]",
        "refused_requests": str(10 * CONNECTIONS),
        "requests": str(10 * CONNECTIONS),
        "bytes_in": str(100 * CONNECTIONS),
        "bytes_out": str(50 * CONNECTIONS),
        "topic_bytes": "0",
    },
}
#: Kind, name, old and new applications, bytes: `billing` is old; `shop` and the mirror are not.
BOUND = {
    ("topic", "orders", 1, 2, (390 + 90) * known_traffic.KIB * 10 + 8000 * MINUTES),
    ("group", "billers", 1, 2, 2 * 11 * known_traffic.KIB * 10 + 60 * MINUTES),
}
#: Applications and refused applications by day.
DAYS = [(12, 7)] * 5 + [(11, 6)] * 4 + [(13, 7)]
