"""Random traffic from a seed, thousands of rows, with the expected findings counted in plain
Python.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.reports.traffic.traffic_logs import Process, ms

FETCH = 1
#: The lowest versions that Kafka 4.0.0 serves, from KIP-896; of keys not listed it serves all.
MINIMUMS = {0: 3, 1: 4, 2: 1, 8: 2, 9: 1, 11: 2, 19: 2, 20: 1, 32: 1}
KEYS = (*MINIMUMS, 3, 10, 12, 18)
OF_TOPICS = (0, 1, 2, 8, 9)
OF_GROUPS = range(8, 15)
#: Names that need escaping: a report's tables are CSV and its page is HTML.
ODD_NAMES = (
    "",
    "a,b",
    'say "hello"',
    "two\nlines",
    "<script>alert(1)</script>",
    "schlüssel-ключ-鍵",
    "x" * 500,
    "null",
    "\\",
    "'; drop table",
)

Who = tuple[str, str, str]


@dataclass
class Found:
    """Expected findings.

    By (application, key, version) refused requests and bytes; users and bytes by (kind, name);
    conversions by (application, topic); applications and refused applications by day; by
    application the versions that its connections send.
    """

    refused: dict[tuple[Who, int, int], list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )
    users: dict[tuple[str, str], set[Who]] = field(default_factory=lambda: defaultdict(set))
    sizes: Counter[tuple[str, str]] = field(default_factory=Counter)
    converted: dict[tuple[Who, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    seen: dict[str, set[Who]] = field(default_factory=lambda: defaultdict(set))
    old_by_day: dict[str, set[Who]] = field(default_factory=lambda: defaultdict(set))
    requests: Counter[Who] = field(default_factory=Counter)
    kinds: dict[Who, set[frozenset[tuple[int, int]]]] = field(
        default_factory=lambda: defaultdict(set)
    )

    @property
    def applications(self) -> set[Who]:
        return set(self.requests)

    @property
    def old(self) -> set[Who]:
        return {who for who, _, _ in self.refused}

    @property
    def bound(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Numbers of old and new applications, and bytes."""
        counts = {
            place: (len(who & self.old), len(who - self.old), self.sizes[place])
            for place, who in self.users.items()
        }
        return {place: count for place, count in counts.items() if count[0] and count[1]}


def write(logs, seed, days, applications=250, lowest=None, nodes=(7, 8)):
    """About ten rows per connection and one to six connections per application. `lowest` limits the
    versions sent.
    """
    chance = random.Random(seed)
    found = Found()
    planned = [
        (chance.choice(nodes), chance.choice(days), chance.randint(0, 23), who)
        for who in _names(chance, applications)
        for _ in range(chance.randint(1, 6))
    ]
    for node in nodes:
        process = Process(logs, node, f"noise{node}")
        # A process writes its files one after the other.
        its = sorted((day, hour, who) for one, day, hour, who in planned if one == node)
        for (day, hour), connections in itertools.groupby(its, key=lambda one: one[:2]):
            rows = []
            for *_, who in connections:
                rows += _connection(
                    chance,
                    process,
                    ms(day, hour, chance.randint(0, 50)),
                    day,
                    who,
                    found,
                    lowest or {},
                )
            process.file(day, hour, rows, packed=chance.random() < 0.8)
        # A file is finished when its process has started another.
        process.file(days[-1], 23, [])
    return found


def _names(chance, count):
    names = [*ODD_NAMES, *(f"noise-{number}" for number in range(count - len(ODD_NAMES)))]
    return [
        (f"User:team-{chance.randint(0, 9)}", name, f"10.1.0.{chance.randint(1, 30)}")
        for name in names
    ]


def _connection(chance, process, at, day, who, found, lowest):
    sent = {
        (key, chance.choice([one for one in (0, 1, 2, 3, 4, 5, 9) if one >= lowest.get(key, 0)]))
        for key in chance.sample(KEYS, chance.randint(1, 6))
    }
    requests = [
        (key, version, chance.randint(1, 50), chance.randint(0, 5000), chance.randint(0, 5000))
        for key, version in sorted(sent)
    ]
    group = f"noise-group-{chance.randint(0, 39)}" if chance.random() < 0.5 else None
    topics = [
        _topic(chance, *pair)
        for pair in sorted(sent)
        if pair[0] in OF_TOPICS
        for _ in range(chance.randint(0, 3))
    ]
    _count(found, day, who, requests, topics, group)
    principal, client_id, address = who
    return process.connection(
        at,
        at + chance.randint(1, 500_000),
        [client_id],
        requests,
        topics,
        group,
        principal=principal,
        peer=address,
        api_versions=0,
    )


def _topic(chance, key, version):
    of_it = (
        {
            "bytes_in" if key == 0 else "bytes_out": chance.randint(1, 9000),
            "records": chance.randint(1, 90),
        }
        if key in (0, 1)
        else {}
    )
    if key == FETCH and chance.random() < 0.3:
        of_it |= {"conversions": chance.randint(1, 9), "converted_records": chance.randint(1, 90)}
        of_it |= {
            "converted_bytes": chance.randint(1, 9000),
            "conversion_cpu_us": chance.choice([0, chance.randint(1, 90_000)]),
        }
    return f"noise-topic-{chance.randint(0, 79)}", key, version, of_it


def _count(found, day, who, requests, topics, group):
    found.seen[day].add(who)
    found.kinds[who].add(frozenset(request[:2] for request in requests))
    for key, version, count, bytes_in, bytes_out in requests:
        found.requests[who] += count
        if version < MINIMUMS.get(key, 0):
            found.old_by_day[day].add(who)
            found.refused[who, key, version][0] += count
            found.refused[who, key, version][1] += bytes_in + bytes_out
        if group and key in OF_GROUPS:
            found.users["group", group].add(who)
            found.sizes["group", group] += bytes_in + bytes_out
    for topic, _, _, of_it in topics:
        found.users["topic", topic].add(who)
        found.sizes["topic", topic] += of_it.get("bytes_in", 0) + of_it.get("bytes_out", 0)
        if "conversions" in of_it:
            counted = ("conversions", "converted_records", "converted_bytes", "conversion_cpu_us")
            found.converted[who, topic].update({name: of_it[name] for name in counted})
