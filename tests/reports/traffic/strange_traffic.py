"""Clients with hostile names and impossible times, all on one day."""

from __future__ import annotations

from tests.reports.traffic.traffic_logs import Process, ms

DAY = "2026-11-09"
MIB = 1 << 20
#: Names that clients and topics may have.
NAMES = [
    "=cmd|' /C calc'!A1",
    "<script>alert(1)</script>",
    "+1",
    "\n=1",
    "＝1",
    "@x",
    "-2",
    "a\nb",
    "\x1b[31mred",
    "'\"><img src=x onerror=alert(1)>",
    "",
    "日本語",
]
#: Client ids of applications with impossible times.
ODD_TIMES = {"ahead": ms("2262-01-01"), "beyond": 1 << 50, "behind": 0}
#: Refused by Kafka 4, and any other.
PRODUCE_1 = (0, 1, 1, MIB, MIB)
#: An application with more refused requests than are listed, and one with values that no gateway
#: writes.
LOUD, ODD = "loud", "odd"
#: Applications by name. Those with impossible times also send bare GSSAPI tokens. Of these only the
#: address is known.
REFUSED = {*NAMES, LOUD, *ODD_TIMES}
APPLICATIONS = {*REFUSED, ODD}
ADDRESSES_ONLY = len(ODD_TIMES)


def write(logs):
    process, begin = Process(logs, 3, "strange"), ms(DAY)
    rows = []
    for name in NAMES:
        said = {
            "principal": name,
            "software": name,
            "software_version": name,
            "peer": name or "10.0.0.1",
        }
        rows += process.connection(
            begin, begin + 60_000, [name], [PRODUCE_1], [(name, 0, 1, {"bytes_in": 5})], **said
        )
    # Requests that only brokers send are refused in every version.
    rows += process.connection(
        begin, begin + 60_000, [LOUD], [(4, version, 1, MIB, MIB) for version in range(300)]
    )
    rows.append(_odd(process, begin))
    for name, far in ODD_TIMES.items():
        rows += _at_odd_time(process, begin, name, far)
    process.file(DAY, 12, rows)


def _odd(process, begin):
    said = {
        "listener": "PLAINTEXT",
        "principal": "User:odd",
        "client_ids": [ODD],
        "highest": {"x": 3, "99999999999": 1, "-5": 2, "4711": 4},
        "first_requests": ["x:y", "", ":", "-1:2", "99999999999:1", "3:1"],
        "habits": {"acks": 99, "protocols": ["=x", ""]},
    }
    return process.row("connection", begin, "3-strange-99", event="closed", **said)


def _at_odd_time(process, begin, name, far):
    opened, used, closed = process.connection(begin, begin + 60_000, [name], [PRODUCE_1])
    bare = {"listener": "P", "mechanism": "GSSAPI", "road": "none", "protocol": "SASL"}
    return [
        opened | {"at": far},
        used | {"at": far, "began": far},
        closed | {"opened_at": far},
        process.row("connection", far, f"3-strange-{far}", event="opened", peer=name, **bare),
    ]
