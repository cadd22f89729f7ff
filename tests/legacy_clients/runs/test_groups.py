"""Every client in a separate group: a member reads, commits and leaves; the next continues.

In CI the oldest client of each library, and those that only commit offsets: the newest ones do the
same in `test_pairs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from tests.legacy_clients.brokers import (
    NO_REBALANCE_DELAY,
    RunningBroker,
    StoreArguments,
    gateway,
    reference,
)
from tests.legacy_clients.cases import create_topics
from tests.legacy_clients.clients import (
    Client,
    Record,
    consume_in_group,
    produce,
    table,
)
from tests.legacy_clients.install import install
from tests.legacy_clients.relay import VersionRelay, Versions, relay

pytestmark = [pytest.mark.peer]

CLIENTS = tuple(row.name for row in table().values() if row.groups != "none")
#: The oldest of each library.
OLDEST = {table()[name].library: name for name in reversed(CLIENTS)}.values()
EVERY_CLIENT = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=()
            if name in OLDEST or table()[name].groups == "offsets"
            else (pytest.mark.slow,),
        )
        for name in CLIENTS
    ],
)
PARTITIONS = 2
EACH = 10
# Neither one partition nor both, so that one commit is in the middle of a partition.
FIRST_READS = 13
# They mostly wait.
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What two consecutive members of a group read, and the offsets committed by each."""

    sent: list[Record]
    read: tuple[list[Record], list[Record]]
    committed: tuple[Mapping[int, int], Mapping[int, int]]
    spoken: Versions


@pytest.fixture(scope="module")
def rounds(
    request: pytest.FixtureRequest,
    is_reference: bool,
    store_arguments: StoreArguments,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[GroupOutcome]]]:
    """The outcomes of all tested clients, which run concurrently."""
    names = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    }
    rows = [table()[name] for name in CLIENTS if name in names]
    with (
        broker_with_relay(
            is_reference, store_arguments, tmp_path_factory.mktemp("groups")
        ) as between,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        create_topics(between.address, [topic_of(row) for row in rows], PARTITIONS)
        yield {row.name: pool.submit(use_group, row, between) for row in rows}


@contextmanager
def broker_with_relay(
    is_reference: bool, store_arguments: StoreArguments, folder: Path
) -> Iterator[VersionRelay]:
    """A relay in front of a broker that advertises it."""
    with (
        relay() as between,
        broker_behind(between, is_reference, store_arguments, folder) as broker,
    ):
        between.target = broker.bootstrap
        yield between


def broker_behind(
    between: VersionRelay, is_reference: bool, store_arguments: StoreArguments, folder: Path
) -> AbstractContextManager[RunningBroker]:
    advertised = f"PLAINTEXT://{between.address}"
    if is_reference:
        return reference(advertised=advertised)
    return gateway(
        folder, arguments=("--advertised", advertised, *NO_REBALANCE_DELAY), stored=store_arguments
    )


def topic_of(row: Client) -> str:
    return f"group-{row.name}"


def use_group(row: Client, between: VersionRelay) -> GroupOutcome:
    install(row)
    topic = topic_of(row)
    sent = [
        Record(topic, partition, b"key", b"%d" % number)
        for partition in range(PARTITIONS)
        for number in range(EACH)
    ]
    produce(row, between.address, sent)
    read, committed = [], []
    for count in (FIRST_READS, len(sent) - FIRST_READS):
        read.append(consume_in_group(row, between.address, topic, topic, count))
        committed.append(committed_offsets(between.address, topic))
    return GroupOutcome(
        sent, (read[0], read[1]), (committed[0], committed[1]), between.spoken[row.name]
    )


def committed_offsets(bootstrap: str, group: str) -> Mapping[int, int]:
    """The committed offsets by partition, from the broker."""
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap, client_id="observer")) as admin:
        return {
            where.partition: what.offset
            for where, what in admin.list_group_offsets(group)[group].items()
        }


@pytest.fixture
def outcome(
    name: str, rounds: Mapping[str, Future[GroupOutcome]], client: Callable[[str], Client]
) -> GroupOutcome:
    client(name)
    return rounds[name].result()


@EVERY_CLIENT
def test_second_member_continues_at_the_commit_of_the_first(
    outcome: GroupOutcome, record_property: Callable[[str, object], None]
) -> None:
    record_property("spoken", outcome.spoken)
    first, second = outcome.read
    assert (len(first), len(second)) == (FIRST_READS, len(outcome.sent) - FIRST_READS)
    in_order = [
        (one.partition, one.offset, one.key, one.value)
        for partition in range(PARTITIONS)
        for one in [*first, *second]
        if one.partition == partition
    ]
    assert in_order == [
        (one.partition, index % EACH, one.key, one.value) for index, one in enumerate(outcome.sent)
    ]


@EVERY_CLIENT
def test_member_commits_the_offset_after_the_last_record_read(outcome: GroupOutcome) -> None:
    first, second = outcome.read
    assert [
        dict.fromkeys(range(PARTITIONS), 0) | dict(committed) for committed in outcome.committed
    ] == [
        offsets_after(first),
        offsets_after([*first, *second]),
    ]


def offsets_after(read: list[Record]) -> Mapping[int, int]:
    return {
        partition: sum(one.partition == partition for one in read)
        for partition in range(PARTITIONS)
    }
