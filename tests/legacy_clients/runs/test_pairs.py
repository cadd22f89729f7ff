"""Two ages of a client, or two libraries, share a topic in one group.

Each record is read once; one member leaves and the other continues at its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.legacy_clients.brokers import NO_REBALANCE_DELAY, StoreArguments, gateway, reference
from tests.legacy_clients.clients import Client, DriverFailed, Record, consume_in_group, table
from tests.legacy_clients.install import install
from tests.legacy_clients.pairs import all_pairs, chosen_pairs, is_short_form

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: Records per partition and step.
EACH = 5
PARTITIONS = (0, 1)
# They mostly wait.
AT_ONCE = 4
#: Pairs without a common assignor.
WITHOUT_COMMON_ASSIGNOR = (
    "java-0.9.0.1+kafkajs-2.2.4",
    pytest.param("kafkajs-1.0.1+java-4.4.0", marks=pytest.mark.slow),
    pytest.param("franz-go-1.22.2+kafka-python-3.0.12", marks=pytest.mark.slow),
)
#: One client of each pair only commits offsets and assigns partitions itself, as with Kafka 0.8.2.
MEMBER_AND_COMMITTER = (
    "java-0.9.0.1+sarama-1.10.0",
    pytest.param("sarama-1.10.0+java-4.4.0", marks=pytest.mark.slow),
    "sarama-1.19.0+confluent-2.16.1",
    pytest.param("kafka-python-3.0.12+sarama-1.19.0", marks=pytest.mark.slow),
)
#: A JVM on a busy machine starts in a few seconds, and each step waits for at most two heartbeats.
SECONDS = 400.0
#: Limit for a client that is refused, which takes two seconds on an idle machine; some clients
#: retry forever.
PATIENCE_SECONDS = 20.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pair" in metafunc.fixturenames:
        pairs = (
            all_pairs(table())
            if metafunc.config.getoption("--every-pair")
            else chosen_pairs(table())
        )
        metafunc.parametrize(
            "pair",
            [
                pytest.param(
                    f"{leads}+{follows}",
                    marks=() if is_short_form((leads, follows), table()) else (pytest.mark.slow,),
                )
                for leads, follows in pairs
            ],
        )


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """Partitions of each member while both were in the group, the assignor, the records read, and
    the final commits.
    """

    assignments: Mapping[str, Sequence[int]]
    assignor: str
    read: tuple[list[Record], list[Record]]
    committed: Mapping[int, int]


class GroupObserver:
    """An administrator that creates and fills the topics and queries the groups of all pairs."""

    def __init__(self, bootstrap: str) -> None:
        # It runs longer than the broker.
        settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(settings)
        self._producer = Producer(
            {**settings, "linger.ms": 0, "topic.metadata.refresh.fast.interval.ms": 20}
        )

    def create_topic(self, topic: str) -> None:
        self._admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result(SECONDS)

    def send(self, topic: str, partitions: Sequence[int], numbers: range) -> None:
        for partition in partitions:
            for number in numbers:
                self._producer.produce(topic, b"%d" % number, b"key", partition=partition)
        assert self._producer.flush(SECONDS) == 0

    def assignments(self, group: str) -> tuple[Mapping[str, Sequence[int]], str]:
        """Partitions by client id, and the assignor; empty until the group is stable."""
        seen = self._admin.describe_consumer_groups([group])[group].result(SECONDS)
        if seen.state is not ConsumerGroupState.STABLE:
            return {}, ""
        assignments = {
            one.client_id: sorted(part.partition for part in one.assignment.topic_partitions)
            for one in seen.members
        }
        return assignments, seen.partition_assignor

    def committed_offsets(self, group: str) -> Mapping[int, int]:
        seen = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[
            group
        ].result(SECONDS)
        return {part.partition: part.offset for part in seen.topic_partitions}


def wait_until(is_so: Callable[[], bool], what: str, *drivers: Future[list[Record]]) -> None:
    """Wait until it is so; fail if a driver fails or the time is up."""
    end = time.monotonic() + SECONDS
    while not is_so():
        for driver in drivers:
            if driver.done():
                driver.result()
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def bootstrap(
    is_reference: bool, store_arguments: StoreArguments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    ours = gateway(
        tmp_path_factory.mktemp("pairs"), arguments=NO_REBALANCE_DELAY, stored=store_arguments
    )
    with reference() if is_reference else ours as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def observer(bootstrap: str) -> GroupObserver:
    return GroupObserver(bootstrap)


@pytest.fixture(scope="module")
def rounds(
    request: pytest.FixtureRequest, bootstrap: str, observer: GroupObserver
) -> Iterator[Mapping[str, Future[PairOutcome]]]:
    """The outcomes of all tested pairs, which run concurrently."""
    items = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    pairs = [item.callspec.params["pair"] for item in items if "pair" in item.callspec.params]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {pair: pool.submit(share_group, pair, bootstrap, observer) for pair in pairs}


def share_group(pair: str, bootstrap: str, observer: GroupObserver) -> PairOutcome:
    """Run a pair. The leader leaves first, so that the other becomes leader."""
    leads, follows = (table()[name] for name in pair.split("+"))
    for row in (leads, follows):
        install(row)
    place = name_of(pair)
    observer.create_topic(place)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(
            consume_in_group, leads, bootstrap, place, place, EACH + 1, timeout=SECONDS
        )
        wait_until(
            lambda: observer.assignments(place)[0] == {leads.name: [0, 1]},
            "the first has all partitions",
            first,
        )
        second = pool.submit(
            consume_in_group, follows, bootstrap, place, place, 3 * EACH, timeout=SECONDS
        )
        assignments, assignor = wait_until_divided(observer, place, first, second)

        observer.send(place, PARTITIONS, range(EACH))
        wait_until(
            lambda: observer.committed_offsets(place) == dict.fromkeys(PARTITIONS, EACH),
            "each has committed what it read",
            first,
            second,
        )
        # No record is in flight in the other partition when the first member reads its last record
        # and leaves.
        observer.send(place, assignments[leads.name], range(EACH, EACH + 1))
        read = first.result()
        wait_until(
            lambda: observer.assignments(place)[0] == {follows.name: [0, 1]},
            "the remaining member has all partitions",
            second,
        )
        # Not yet the last records: KafkaJS 1.0.1 leaves before it commits if it ends with the first
        # fetch of a generation, and a later commit is refused.
        observer.send(place, PARTITIONS, range(EACH + 1, 2 * EACH))
        (left,), (stayed,) = assignments[leads.name], assignments[follows.name]
        wait_until(
            lambda: observer.committed_offsets(place) == {stayed: 2 * EACH - 1, left: 2 * EACH},
            "the remaining member has committed what it read",
            second,
        )
        observer.send(place, PARTITIONS, range(2 * EACH, 2 * EACH + 1))
        return PairOutcome(
            assignments, assignor, (read, second.result()), observer.committed_offsets(place)
        )


def wait_until_divided(
    observer: GroupObserver, place: str, *drivers: Future[list[Record]]
) -> tuple[Mapping[str, Sequence[int]], str]:
    """Wait until each member has a partition; return the assignments and the assignor."""
    seen: list[tuple[Mapping[str, Sequence[int]], str]] = []

    def is_divided() -> bool:
        seen.append(observer.assignments(place))
        return [*map(len, seen[-1][0].values())] == [1, 1]

    wait_until(is_divided, "each has a partition", *drivers)
    return seen[-1]


def name_of(pair: str) -> str:
    """The name of the pair's topic and group."""
    return pair.replace("+", "_")


@pytest.fixture
def outcome(
    pair: str, rounds: Mapping[str, Future[PairOutcome]], client: Callable[[str], Client]
) -> PairOutcome:
    for name in pair.split("+"):
        client(name)
    return rounds[pair].result()


def test_pair_shares_a_topic_and_the_remaining_member_continues_at_the_commit(
    pair: str, outcome: PairOutcome
) -> None:
    leads, follows = (table()[name] for name in pair.split("+"))
    (left,), (stayed,) = outcome.assignments[leads.name], outcome.assignments[follows.name]
    assert {left, stayed} == set(PARTITIONS)
    assert outcome.assignor in set(leads.assignors) & set(follows.assignors)
    first, second = map(numbers_by_partition, outcome.read)
    assert first == {left: list(range(EACH + 1))}
    assert second == {
        stayed: [*range(EACH), *range(EACH + 1, 2 * EACH + 1)],
        left: list(range(EACH + 1, 2 * EACH + 1)),
    }
    assert outcome.committed == {stayed: 2 * EACH, left: 2 * EACH + 1}


@pytest.mark.parametrize("strangers", WITHOUT_COMMON_ASSIGNOR)
def test_member_without_common_assignor_is_refused_without_a_rebalance(
    strangers: str, bootstrap: str, observer: GroupObserver, client: Callable[[str], Client]
) -> None:
    member, stranger = map(client, strangers.split("+"))
    place = name_of(strangers)
    observer.create_topic(place)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            consume_in_group, member, bootstrap, place, place, EACH, timeout=SECONDS
        )
        wait_until(
            lambda: observer.assignments(place)[0] == {member.name: [0, 1]},
            "the member has all partitions",
            reading,
        )
        with pytest.raises(
            DriverFailed, match=r"(?i)inconsistent|incompatible with those of existing members"
        ):
            consume_in_group(stranger, bootstrap, place, place, 1, timeout=PATIENCE_SECONDS)
        assert observer.assignments(place)[0] == {member.name: [0, 1]}
        observer.send(place, PARTITIONS[:1], range(EACH))
        assert numbers_by_partition(reading.result()) == {0: list(range(EACH))}


@pytest.mark.parametrize("successors", MEMBER_AND_COMMITTER)
def test_member_and_offset_only_client_continue_at_each_others_commits(
    successors: str,
    bootstrap: str,
    is_reference: bool,
    observer: GroupObserver,
    client: Callable[[str], Client],
) -> None:
    pair = [*map(client, successors.split("+"))]
    if is_reference and (whys := [row.unlike_kafka for row in pair if row.unlike_kafka]):
        pytest.skip(whys[0])
    place = name_of(successors)
    observer.create_topic(place)
    observer.send(place, PARTITIONS, range(EACH))
    # Neither one partition nor both.
    counts = (EACH - 2, EACH + 2)
    first, second = (
        numbers_by_partition(consume_in_group(row, bootstrap, place, place, count))
        for row, count in zip(pair, counts, strict=True)
    )
    together = [[*first.get(part, []), *second.get(part, [])] for part in PARTITIONS]
    assert together == [list(range(EACH))] * len(PARTITIONS)
    assert observer.committed_offsets(place) == dict.fromkeys(PARTITIONS, EACH)


def numbers_by_partition(records: Sequence[Record]) -> Mapping[int, list[int]]:
    """The numbers read, in order, by partition."""
    read: dict[int, list[int]] = {}
    for one in records:
        read.setdefault(one.partition, []).append(int(one.value or b"-1"))
    return read
