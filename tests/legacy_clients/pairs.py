"""The pairs of clients that are tested in one group.

The leader assigns partitions with an assignor that both members support.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, permutations
from operator import attrgetter

from tests.legacy_clients.clients import Client

#: The client that joins first and becomes leader, and the one that joins second.
Pair = tuple[Client, Client]

#: Pairs of libraries that share a group when an application is rewritten; both have a common
#: assignor by default. These are tested in CI.
ACROSS_IN_CI = (
    ("java-0.9.0.1", "confluent-2.16.1"),
    ("java-0.9.0.1", "sarama-1.61.1"),
    ("kafka-python-1.0.2", "java-4.4.0"),
    ("confluent-1.0.0-as-0.9", "aiokafka-0.14.0"),
    ("kafka-node-2.0.0", "kafka-python-3.0.12"),
    ("java-4.4.0", "franz-go-1.22.2-as-0.9"),
    ("confluent-0.11.6", "kcat-1.7.1"),
)
ACROSS = (
    *ACROSS_IN_CI,
    ("java-0.9.0.1", "kafka-python-3.0.12"),
    ("sarama-1.19.0-as-2.0.0", "java-0.9.0.1"),
    ("confluent-0.11.6", "java-4.4.0"),
    ("kcat-1.7.1", "java-0.9.0.1"),
)


def chosen_pairs(table: Mapping[str, Client]) -> list[Pair]:
    """Pairs within each library, and some pairs of libraries.

    In each library the oldest client leads every other and every other leads the newest; where it
    cannot, the newest leads it.
    """
    within = [
        (leads, follows)
        for oldest, *_, newest in libraries(table)
        for leads, follows in all_pairs(table)
        if leads.library == follows.library == oldest.library
        and (
            leads is oldest
            or follows is newest
            or (leads is newest and (follows is oldest or not can_work(follows, leads)))
        )
    ]
    return [*within, *((table[first], table[second]) for first, second in ACROSS)]


def is_short_form(pair: Pair, table: Mapping[str, Client]) -> bool:
    """Whether a chosen pair is tested in CI.

    In each library the oldest client leads the newest; where it cannot, the newest leads it.
    """
    leads, follows = pair
    if leads.library != follows.library:
        return (leads.name, follows.name) in ACROSS_IN_CI
    return any(
        pair == ((oldest, newest) if can_work(oldest, newest) else (newest, oldest))
        for oldest, *_, newest in libraries(table)
    )


def all_pairs(table: Mapping[str, Client]) -> list[Pair]:
    """All pairs that can share a group."""
    return [pair for pair in permutations(members(table), 2) if can_work(*pair)]


def libraries(table: Mapping[str, Client]) -> Iterator[list[Client]]:
    """The members of each library with several clients, from oldest to newest."""
    for _, rows in groupby(
        sorted(members(table), key=attrgetter("library")), attrgetter("library")
    ):
        if len(members_of := list(rows)) > 1:
            yield members_of


def members(table: Mapping[str, Client]) -> Sequence[Client]:
    return [row for row in table.values() if row.groups == "member"]


def can_work(leads: Client, follows: Client) -> bool:
    """Whether both can share a group.

    Kafka refuses a member without a common assignor (INCONSISTENT_GROUP_PROTOCOL), and the leader
    must understand the other's subscription.
    """
    return (
        bool(set(leads.assignors) & set(follows.assignors))
        and follows.subscribes <= leads.reads_subscriptions
    )
