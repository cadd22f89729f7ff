"""The gateway replies to members of consumer groups (KIP-848) field by field as Apache Kafka does.

Version 1 of the requests is compared with Kafka 4.3.1, version 0 with 3.9.2; errors of version 0
also with 4.3.1, in CI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.legacy_clients.brokers import are_required, gateway
from tests.peers.comparison import MATCHING_OPTIONS
from tests.peers.groups.group_comparison import (
    REBALANCE_IN_PROGRESS,
    ClassicMember,
    ConsumerMember,
    RecordedBroker,
    assignment,
    play,
    subscription,
)
from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import MODERN, VERSION, Kafka

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("consumer protocol alike")]

#: Longer than any scenario takes on a busy machine, except those that wait for the timeout.
SESSION_MS = 30_000

#: Settings of the gateway and of Kafka, by Kafka's names.
SETTINGS = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
}
#: Additional settings of Kafka. Its minimum timeouts are higher by default, and Kafka 4 computes
#: assignments in the background, at most once a second.
KAFKA = {
    VERSION: {
        "group.coordinator.rebalance.protocols": "classic,consumer",
        "group.consumer.min.session.timeout.ms": "5000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
    },
    MODERN: {
        "group.consumer.min.session.timeout.ms": "5000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.assignment.interval.ms": "0",
        "group.consumer.assignor.offload.enable": "false",
    },
}
GATEWAY = {"group.consumer.assignment.interval.ms": "0"}

#: group.consumer.migration.policy: the conversions between group protocols that are allowed.
BOTH_WAYS = "bidirectional"
ONE_WAY = ("upgrade", "downgrade", "disabled")

Scenario = Callable[[RecordedBroker], None]


@dataclass(frozen=True, slots=True)
class BrokerPair:
    """`addresses` are the gateway's and Kafka's."""

    addresses: tuple[str, str]
    is_modern: bool
    """Whether this is Kafka 4. The protocol was a preview in 3.9; where its rules changed, the
    gateway follows Kafka 4.
    """
    policy: str

    @property
    def version(self) -> int:
        return int(self.is_modern)

    def play(self, scenario: Scenario, version: int | None = None) -> None:
        """`version` is that of the requests, if not the newest."""
        # A new group's first epoch is 2 in Kafka 4, and 1 in Kafka 3.9 and in the gateway.
        chosen = self.version if version is None else version
        play(self.addresses, chosen, int(self.is_modern), scenario)


IN_3, IN_4 = (VERSION, BOTH_WAYS), (MODERN, BOTH_WAYS)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(IN_3, id=VERSION, marks=pytest.mark.slow),
        pytest.param(IN_4, id=MODERN),
    ],
)
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerPair]:
    version, policy = request.param
    common = SETTINGS | {"group.consumer.migration.policy": policy}
    arguments = [
        word
        for name, value in (common | GATEWAY).items()
        for word in ("--set", f"{name.replace('.', '_')}={value}")
    ]
    settings = {name.replace(".", "_"): value for name, value in (common | KAFKA[version]).items()}
    folder = tmp_path_factory.mktemp("gateway")
    try:
        with (
            Kafka.start(version=version, **settings) as kafka,
            gateway(folder, arguments=[*MATCHING_OPTIONS, *arguments]) as ours,
        ):
            yield BrokerPair((ours.bootstrap, kafka.bootstrap), version == MODERN, policy)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


in_kafka_4 = pytest.mark.parametrize(
    "brokers", [pytest.param(IN_4, id=MODERN)], indirect=True, scope="module"
)
#: Every other policy needs a separate broker.
every_policy = pytest.mark.parametrize(
    "brokers",
    [
        pytest.param(IN_4, id=MODERN),
        *(pytest.param((MODERN, one), id=one, marks=pytest.mark.slow) for one in ONE_WAY),
    ],
    indirect=True,
    scope="module",
)


def test_single_member_joins_and_leaves_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "alone"
        side.create_topic("alone", 2)
        side.describe(group)
        one = ConsumerMember(side, group, "m-1")
        one.heartbeat(member_epoch=1)
        one.join("alone")
        side.describe(group)
        one.heartbeat()
        one.report_owned(alone=[0, 1])
        one.full_heartbeat("alone", owned={"alone": [0, 1]})
        one.heartbeat(server_assignor="uniform")
        one.heartbeat(subscribed_topic_names=["alone"])
        for epoch in (0, one.epoch + 1, one.epoch + 7, -3):
            one.heartbeat(member_epoch=epoch)
        one.heartbeat()
        ConsumerMember(side, group, "m-2").heartbeat(member_epoch=1)
        side.delete_groups(group)
        for state in ("stable", "Stable", "reconciling", "Empty", "nonsense"):
            side.list_group(group, states=[state])
        for kind in ("consumer", "Consumer", "classic", "nonsense"):
            side.list_group(group, types=[kind])
        one.leave()
        side.describe(group)
        one.heartbeat()
        one.leave()
        one.join("alone")
        one.leave()
        side.delete_groups(group, "no-such")
        side.describe(group)
        one.heartbeat()

    brokers.play(scenario)


def test_join_without_member_id_is_answered_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("nameless", 1)
        one = ConsumerMember(side, "nameless")
        one.join("nameless")
        one.heartbeat()
        one.leave()

    brokers.play(scenario)


@pytest.mark.parametrize("version", [0, None])
def test_invalid_heartbeats_get_same_errors(brokers: BrokerPair, version: int | None) -> None:
    group = f"refused-{version}"

    def scenario(side: RecordedBroker) -> None:
        side.create_topic(group, 1)
        one = ConsumerMember(side, group, "m-1")
        refused = [
            {"group_id": ""},
            {"group_id": "  "},
            {"instance_id": ""},
            {"rack_id": ""},
            {"rebalance_timeout_ms": -1},
            {"topic_partitions": None},
            {"topic_partitions": one.rows({group: [0]})},
            {"subscribed_topic_names": None},
            {"server_assignor": ""},
            {"server_assignor": "cooperative-sticky"},
            {"member_epoch": -1},
            {"member_epoch": -2},
            {"member_epoch": -3},
            {"member_epoch": 1},
            {"member_epoch": 1, "member_id": ""},
            {"member_epoch": -1, "member_id": ""},
            {"member_epoch": -2, "instance_id": "i", "member_id": "m"},
            {"member_epoch": 1, "instance_id": "i"},
        ]
        for fields in refused:
            one.join(group, **fields)
            one.epoch = 0
        side.describe(group)
        for timeout in (0, 1, 2**31 - 1):
            member = ConsumerMember(side, group, f"m-{timeout}")
            member.join(group, rebalance_timeout_ms=timeout)
            member.leave()
        member = ConsumerMember(side, group, "empty")
        if brokers.is_modern:
            member.join(subscribed_topic_names=[])
        member.join(group, group, "never-made", "no/topic", "")
        side.describe(group)
        member.heartbeat(subscribed_topic_names=[])
        member.report_owned()
        side.describe(group)
        member.leave()

    brokers.play(scenario, version)


def test_partitions_are_revoked_before_reassignment_as_in_kafka(brokers: BrokerPair) -> None:
    def describe_group(side: RecordedBroker) -> None:
        # Kafka 3.9 does not show partitions that are pending revocation.
        if brokers.is_modern:
            side.describe("steps")

    def scenario(side: RecordedBroker) -> None:
        side.create_topic("steps", 4)
        first, second, third = (
            ConsumerMember(side, "steps", f"m-{number}") for number in (1, 2, 3)
        )
        first.join("steps")
        first.report_owned(steps=[0, 1, 2, 3])
        second.join("steps")
        side.describe("steps")
        second.heartbeat()
        first.heartbeat()
        describe_group(side)
        # The member still owns the revoked partitions, then a part of them, then none.
        first.heartbeat()
        first.report_owned(steps=[0, 1, 2, 3])
        first.commit(steps=[0, 3])
        side.list_group("steps", states=["reconciling"])
        second.heartbeat()
        first.report_owned(steps=[0, 1, 3])
        second.heartbeat()
        first.report_owned(steps=[0, 1])
        side.describe("steps")
        second.heartbeat()
        second.report_owned(steps=[2, 3])
        side.describe("steps")
        third.join("steps")
        third.heartbeat()
        first.heartbeat()
        second.heartbeat()
        describe_group(side)
        # A member leaves before it has given up revoked partitions.
        first.leave()
        third.heartbeat()
        second.heartbeat()
        describe_group(side)
        if brokers.is_modern:
            second.report_owned(steps=[2])
        second.report_owned(steps=[])
        third.heartbeat()
        side.describe("steps")
        second.leave()
        third.heartbeat()
        third.leave()

    brokers.play(scenario)


def test_lost_reply_is_repeated_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("lost", 4)
        first, second = ConsumerMember(side, "lost", "m-1"), ConsumerMember(side, "lost", "m-2")
        first.join("lost")
        second.join("lost")
        before = first.epoch
        first.heartbeat()
        first.report_owned(lost=[0, 1])
        # The member has not received its new epoch.
        first.heartbeat(member_epoch=before)
        first.full_heartbeat("lost", owned={"lost": [0, 1]}, member_epoch=before)
        first.full_heartbeat("lost", owned={"lost": [0, 1, 2]}, member_epoch=before)
        first.full_heartbeat("lost", owned={}, member_epoch=before)
        first.full_heartbeat("lost", owned={"lost": [0, 1]}, member_epoch=before + 2)
        second.join("lost")
        second.join("lost", topic_partitions=None)
        side.describe("lost")
        second.heartbeat()
        if brokers.is_modern:
            first.join("lost")
            side.describe("lost")
        first.leave()
        second.leave()

    brokers.play(scenario)


def test_uniform_assignor_gives_same_partition_counts(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("uniform", 5)
        members = [ConsumerMember(side, "uniform", f"m-{number}") for number in range(2)]
        first, second = members
        first.join("uniform", assignor=None)
        assert first.assigned == {"uniform": [0, 1, 2, 3, 4]}
        second.join("uniform", assignor="uniform")
        del side.answers[:]
        first.heartbeat()
        assert first.assigned is not None
        first.report_owned(**first.assigned)
        second.heartbeat()
        second.heartbeat()
        assert second.assigned is not None
        assert sorted(first.assigned["uniform"] + second.assigned["uniform"]) == [0, 1, 2, 3, 4]
        described = side.describe("uniform")
        del side.answers[:]
        counts = sorted(
            len(row.partitions)
            for one in described.members
            for row in one.assignment.topic_partitions
        )
        side.answers.append(("uniform", (described.assignor_name, counts)))
        # The assignor requested by most members is used.
        first.heartbeat(server_assignor="range")
        second.heartbeat(server_assignor="range")
        described = side.describe("uniform")
        del side.answers[-3:]
        side.answers.append(("range", described.assignor_name))
        assert described.group_epoch == described.assignment_epoch == first.epoch

    brokers.play(scenario)


def test_changed_subscription_changes_assignment_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("this", 2)
        side.create_topic("that", 2)
        first, second = (
            ConsumerMember(side, "changed", "m-1"),
            ConsumerMember(side, "changed", "m-2"),
        )
        first.join("this")
        second.join("this", "that")
        first.heartbeat()
        first.report_owned(this=[0])
        second.heartbeat()
        second.report_owned(this=[1], that=[0, 1])
        side.describe("changed")
        first.heartbeat(subscribed_topic_names=["that", "this"])
        side.describe("changed")
        second.heartbeat()
        second.report_owned(this=[1], that=[1])
        first.heartbeat()
        first.report_owned(this=[0], that=[0])
        second.heartbeat(subscribed_topic_names=["this"])
        if brokers.is_modern:
            side.describe("changed")
        second.report_owned(this=[1])
        first.heartbeat()
        first.report_owned(this=[0], that=[0, 1])
        side.describe("changed")
        first.heartbeat(subscribed_topic_names=["nowhere"])
        first.report_owned()
        second.heartbeat()
        second.report_owned(this=[0, 1])
        side.describe("changed")

    brokers.play(scenario)


def test_static_member_rejoins_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("static", 4)
        first, second = (
            ConsumerMember(side, "static", "m-1", "one"),
            ConsumerMember(side, "static", "m-2", "two"),
        )
        first.join("static")
        second.join("static")
        first.heartbeat()
        first.report_owned(static=[0, 1])
        second.heartbeat()
        side.describe("static")
        # The instance id is in use by a member that has not left.
        ConsumerMember(side, "static", "m-3", "one").join("static")
        ConsumerMember(side, "static", "m-3", "one").heartbeat(member_epoch=first.epoch)
        ConsumerMember(side, "static", "m-3", "three").heartbeat(member_epoch=1)
        ConsumerMember(side, "static", "m-1", "three").heartbeat(member_epoch=first.epoch)
        ConsumerMember(side, "static", "m-1", "two").heartbeat(member_epoch=first.epoch)
        ConsumerMember(side, "static", "m-1").heartbeat(member_epoch=first.epoch)
        ConsumerMember(side, "static", "m-3", "one").leave(-2)
        ConsumerMember(side, "static", "m-3", "one").leave(-1)
        epoch = first.epoch
        first.leave(-2)
        side.describe("static")
        second.heartbeat()
        first.heartbeat(member_epoch=epoch)
        side.commit("static", {"static": [0]}, first.id, epoch)
        side.commit("static", {"static": [0]}, first.id, -2)
        side.fetch_offsets("static", "static", 1, first.id, -2)
        again = ConsumerMember(side, "static", "m-4", "one")
        again.join("static")
        side.describe("static")
        first.heartbeat(member_epoch=epoch)
        side.commit("static", {"static": [0]}, first.id, epoch)
        side.commit("static", {"static": [0]}, again.id, again.epoch)
        # The member rejoins with another subscription, so the target assignment changes.
        again.leave(-2)
        third = ConsumerMember(side, "static", "m-5", "one")
        third.join("nowhere")
        side.describe("static")
        second.heartbeat()
        third.leave(-2)
        side.describe("static")
        third.leave()
        second.leave(-2)
        side.describe("static")
        side.delete_groups("static")
        second.leave(-1)
        side.describe("static")
        side.delete_groups("static")

    brokers.play(scenario)


def test_offset_requests_with_wrong_epoch_get_same_errors(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("commits", 4)
        group = "commits"
        # Before the group exists, and while it has members.
        side.commit(group, {"commits": [0]}, "m-1", 1)
        side.fetch_offsets(group, "commits", 4, "m-1", 1)
        side.fetch_offsets(group, "commits", 4)
        first, second = ConsumerMember(side, group, "m-1"), ConsumerMember(side, group, "m-2")
        first.join("commits")
        first.commit(commits=[0, 1])
        side.fetch_offsets(group, "commits", 4, first.id, first.epoch)
        for epoch in (0, first.epoch + 1, -1, -2):
            first.commit(epoch, commits=[2])
            side.fetch_offsets(group, "commits", 4, first.id, epoch)
        for version in range(2, 9):
            first.commit(version=version, commits=[3])
        side.commit(group, {"commits": [3]})
        side.commit(group, {"commits": [3]}, "unknown", first.epoch)
        side.commit(group, {"commits": [3]}, "", first.epoch)
        side.commit(group, {"commits": [0, 9], "nowhere": [0]}, first.id, first.epoch)
        side.fetch_offsets(group, "commits", 4)
        side.fetch_offsets(group, "commits", 4, "unknown", first.epoch)
        side.fetch_offsets(group, "commits", 4, "", first.epoch)
        side.fetch_offsets(group, "commits", 4, "", -1)
        side.fetch_offsets(group, "nowhere", 2, first.id, first.epoch)
        first.leave()
        first.commit(1, commits=[0])
        side.commit(group, {"commits": [3]})
        side.fetch_offsets(group, "commits", 4, first.id, first.epoch)
        side.fetch_offsets(group, "commits", 4)
        side.describe(group)
        second.join("commits")
        side.fetch_offsets(group, "commits", 4, second.id, second.epoch)

    brokers.play(scenario)


def test_created_grown_and_deleted_topics_change_assignment_as_in_kafka(
    brokers: BrokerPair,
) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "topics"
        one = ConsumerMember(side, group, "m-1")
        one.join("later", "early")
        side.describe(group)
        side.create_topic("later", 1)
        one.wait_for_assignment({"later": [0]})
        side.describe(group)
        side.add_partitions("later", 3)
        one.wait_for_assignment({"later": [0, 1, 2]})
        side.create_topic("early", 1)
        one.wait_for_assignment({"later": [0, 1, 2], "early": [0]})
        one.report_owned(later=[0, 1, 2], early=[0])
        one.commit(later=[0, 1], early=[0])
        side.describe(group)
        side.delete_topic("later")
        one.wait_for_assignment({"early": [0]})
        side.describe(group)
        one.report_owned(early=[0])
        side.describe(group)
        side.fetch_offsets(group, "later", 3, one.id, one.epoch)
        side.fetch_offsets(group, "early", 1, one.id, one.epoch)

    brokers.play(scenario)


def test_member_is_removed_after_rebalance_timeout_as_in_kafka(
    brokers: BrokerPair,
) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("gone", 4)
        slow, eager = ConsumerMember(side, "slow", "m-1"), ConsumerMember(side, "slow", "m-2")
        slow.join("gone", rebalance_timeout_ms=1_000)
        eager.join("gone")
        slow.heartbeat()
        side.wait_until(
            lambda: (
                bool(slow.report_owned(gone=[0, 1, 2, 3]).error_code) and side.state("slow")[1] == 1
            ),
            "the member is removed",
        )
        slow.heartbeat()
        side.describe("slow")
        eager.heartbeat()
        eager.leave()

    brokers.play(scenario)


@pytest.mark.slow
@in_kafka_4
def test_sessions_of_both_protocols_expire_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("sessions", 4)
        member, static = (
            ConsumerMember(side, "silent", "m-1"),
            ConsumerMember(side, "silent", "m-2", "i"),
        )
        away = ConsumerMember(side, "away", "m-1", "i")
        away.join("sessions")
        away.leave(-2)
        static.join("sessions")
        member.join("sessions")
        # A classic member of a consumer group has the session timeout that it requested, and must
        # fetch its assignment within the rebalance timeout.
        lively = ConsumerMember(side, "lively", "!")
        lively.join("sessions")
        classic, slow = (
            ClassicMember(side, "lively", "sessions"),
            ClassicMember(side, "lively", "sessions"),
        )
        # Neither timeout expires before the steps in between.
        for one, session_ms, rebalance_ms in ((classic, 10_000, 60_000), (slow, 60_000, 10_000)):
            one.join(session_timeout_ms=session_ms, rebalance_timeout_ms=rebalance_ms)
            lively.heartbeat()
            lively.report_owned(sessions=[0, 1])
            if one is classic:
                one.sync()
            lively.wait_for_assignment({"sessions": [0, 1, 2, 3]})
            lively.report_owned(sessions=[0, 1, 2, 3])
        for one in (classic, slow):
            one.heartbeat()
        side.describe("lively")
        side.wait_until(
            lambda: side.state("silent")[1] == side.state("away")[1] == 0, "the members are removed"
        )
        side.describe("silent")
        side.describe("away")
        member.heartbeat()
        away.join("sessions")

    brokers.play(scenario)


@in_kafka_4
def test_regex_subscriptions_are_resolved_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "regex"
        for name, partitions in {"re-orders": 2, "re-bills": 1, "xre-orders": 1}.items():
            side.create_topic(name, partitions)
        one, two = ConsumerMember(side, group, "m-1"), ConsumerMember(side, group, "m-2")
        for wrong in ("[", "(?=a)", "a**", "\\"):
            one.join(subscribed_topic_regex=wrong)
        side.describe(group)
        one.join(subscribed_topic_regex="re-.*")
        # Kafka resolves regular expressions in the background.
        side.answers.pop()
        one.wait_for_assignment({"re-orders": [0, 1], "re-bills": [0]})
        side.describe(group)
        one.heartbeat(subscribed_topic_regex="[")
        one.heartbeat()
        # Topics of the regular expression and of the name list are combined.
        one.heartbeat(subscribed_topic_names=["xre-orders"])
        one.wait_for_assignment({"re-orders": [0, 1], "re-bills": [0], "xre-orders": [0]})
        one.heartbeat(subscribed_topic_regex="", subscribed_topic_names=["re-bills"])
        one.report_owned(**{"re-bills": [0]})
        side.describe(group)
        one.heartbeat(subscribed_topic_regex="re-(orders|bills)")
        side.answers.pop()
        one.wait_for_assignment({"re-orders": [0, 1], "re-bills": [0]})
        two.join(subscribed_topic_regex="re-(orders|bills)")
        side.describe(group)
        one.leave()
        two.wait_for_assignment({"re-orders": [0, 1], "re-bills": [0]})
        two.leave()
        side.describe(group)
        two.join(subscribed_topic_regex="")
        two.heartbeat()
        side.describe(group)

    brokers.play(scenario)


# Members of both protocols in one group


def single_member_group(
    side: RecordedBroker, group: str, topic: str, partitions: int
) -> ClassicMember:
    """A classic group with one member that owns all partitions. A consumer group continues from its
    generation.
    """
    side.start_group(classic=True)
    one = ClassicMember(side, group, topic)
    one.join()
    one.sync({one.id: assignment(**{topic: range(partitions)})})
    one.heartbeat()
    return one


@every_policy
def test_classic_group_is_upgraded_and_downgraded_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "upgraded"
        side.create_topic(group, 4)
        old = single_member_group(side, group, group, 4)
        old.commit(upgraded=[0])
        side.describe(group)
        new = ConsumerMember(side, group, "!")
        new.join(group)
        side.describe(group)
        side.delete_groups(group)
        # The classic member sees REBALANCE_IN_PROGRESS in its heartbeat and rejoins as usual; a
        # consumer member must first give up partitions.
        old.commit(upgraded=[1])
        old.heartbeat()
        old.heartbeat(99)
        new.heartbeat()
        old.protocols = {"range": subscription(group, owned={})}
        old.join()
        side.describe(group)
        old.commit(upgraded=[2])
        old.sync()
        old.heartbeat()
        new.heartbeat()
        new.report_owned(upgraded=[0, 1])
        side.describe(group)
        old.commit(upgraded=[3])
        old.commit(version=9, upgraded=[3])
        old.commit(0, upgraded=[3])
        side.commit(group, {"upgraded": [3]}, new.id, new.epoch, version=8)
        new.commit(upgraded=[0])
        old.sync(generation_id=1)
        old.sync(protocol_name="sticky")
        old.sync(protocol_type="connect")
        side.describe(group)
        # An unknown member, and a member of the consumer protocol that sends classic requests.
        ClassicMember(side, group, sticky=b"").join()
        ClassicMember(side, group, sticky=subscription(group)).join()
        ClassicMember(side, group, group).join(protocol_type="connect")
        stranger = ClassicMember(side, group, group)
        stranger.id, stranger.generation = new.id, new.epoch
        stranger.heartbeat()
        stranger.sync()
        # After the last member of the consumer protocol has left, the group is a classic group.
        new.leave()
        side.describe(group)
        new.heartbeat()
        old.heartbeat()
        old.join()
        old.sync({old.id: assignment(**{group: range(4)})})
        old.heartbeat()
        old.commit(upgraded=[0])
        side.fetch_offsets(group, group, 4)
        side.describe(group)
        old.leave()
        side.describe(group)
        # An empty group can be converted either way. With a policy that does not allow downgrades
        # it has stayed a consumer group.
        side.start_group(classic=brokers.policy == "upgrade")
        new.join(group)
        new.leave()
        side.start_group(classic=True)
        again = ClassicMember(side, group, group)
        again.join()
        side.describe(group)
        again.leave()
        side.delete_groups(group)

    brokers.play(scenario)


@every_policy
def test_classic_member_joins_consumer_group_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "joined"
        side.create_topic(group, 4)
        # A member id that sorts before all generated ids.
        new = ConsumerMember(side, group, "!")
        new.join(group)
        for version in (0, 3, 4, 9):
            old = ClassicMember(side, group, group)
            old.join(version)
            old.sync()
            old.heartbeat()
            old.leave()
            old.heartbeat()
            new.heartbeat()
        old = ClassicMember(side, group, group)
        old.join()
        old.sync()
        side.describe(group)
        new.heartbeat()
        new.report_owned(joined=[0, 1])
        side.describe(group)
        for _ in range(2):
            if old.heartbeat().error_code == REBALANCE_IN_PROGRESS:
                old.join()
                old.sync()
        side.describe(group)
        new.leave(-1)
        side.describe(group)
        old.heartbeat()
        old.leave()

    brokers.play(scenario)


@every_policy
def test_classic_member_revokes_partitions_by_rejoining_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "cooperative"
        side.create_topic(group, 4)
        side.start_group(classic=True)
        old = ClassicMember(
            side, group, cooperative_sticky=subscription(group, version=3, owned={}, generation=-1)
        )
        old.join()
        old.sync({old.id: assignment(3, cooperative=range(4))})
        # A member id that sorts after all generated ids.
        new = ConsumerMember(side, group, "~")
        new.join(group)
        old.heartbeat()
        # The member has not given up its partitions; then it reports that it has.
        old.protocols = {
            "cooperative_sticky": subscription(
                group, version=3, owned={group: range(4)}, generation=old.generation
            )
        }
        old.join()
        old.sync()
        new.heartbeat()
        side.describe(group)
        old.protocols = {
            "cooperative_sticky": subscription(
                group, version=3, owned={group: [0, 1]}, generation=old.generation
            )
        }
        old.heartbeat()
        old.join()
        old.sync()
        old.heartbeat()
        new.heartbeat()
        side.describe(group)
        # After the new member leaves, its partitions return to the classic member, in a classic
        # group.
        new.leave()
        old.heartbeat()
        side.describe(group)
        old.join()

    brokers.play(scenario)


@in_kafka_4
def test_unusual_classic_groups_are_kept_or_converted_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        side.create_topic("strange", 2)
        side.start_group(classic=True)
        strange = {
            "connect": ({"protocol_type": "connect"}, {"range": subscription("strange")}, b""),
            "unreadable": ({}, {"range": b"\0"}, b""),
            "notes": (
                {},
                {"sticky": subscription("strange")},
                assignment(notes=b"note", strange=[0, 1]),
            ),
            "unread-assignment": ({}, {"range": subscription("strange")}, b"\0"),
            "no-assignment": ({}, {"range": subscription("strange")}, b""),
        }
        for name, (fields, protocols, words) in strange.items():
            group = f"strange-{name}"
            old = ClassicMember(side, group, **protocols)
            old.join(**fields)
            old.sync({old.id: words}, protocol_type=fields.get("protocol_type", "consumer"))
            new = ConsumerMember(side, group, "m-1")
            new.heartbeat(member_epoch=1)
            new.join("strange")
            old.heartbeat()
            side.describe(group)

    brokers.play(scenario)


@every_policy
def test_static_member_changes_protocol_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "static-changes"
        side.create_topic(group, 2)
        side.start_group(classic=True)
        old = ClassicMember(side, group, group, instance="one")
        old.join()
        old.sync({old.id: assignment(**{group: [0, 1]})})
        # The same instance id rejoins with the consumer protocol. It is the only member, so the
        # group becomes a consumer group.
        new = ConsumerMember(side, group, "m-1", "one")
        new.join(group, "nowhere")
        side.describe(group)
        old.heartbeat()
        old.commit(**{group: [0]})
        new.report_owned(**{group: [0, 1]})
        side.describe(group)
        # And back: a member that replaces it uses the classic protocol, whether or not the old one
        # has left.
        for is_gone in (False, True):
            if is_gone:
                new.leave(-2)
            back = ClassicMember(side, group, group, "nowhere", instance="one")
            back.join()
            side.describe(group)
            back.sync()
            back.heartbeat()
            new = ConsumerMember(side, group, f"m-2-{is_gone}", "one")
            new.join("nowhere")
            new.heartbeat(subscribed_topic_names=[group, "nowhere"])
            new.report_owned(**{group: [0, 1]})
            side.describe(group)

    brokers.play(scenario)


@in_kafka_4
def test_members_are_removed_by_leave_group_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "put-out"
        side.create_topic(group, 4)
        new, static = ConsumerMember(side, group, "!"), ConsumerMember(side, group, "m-2", "two")
        new.join(group)
        static.join(group)
        old = ClassicMember(side, group, group, instance="three")
        old.join()
        for names in (
            ("!", None),
            ("unknown", None),
            ("", "unknown"),
            ("unknown", "two"),
            ("!", "two"),
            ("", "two"),
            ("", "three"),
        ):
            side.remove_members(group, names)
            side.describe(group)
        side.remove_members(group, ("m-2", "two"), ("!", None))
        side.describe(group)
        new.heartbeat()

    brokers.play(scenario)


@in_kafka_4
def test_offsets_of_subscribed_topics_cannot_be_deleted_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "kept"
        for name in ("kept-a", "kept-b", "kept-c"):
            side.create_topic(name, 1)
        side.commit(group, {"kept-a": [0], "kept-b": [0], "kept-c": [0]})
        one = ConsumerMember(side, group, "m-1")
        one.join("kept-a", subscribed_topic_regex="kept-b")
        side.answers.pop()
        one.wait_for_assignment({"kept-a": [0], "kept-b": [0]})
        # Kafka reaches this state in two steps.
        side.answers.pop()
        side.delete_offsets(group, "kept-a", "kept-b", "kept-c", "nowhere")
        side.fetch_offsets(group, "kept-c", 1)
        one.leave()
        side.delete_offsets(group, "kept-a", "kept-b", "nowhere")
        side.fetch_offsets(group, "kept-a", 1)

    brokers.play(scenario)


@in_kafka_4
def test_classic_members_need_common_assignor_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "spoken"
        side.create_topic(group, 4)
        ConsumerMember(side, group, "!").join(group)
        both = ClassicMember(side, group, roundrobin=subscription(group), range=subscription(group))
        both.join()
        both.sync()
        both.sync(protocol_name="range")
        sticky, old, alike = (
            {"sticky": subscription(group)},
            {"range": subscription(version=0)},
            {"roundrobin": subscription(group)},
        )
        for number, protocols in enumerate((sticky, {}, old, alike)):
            other = ClassicMember(side, group, instance=f"i{number}")
            other.protocols = protocols
            other.join()
            if other.generation > 0:
                other.sync()
                other.leave()
        both.join(session_timeout_ms=1)
        both.join()
        both.leave()
        side.describe(group)

    brokers.play(scenario)


@every_policy
def test_static_member_changes_protocol_in_group_of_two_as_in_kafka(brokers: BrokerPair) -> None:
    def scenario(side: RecordedBroker) -> None:
        group = "static-beside"
        side.create_topic(group, 4)
        stays, new = (
            ConsumerMember(side, group, "m-1", "one"),
            ConsumerMember(side, group, "m-2", "two"),
        )
        stays.join(group)
        new.join(group)
        stays.heartbeat()
        stays.report_owned(**{group: [0, 1]})
        new.heartbeat()
        # The instance id is still in use; the member has not left.
        old = ClassicMember(side, group, group, instance="two")
        old.join()
        new.heartbeat()
        side.describe(group)
        old.sync()
        again = ClassicMember(side, group, group, instance="two")
        again.join()
        old.heartbeat()
        again.sync()
        side.describe(group)
        new = ConsumerMember(side, group, "m-3", "two")
        new.join(group)
        again.heartbeat()
        again.commit(**{group: [2]})
        side.describe(group)
        new.report_owned(**{group: [2, 3]})
        side.describe(group)

    brokers.play(scenario)
