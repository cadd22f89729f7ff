"""Page data without Spark, for any number of applications and days, with hostile names."""

from __future__ import annotations

from datetime import date, timedelta

from reports.analysis.facts import MigrationTarget
from reports.page.page_model import PageModel

FIRST = date(2026, 1, 1)
#: Maximum number of applications on the page.
LISTED = 200
LIBRARIES = (
    "java 0.10.2",
    "librdkafka 0.11",
    "unknown, like Kafka 0.9",
    "java 2.8",
    "kafka-python 2.0",
    "franz-go 1.22",
    "kafkajs 2.2",
    "others",
)
STATES = ("refused", "below", "unknown", "fine")
NAMES = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
}
NAMES |= {
    17: "SaslHandshake",
    18: "ApiVersions",
    19: "CreateTopics",
    22: "InitProducerId",
    25: "AddOffsetsToTxn",
    36: "SaslAuthenticate",
}
NAMES |= {
    23: "OffsetForLeaderEpoch",
    44: "IncrementalAlterConfigs",
    48: "DescribeClientQuotas",
    55: "DescribeQuorum",
    60: "DescribeCluster",
}
TARGET = MigrationTarget("kafka-4.0", "Apache Kafka 4.0.0", (), {0: 3, 1: 4, 11: 2}, {}, False, {})


def application(client_id, state="refused", **more):
    return {
        "principal": "User:a",
        "client_id": client_id,
        "address": "10.0.0.1",
        "state": state,
        "library": None,
        "version_low": None,
        "version_high": None,
        "confidence": 0.0,
        "reasons": "",
        "needs": "",
        "evidence": "sends Produce 1",
        "topics": ["orders"],
        "groups": [],
        "topic_count": 1,
        "group_count": 0,
        "bytes_in": 1,
        "bytes_out": 2,
        "last_seen": "2026-11-08",
        **more,
    }


def figures(applications=16, days=10, refused=None, name="application-{}"):
    """The first `refused` of the `applications` (default: a quarter) are refused; the page gets as
    many as it lists.
    """
    refused = applications // 4 if refused is None else refused
    calendar = [FIRST + timedelta(days=place) for place in range(days)]
    listed = [_application(number, refused, name) for number in range(min(applications, LISTED))]
    versions = {
        (row["principal"], row["client_id"], row["address"]): _versions(row, number)
        for number, row in enumerate(listed)
    }
    kinds = [
        (library, {state: (place + number) % 5 for number, state in enumerate(STATES)})
        for place, library in enumerate(LIBRARIES)
    ]
    by_day = [
        (library, {day: 1 + (place * 7 + day.toordinal()) % 9 for day in calendar})
        for place, library in enumerate(LIBRARIES)
    ]
    trend = [
        {"date": day, "refused_applications": max(0, refused - place * refused // (2 * days))}
        for place, day in enumerate(calendar)
    ]
    bindings = [
        {
            "kind": "topic",
            "name": name.format(f"topic-{number}"),
            "old": 30,
            "new": 2,
            "old_applications": listed[:30],
            "bytes": 1 << 30,
        }
        for number in range(3 if refused else 0)
    ]
    return PageModel(listed, versions, kinds, trend, by_day, bindings)


def _application(number, refused, name):
    state = "refused" if number < refused else STATES[1 + number % 3]
    reasons = (
        "Fetch 1 (served from version 4), JoinGroup 0 (served from version 2), Produce 1 "
        "(served from version 3)"
    )
    library = (
        {}
        if number % 2
        else {
            "library": "java",
            "version_low": "0.9.0",
            "version_high": "0.10.2",
            "confidence": 0.8,
        }
    )
    topics = [name.format(f"topic-{place}") for place in range(12)]
    return application(
        name.format(number),
        state,
        reasons=reasons if state == "refused" else "",
        topics=topics,
        topic_count=40,
        groups=[name.format("group")],
        group_count=1,
        needs=("java 2.1.0 or librdkafka 1.8.2 or kafkajs 1.15.0") if state == "refused" else "",
        bytes_in=(1000 - number) << 20,
        **library,
        evidence=", ".join(f"{api} {key % 5}" for key, api in NAMES.items()),
    )


def _versions(row, number):
    low = 0 if row["state"] == "refused" else 4
    return {
        key: (low, 4 + (key + number) % 9)
        for place, key in enumerate(NAMES)
        if (place + number) % 3
    }


def summary(shown, applications=16, refused=None, zero=None):
    """The summary that matches `figures` with the same arguments."""
    refused = applications // 4 if refused is None else refused
    costs = [
        {
            **row,
            "conversions": 9,
            "converted_records": 9,
            "converted_bytes": 5 << 20,
            "cpu_seconds": 9.0 / (1 + place),
        }
        for place, row in enumerate(shown.applications[:refused])
    ]
    blockers = [{**row, "bytes": row["bytes_in"]} for row in shown.applications[:refused]]
    first, last = shown.days[0], shown.days[-1]
    fine = applications - refused
    return {
        "target": "kafka-4.0",
        "title": "Apache Kafka 4.0.0",
        "sources": ["KIP-896"],
        "made_at": f"{last['date'] + timedelta(days=1)}T08:00:00+00:00",
        "from": str(first["date"]),
        "until": str(last["date"]),
        "ready": not refused,
        "blockers": blockers,
        "applications": {
            "total": applications,
            "refused": refused,
            "below": fine // 3,
            "unknown": fine // 3,
            "fine": fine - 2 * (fine // 3),
        },
        "bindings": {
            "topics": len(shown.bindings),
            "groups": 0,
            "first": (f"the topic {shown.bindings[0]['name']}") if shown.bindings else None,
        },
        "conversions": {
            "conversions": len(costs),
            "bytes": 5 << 20,
            "cpu_seconds": 20.0,
            "most": costs,
        }
        if costs
        else {"conversions": 0},
        "trend": {
            "days": len(shown.days),
            "first": first["refused_applications"],
            "last": last["refused_applications"],
            "reaches_zero": zero,
            "why": "at the current rate" if zero else "not decreasing",
        },
        "log": {
            "files": 1200,
            "known": 0,
            "repeated": 0,
            "repeated_rows": 0,
            "damaged": [],
            "quarantined": {},
            "lines_missing": 0,
            "never_logged_in": 0,
            "library_not_looked_for": 0,
        },
    }
