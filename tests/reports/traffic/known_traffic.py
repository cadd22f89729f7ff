"""A log with known applications, and their states for the targets, derived manually from Kafka's
schemas and KIP-896.
"""

from __future__ import annotations

from tests.reports.traffic.traffic_logs import Process, ms

DAYS = [f"2026-11-{day:02}" for day in range(10, 20)]
NOW = "2026-11-20"
(
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    JOIN_GROUP,
    HANDSHAKE,
    API_VERSIONS,
    CREATE_ACLS,
) = 0, 1, 2, 3, 8, 11, 17, 18, 30
KIB = 1024

ANONYMOUS = "User:ANONYMOUS"
OF_TOPIC = {"bytes_in": 90 * KIB, "records": 100}

#: By client id: its state for kafka-4.0 and the refused requests.
STATES = {
    "billing": ("refused", {"Fetch 1", "JoinGroup 0", "Produce 1"}),
    "nightly": ("refused", {"Produce 2"}),
    "acl-tool": ("refused", {"CreateAcls 0"}),
    "commits-1": ("refused", {"OffsetCommit 1"}),
    "": ("refused", {"GSSAPI without a handshake"}),
    "lost-rows": ("refused", {"Fetch 3"}),
    "joins-0": ("refused", {"JoinGroup 0"}),
    "librdkafka-old": ("below", set()),
    "java-1.0": ("unknown", set()),
    "shop": ("fine", set()),
    "confluent": ("fine", set()),
    "franz": ("fine", set()),
}
#: No applications: a probe without requests, and a client that never authenticated.
NONE = {"wrong-password"}
#: States for other targets. KoP supports every old version, but neither GSSAPI nor newer
#: ApiVersions requests.
STATES_FOR = {
    "kafka-4.x": {name: state for name, (state, _) in STATES.items()} | {"joins-0": "unknown"},
    "kop": dict.fromkeys(STATES, "fine") | {"": "refused", "franz": "refused"},
}


def requests(*pairs):
    return [(key, version, 10, 10 * KIB, KIB) for key, version in pairs]


def write(logs):
    """Write ten days of traffic; `billing` is active on all of them, `nightly` on the first
    five.
    """
    process = Process(logs)
    for place, day in enumerate(DAYS):
        rows = []
        begin, end = ms(day, 12, 1), ms(day, 12, 59)
        rows += _old(process, begin, end, place)
        rows += _served(process, begin, end)
        rows += process.connection(begin, end, peer="10.9.9.9", principal=None)
        rows += process.connection(
            begin,
            end,
            ["wrong-password"],
            requests((HANDSHAKE, 1)),
            principal=None,
            protocol="SASL_PLAINTEXT",
            mechanism="PLAIN",
            peer="10.9.9.8",
        )
        process.file(day, 12, rows)
    return process


def _old(process, begin, end, place):
    def old(name, *pairs, **more):
        return process.connection(
            begin, end, [name], requests(*pairs), **{"peer": "10.0.1.1", **more}
        )

    read = {
        "bytes_out": 300 * KIB,
        "records": 50,
        "magic_out": {"0": 5},
        "conversions": 5,
        "converted_records": 50,
    }
    read |= {"converted_bytes": 300 * KIB, "conversion_cpu_us": 500_000}
    topics = [
        ("orders", PRODUCE, 1, {**OF_TOPIC, "magic_in": {"0": 4}}),
        ("orders", FETCH, 1, read),
    ]
    rows = old(
        "billing",
        (PRODUCE, 1),
        (FETCH, 1),
        (METADATA, 0),
        (JOIN_GROUP, 0),
        topics=topics,
        group="billers",
    )
    rows += old("acl-tool", (CREATE_ACLS, 0), (METADATA, 4), (API_VERSIONS, 1))
    rows += old("commits-1", (PRODUCE, 3), (FETCH, 4), (OFFSET_COMMIT, 1), (API_VERSIONS, 0))
    rows += old("joins-0", (FETCH, 4), (JOIN_GROUP, 0), (API_VERSIONS, 0))
    # Kerberos of Kafka 0.9, which kopgate refuses: the connection row has almost no fields.
    gssapi = {
        "protocol": "SASL_PLAINTEXT",
        "mechanism": "GSSAPI",
        "road": "none",
        "principal": None,
    }
    rows += process.connection(begin, end, peer="10.0.1.3", **gssapi)
    # Its usage rows were lost; the row of its end has the versions it sent.
    rows += [
        row for row in old("lost-rows", (FETCH, 3), (METADATA, 2)) if row["kind"] == "connection"
    ]
    if place < 5:
        rows += old(
            "nightly",
            (PRODUCE, 2),
            (METADATA, 1),
            topics=[("events", PRODUCE, 2, {**OF_TOPIC, "magic_in": {"1": 4}})],
        )
    return rows


def _served(process, begin, end):
    def served(name, *pairs, software=None, version=None, **more):
        greeting = more.pop("greeting", 3 if software else 1)
        said = {
            "software": software,
            "software_version": version,
            "peer": "10.0.2.2",
            "api_versions": greeting,
        }
        return process.connection(
            begin, end, [name], requests(*pairs, (API_VERSIONS, greeting)), **said, **more
        )

    topics = [
        ("orders", PRODUCE, 9, {**OF_TOPIC, "magic_in": {"2": 4}}),
        ("invoices", FETCH, 12, {"bytes_out": 10 * KIB, "records": 10}),
    ]
    rows = served(
        "shop",
        (PRODUCE, 9),
        (FETCH, 12),
        (JOIN_GROUP, 7),
        software="apache-kafka-java",
        version="2.8.2",
        topics=topics,
        group="billers",
    )
    rows += served(
        "librdkafka-old",
        (PRODUCE, 7),
        (FETCH, 11),
        (LIST_OFFSETS, 1),
        software="librdkafka",
        version="1.6.1",
    )
    rows += served(
        "confluent",
        (PRODUCE, 10),
        (FETCH, 16),
        software="confluent-kafka-python",
        version="2.16.1-librdkafka-2.16.1",
    )
    rows += served("java-1.0", (PRODUCE, 5), (FETCH, 6), (JOIN_GROUP, 2))
    # It uses versions for two different brokers.
    both = ((METADATA, 9), (METADATA, 12))
    return rows + served(
        "franz",
        (PRODUCE, 11),
        (FETCH, 17),
        (JOIN_GROUP, 9),
        *both,
        software="kgo",
        version="v1.22.2",
        greeting=4,
    )
