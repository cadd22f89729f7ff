"""What Apache Kafka answers to members of consumer groups (KIP-848), the gateway answers, field by field: Kafka 3.9.2 to version 0 of their
requests, 4.3.1 to version 1."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.legacy_clients.brokers import are_required, gateway
from tests.peers.cache import CannotInstall
from tests.peers.consumer_groups import (
    REBALANCE_IN_PROGRESS,
    ClassicMember,
    Member,
    Side,
    assignment,
    play,
    subscription,
)
from tests.peers.kafka import MODERN, VERSION, Kafka
from tests.peers.sides import ALIKE

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("consumer protocol alike")]

#: Longer than any scene takes on a busy machine, except those that wait for the timeout.
SESSION_MS = 30_000

#: For the gateway and for Kafka, by Kafka's names; members that are not heard of for so long are gone.
SETTINGS = {
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
}
#: What Kafka needs besides: it does not take such short times, and 4 makes targets beside the request, and no more than one a second.
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

#: Which way groups may change protocols.
BOTH_WAYS = "bidirectional"
ONE_WAY = ("upgrade", "downgrade", "disabled")

Scene = Callable[[Side], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """`addresses` are the gateway's and Kafka's."""

    addresses: tuple[str, str]
    is_modern: bool
    """Whether it is Kafka 4. In 3.9 it is a preview: what is done there by another rule than in 4 is done by that of 4 here."""
    policy: str

    @property
    def version(self) -> int:
        return int(self.is_modern)

    def play(self, scene: Scene) -> None:
        # A new group's first epoch is 2 in Kafka 4, and 1 before and here.
        play(self.addresses, self.version, int(self.is_modern), scene)


IN_3, IN_4 = (VERSION, BOTH_WAYS), (MODERN, BOTH_WAYS)


@pytest.fixture(scope="module", params=[IN_3, IN_4], ids=[VERSION, MODERN])
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
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
            gateway(folder, arguments=[*ALIKE, *arguments]) as ours,
        ):
            yield Stage((ours.bootstrap, kafka.bootstrap), version == MODERN, policy)
            # It would take its time to end in good order.
            os.kill(kafka.pid, signal.SIGKILL)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


in_kafka_4 = pytest.mark.parametrize(
    "stage", [pytest.param(IN_4, id=MODERN)], indirect=True, scope="module"
)
#: All but the usual way take a broker each.
whichever_way = pytest.mark.parametrize(
    "stage",
    [
        pytest.param(IN_4, id=MODERN),
        *(pytest.param((MODERN, one), id=one, marks=pytest.mark.slow) for one in ONE_WAY),
    ],
    indirect=True,
    scope="module",
)


def test_a_member_alone_lives_and_leaves_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "alone"
        side.makes_topic("alone", 2)
        side.looks(group)
        one = Member(side, group, "m-1")
        one.says(member_epoch=1)
        one.joins("alone")
        side.looks(group)
        one.says()
        one.has(alone=[0, 1])
        one.says_all("alone", owned={"alone": [0, 1]})
        one.says(server_assignor="uniform")
        one.says(subscribed_topic_names=["alone"])
        for epoch in (0, one.epoch + 1, one.epoch + 7, -3):
            one.says(member_epoch=epoch)
        one.says()
        Member(side, group, "m-2").says(member_epoch=1)
        side.deletes(group)
        for state in ("stable", "Stable", "reconciling", "Empty", "nonsense"):
            side.lists(group, states=[state])
        for kind in ("consumer", "Consumer", "classic", "nonsense"):
            side.lists(group, types=[kind])
        one.leaves()
        side.looks(group)
        one.says()
        one.leaves()
        one.joins("alone")
        one.leaves()
        side.deletes(group, "no-such")
        side.looks(group)
        one.says()

    stage.play(scene)


def test_a_newcomer_without_an_id_is_told_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("nameless", 1)
        one = Member(side, "nameless")
        one.joins("nameless")
        one.says()
        one.leaves()

    stage.play(scene)


def test_what_contradicts_itself_is_refused_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("refused", 1)
        one = Member(side, "refused", "m-1")
        refused = [
            {"group_id": ""},
            {"group_id": "  "},
            {"instance_id": ""},
            {"rack_id": ""},
            {"rebalance_timeout_ms": -1},
            {"topic_partitions": None},
            {"topic_partitions": one.rows({"refused": [0]})},
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
            one.joins("refused", **fields)
            one.epoch = 0
        side.looks("refused")
        for timeout in (0, 1, 2**31 - 1):
            member = Member(side, "refused", f"m-{timeout}")
            member.joins("refused", rebalance_timeout_ms=timeout)
            member.leaves()
        member = Member(side, "refused", "empty")
        if stage.is_modern:
            member.joins(subscribed_topic_names=[])
        member.joins("refused", "refused", "never-made", "no/topic", "")
        side.looks("refused")
        member.says(subscribed_topic_names=[])
        member.has()
        side.looks("refused")
        member.leaves()

    stage.play(scene)


def test_partitions_change_hands_in_two_steps_alike(stage: Stage) -> None:
    def looks(side: Side) -> None:
        # What somebody has to give back is not shown in 3.9.
        if stage.is_modern:
            side.looks("steps")

    def scene(side: Side) -> None:
        side.makes_topic("steps", 4)
        first, second, third = (Member(side, "steps", f"m-{number}") for number in (1, 2, 3))
        first.joins("steps")
        first.has(steps=[0, 1, 2, 3])
        second.joins("steps")
        side.looks("steps")
        second.says()
        first.says()
        looks(side)
        # It still has what it was told to give back, then a part of it, then nothing of it.
        first.says()
        first.has(steps=[0, 1, 2, 3])
        first.commits(steps=[0, 3])
        side.lists("steps", states=["reconciling"])
        second.says()
        first.has(steps=[0, 1, 3])
        second.says()
        first.has(steps=[0, 1])
        side.looks("steps")
        second.says()
        second.has(steps=[2, 3])
        side.looks("steps")
        third.joins("steps")
        third.says()
        first.says()
        second.says()
        looks(side)
        # One goes before it has given anything back.
        first.leaves()
        third.says()
        second.says()
        looks(side)
        if stage.is_modern:
            second.has(steps=[2])
        second.has(steps=[])
        third.says()
        side.looks("steps")
        second.leaves()
        third.says()
        third.leaves()

    stage.play(scene)


def test_an_answer_that_was_lost_is_given_again_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("lost", 4)
        first, second = Member(side, "lost", "m-1"), Member(side, "lost", "m-2")
        first.joins("lost")
        second.joins("lost")
        before = first.epoch
        first.says()
        first.has(lost=[0, 1])
        # It has not heard of its new epoch.
        first.says(member_epoch=before)
        first.says_all("lost", owned={"lost": [0, 1]}, member_epoch=before)
        first.says_all("lost", owned={"lost": [0, 1, 2]}, member_epoch=before)
        first.says_all("lost", owned={}, member_epoch=before)
        first.says_all("lost", owned={"lost": [0, 1]}, member_epoch=before + 2)
        second.joins("lost")
        second.joins("lost", topic_partitions=None)
        side.looks("lost")
        second.says()
        if stage.is_modern:
            first.joins("lost")
            side.looks("lost")
        first.leaves()
        second.leaves()

    stage.play(scene)


def test_uniform_shares_alike_as_far_as_numbers_go(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("uniform", 5)
        members = [Member(side, "uniform", f"m-{number}") for number in range(2)]
        first, second = members
        first.joins("uniform", assignor=None)
        assert first.given == {"uniform": [0, 1, 2, 3, 4]}
        second.joins("uniform", assignor="uniform")
        del side.answers[:]
        first.says()
        assert first.given is not None
        first.has(**first.given)
        second.says()
        second.says()
        assert second.given is not None
        assert sorted(first.given["uniform"] + second.given["uniform"]) == [0, 1, 2, 3, 4]
        described = side.looks("uniform")
        del side.answers[:]
        counts = sorted(
            len(row.partitions)
            for one in described.members
            for row in one.assignment.topic_partitions
        )
        side.answers.append(("uniform", (described.assignor_name, counts)))
        # What most members want is what is done.
        first.says(server_assignor="range")
        second.says(server_assignor="range")
        described = side.looks("uniform")
        del side.answers[-3:]
        side.answers.append(("range", described.assignor_name))
        assert described.group_epoch == described.assignment_epoch == first.epoch

    stage.play(scene)


def test_who_subscribes_to_something_else_gets_that_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("this", 2)
        side.makes_topic("that", 2)
        first, second = Member(side, "changed", "m-1"), Member(side, "changed", "m-2")
        first.joins("this")
        second.joins("this", "that")
        first.says()
        first.has(this=[0])
        second.says()
        second.has(this=[1], that=[0, 1])
        side.looks("changed")
        first.says(subscribed_topic_names=["that", "this"])
        side.looks("changed")
        second.says()
        second.has(this=[1], that=[1])
        first.says()
        first.has(this=[0], that=[0])
        second.says(subscribed_topic_names=["this"])
        if stage.is_modern:
            side.looks("changed")
        second.has(this=[1])
        first.says()
        first.has(this=[0], that=[0, 1])
        side.looks("changed")
        first.says(subscribed_topic_names=["nowhere"])
        first.has()
        second.says()
        second.has(this=[0, 1])
        side.looks("changed")

    stage.play(scene)


def test_a_static_member_comes_back_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("static", 4)
        first, second = Member(side, "static", "m-1", "one"), Member(side, "static", "m-2", "two")
        first.joins("static")
        second.joins("static")
        first.says()
        first.has(static=[0, 1])
        second.says()
        side.looks("static")
        # There is one of each, and it is not gone.
        Member(side, "static", "m-3", "one").joins("static")
        Member(side, "static", "m-3", "one").says(member_epoch=first.epoch)
        Member(side, "static", "m-3", "three").says(member_epoch=1)
        Member(side, "static", "m-1", "three").says(member_epoch=first.epoch)
        Member(side, "static", "m-1", "two").says(member_epoch=first.epoch)
        Member(side, "static", "m-1").says(member_epoch=first.epoch)
        Member(side, "static", "m-3", "one").leaves(-2)
        Member(side, "static", "m-3", "one").leaves(-1)
        epoch = first.epoch
        first.leaves(-2)
        side.looks("static")
        second.says()
        first.says(member_epoch=epoch)
        side.commits("static", {"static": [0]}, first.id, epoch)
        side.commits("static", {"static": [0]}, first.id, -2)
        side.fetches("static", "static", 1, first.id, -2)
        again = Member(side, "static", "m-4", "one")
        again.joins("static")
        side.looks("static")
        first.says(member_epoch=epoch)
        side.commits("static", {"static": [0]}, first.id, epoch)
        side.commits("static", {"static": [0]}, again.id, again.epoch)
        # It comes back with another subscription, so the target is another.
        again.leaves(-2)
        third = Member(side, "static", "m-5", "one")
        third.joins("nowhere")
        side.looks("static")
        second.says()
        third.leaves(-2)
        side.looks("static")
        third.leaves()
        second.leaves(-2)
        side.looks("static")
        side.deletes("static")
        second.leaves(-1)
        side.looks("static")
        side.deletes("static")

    stage.play(scene)


def test_commits_and_fetches_of_a_wrong_epoch_are_refused_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("commits", 4)
        group = "commits"
        # Before there is a group, and while it has members.
        side.commits(group, {"commits": [0]}, "m-1", 1)
        side.fetches(group, "commits", 4, "m-1", 1)
        side.fetches(group, "commits", 4)
        first, second = Member(side, group, "m-1"), Member(side, group, "m-2")
        first.joins("commits")
        first.commits(commits=[0, 1])
        side.fetches(group, "commits", 4, first.id, first.epoch)
        for epoch in (0, first.epoch + 1, -1, -2):
            first.commits(epoch, commits=[2])
            side.fetches(group, "commits", 4, first.id, epoch)
        for version in range(2, 9):
            first.commits(version=version, commits=[3])
        side.commits(group, {"commits": [3]})
        side.commits(group, {"commits": [3]}, "nobody", first.epoch)
        side.commits(group, {"commits": [3]}, "", first.epoch)
        side.commits(group, {"commits": [0, 9], "nowhere": [0]}, first.id, first.epoch)
        side.fetches(group, "commits", 4)
        side.fetches(group, "commits", 4, "nobody", first.epoch)
        side.fetches(group, "commits", 4, "", first.epoch)
        side.fetches(group, "commits", 4, "", -1)
        side.fetches(group, "nowhere", 2, first.id, first.epoch)
        first.leaves()
        first.commits(1, commits=[0])
        side.commits(group, {"commits": [3]})
        side.fetches(group, "commits", 4, first.id, first.epoch)
        side.fetches(group, "commits", 4)
        side.looks(group)
        second.joins("commits")
        side.fetches(group, "commits", 4, second.id, second.epoch)

    stage.play(scene)


def test_topics_that_come_grow_and_go_are_heeded_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "topics"
        one = Member(side, group, "m-1")
        one.joins("later", "early")
        side.looks(group)
        side.makes_topic("later", 1)
        one.until_given({"later": [0]})
        side.looks(group)
        side.grows_topic("later", 3)
        one.until_given({"later": [0, 1, 2]})
        side.makes_topic("early", 1)
        one.until_given({"later": [0, 1, 2], "early": [0]})
        one.has(later=[0, 1, 2], early=[0])
        one.commits(later=[0, 1], early=[0])
        side.looks(group)
        side.deletes_topic("later")
        one.until_given({"early": [0]})
        side.looks(group)
        one.has(early=[0])
        side.looks(group)
        side.fetches(group, "later", 3, one.id, one.epoch)
        side.fetches(group, "early", 1, one.id, one.epoch)

    stage.play(scene)


def test_whoever_is_not_heard_of_or_keeps_what_it_shall_give_back_is_gone_alike(
    stage: Stage,
) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("gone", 4)
        slow, eager = Member(side, "slow", "m-1"), Member(side, "slow", "m-2")
        slow.joins("gone", rebalance_timeout_ms=1_000)
        eager.joins("gone")
        slow.says()
        side.until(
            lambda: bool(slow.has(gone=[0, 1, 2, 3]).error_code) and side.state("slow")[1] == 1,
            "it is put out",
        )
        slow.says()
        side.looks("slow")
        eager.says()
        eager.leaves()

    stage.play(scene)


@in_kafka_4
def test_sessions_end_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("sessions", 4)
        member, static = Member(side, "silent", "m-1"), Member(side, "silent", "m-2", "i")
        away = Member(side, "away", "m-1", "i")
        away.joins("sessions")
        away.leaves(-2)
        static.joins("sessions")
        member.joins("sessions")
        # One of the classic protocol in a consumer group has the session that it asked for, and is to fetch its assignment in time.
        lively = Member(side, "lively", "!")
        lively.joins("sessions")
        classic, slow = (
            ClassicMember(side, "lively", "sessions"),
            ClassicMember(side, "lively", "sessions"),
        )
        # Neither timeout expires before the steps in between.
        for one, session_ms, rebalance_ms in ((classic, 10_000, 60_000), (slow, 60_000, 10_000)):
            one.joins(session_timeout_ms=session_ms, rebalance_timeout_ms=rebalance_ms)
            lively.says()
            lively.has(sessions=[0, 1])
            if one is classic:
                one.syncs()
            lively.until_given({"sessions": [0, 1, 2, 3]})
            lively.has(sessions=[0, 1, 2, 3])
        for one in (classic, slow):
            one.beats()
        side.looks("lively")
        side.until(lambda: side.state("silent")[1] == side.state("away")[1] == 0, "they are gone")
        side.looks("silent")
        side.looks("away")
        member.says()
        away.joins("sessions")

    stage.play(scene)


@in_kafka_4
def test_regular_expressions_are_heeded_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "regex"
        for name, partitions in {"re-orders": 2, "re-bills": 1, "xre-orders": 1}.items():
            side.makes_topic(name, partitions)
        one, two = Member(side, group, "m-1"), Member(side, group, "m-2")
        for wrong in ("[", "(?=a)", "a**", "\\"):
            one.joins(subscribed_topic_regex=wrong)
        side.looks(group)
        one.joins(subscribed_topic_regex="re-.*")
        # Kafka looks for them beside the request.
        side.answers.pop()
        one.until_given({"re-orders": [0, 1], "re-bills": [0]})
        side.looks(group)
        one.says(subscribed_topic_regex="[")
        one.says()
        # A regular expression and names are taken together.
        one.says(subscribed_topic_names=["xre-orders"])
        one.until_given({"re-orders": [0, 1], "re-bills": [0], "xre-orders": [0]})
        one.says(subscribed_topic_regex="", subscribed_topic_names=["re-bills"])
        one.has(**{"re-bills": [0]})
        side.looks(group)
        one.says(subscribed_topic_regex="re-(orders|bills)")
        side.answers.pop()
        one.until_given({"re-orders": [0, 1], "re-bills": [0]})
        two.joins(subscribed_topic_regex="re-(orders|bills)")
        side.looks(group)
        one.leaves()
        two.until_given({"re-orders": [0, 1], "re-bills": [0]})
        two.leaves()
        side.looks(group)
        two.joins(subscribed_topic_regex="")
        two.says()
        side.looks(group)

    stage.play(scene)


# Members of both protocols in one group


def stands(side: Side, group: str, topic: str, partitions: int) -> ClassicMember:
    """A classic group of one, which has everything. It has a generation, which a consumer group goes on from."""
    side.begins(classic=True)
    one = ClassicMember(side, group, topic)
    one.joins()
    one.syncs({one.id: assignment(**{topic: range(partitions)})})
    one.beats()
    return one


@whichever_way
def test_a_classic_group_becomes_a_consumer_group_and_one_again_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "upgraded"
        side.makes_topic(group, 4)
        old = stands(side, group, group, 4)
        old.commits(upgraded=[0])
        side.looks(group)
        new = Member(side, group, "!")
        new.joins(group)
        side.looks(group)
        side.deletes(group)
        # The classic member is told by its heartbeat, and goes on as it does in any rebalance; a new one has yet to give anything back.
        old.commits(upgraded=[1])
        old.beats()
        old.beats(99)
        new.says()
        old.protocols = {"range": subscription(group, owned={})}
        old.joins()
        side.looks(group)
        old.commits(upgraded=[2])
        old.syncs()
        old.beats()
        new.says()
        new.has(upgraded=[0, 1])
        side.looks(group)
        old.commits(upgraded=[3])
        old.commits(version=9, upgraded=[3])
        old.commits(0, upgraded=[3])
        side.commits(group, {"upgraded": [3]}, new.id, new.epoch, version=8)
        new.commits(upgraded=[0])
        old.syncs(generation_id=1)
        old.syncs(protocol_name="sticky")
        old.syncs(protocol_type="connect")
        side.looks(group)
        # A stranger, and one of the new protocol that speaks as a classic one.
        ClassicMember(side, group, sticky=b"").joins()
        ClassicMember(side, group, sticky=subscription(group)).joins()
        ClassicMember(side, group, group).joins(protocol_type="connect")
        stranger = ClassicMember(side, group, group)
        stranger.id, stranger.generation = new.id, new.epoch
        stranger.beats()
        stranger.syncs()
        # Without the last of the new protocol it is a classic group.
        new.leaves()
        side.looks(group)
        new.says()
        old.beats()
        old.joins()
        old.syncs({old.id: assignment(**{group: range(4)})})
        old.beats()
        old.commits(upgraded=[0])
        side.fetches(group, group, 4)
        side.looks(group)
        old.leaves()
        side.looks(group)
        # Empty, it becomes either; one that may not become a classic group has been a consumer group all the time.
        side.begins(classic=stage.policy == "upgrade")
        new.joins(group)
        new.leaves()
        side.begins(classic=True)
        again = ClassicMember(side, group, group)
        again.joins()
        side.looks(group)
        again.leaves()
        side.deletes(group)

    stage.play(scene)


@whichever_way
def test_a_classic_member_joins_a_consumer_group_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "joined"
        side.makes_topic(group, 4)
        # An id before all that may be made up.
        new = Member(side, group, "!")
        new.joins(group)
        for version in (0, 3, 4, 9):
            old = ClassicMember(side, group, group)
            old.joins(version)
            old.syncs()
            old.beats()
            old.leaves()
            old.beats()
            new.says()
        old = ClassicMember(side, group, group)
        old.joins()
        old.syncs()
        side.looks(group)
        new.says()
        new.has(joined=[0, 1])
        side.looks(group)
        for _ in range(2):
            if old.beats().error_code == REBALANCE_IN_PROGRESS:
                old.joins()
                old.syncs()
        side.looks(group)
        new.leaves(-1)
        side.looks(group)
        old.beats()
        old.leaves()

    stage.play(scene)


@whichever_way
def test_a_classic_member_gives_back_by_joining_again_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "cooperative"
        side.makes_topic(group, 4)
        side.begins(classic=True)
        old = ClassicMember(
            side, group, cooperative_sticky=subscription(group, version=3, owned={}, generation=-1)
        )
        old.joins()
        old.syncs({old.id: assignment(3, cooperative=range(4))})
        # An id behind all that may be made up.
        new = Member(side, group, "~")
        new.joins(group)
        old.beats()
        # It has not given anything back, then says that it has.
        old.protocols = {
            "cooperative_sticky": subscription(
                group, version=3, owned={group: range(4)}, generation=old.generation
            )
        }
        old.joins()
        old.syncs()
        new.says()
        side.looks(group)
        old.protocols = {
            "cooperative_sticky": subscription(
                group, version=3, owned={group: [0, 1]}, generation=old.generation
            )
        }
        old.beats()
        old.joins()
        old.syncs()
        old.beats()
        new.says()
        side.looks(group)
        # The newcomer goes: what it had comes back to the classic one, in a classic group.
        new.leaves()
        old.beats()
        side.looks(group)
        old.joins()

    stage.play(scene)


@in_kafka_4
def test_classic_groups_that_are_none_of_topics_stay_what_they_are_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        side.makes_topic("strange", 2)
        side.begins(classic=True)
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
            old.joins(**fields)
            old.syncs({old.id: words}, protocol_type=fields.get("protocol_type", "consumer"))
            new = Member(side, group, "m-1")
            new.says(member_epoch=1)
            new.joins("strange")
            old.beats()
            side.looks(group)

    stage.play(scene)


@whichever_way
def test_static_members_change_protocols_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "static-changes"
        side.makes_topic(group, 2)
        side.begins(classic=True)
        old = ClassicMember(side, group, group, instance="one")
        old.joins()
        old.syncs({old.id: assignment(**{group: [0, 1]})})
        # The same instance, now of the new protocol: nobody else is there, so it is a consumer group from now on.
        new = Member(side, group, "m-1", "one")
        new.joins(group, "nowhere")
        side.looks(group)
        old.beats()
        old.commits(**{group: [0]})
        new.has(**{group: [0, 1]})
        side.looks(group)
        # And back: whoever comes in its place speaks the old one, and whether it said that it went makes no difference.
        for is_gone in (False, True):
            if is_gone:
                new.leaves(-2)
            back = ClassicMember(side, group, group, "nowhere", instance="one")
            back.joins()
            side.looks(group)
            back.syncs()
            back.beats()
            new = Member(side, group, f"m-2-{is_gone}", "one")
            new.joins("nowhere")
            new.says(subscribed_topic_names=[group, "nowhere"])
            new.has(**{group: [0, 1]})
            side.looks(group)

    stage.play(scene)


@in_kafka_4
def test_members_are_put_out_by_others_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "put-out"
        side.makes_topic(group, 4)
        new, static = Member(side, group, "!"), Member(side, group, "m-2", "two")
        new.joins(group)
        static.joins(group)
        old = ClassicMember(side, group, group, instance="three")
        old.joins()
        for names in (
            ("!", None),
            ("nobody", None),
            ("", "nobody"),
            ("nobody", "two"),
            ("!", "two"),
            ("", "two"),
            ("", "three"),
        ):
            side.removes(group, names)
            side.looks(group)
        side.removes(group, ("m-2", "two"), ("!", None))
        side.looks(group)
        new.says()

    stage.play(scene)


@in_kafka_4
def test_offsets_of_topics_that_members_read_are_kept_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "kept"
        for name in ("kept-a", "kept-b", "kept-c"):
            side.makes_topic(name, 1)
        side.commits(group, {"kept-a": [0], "kept-b": [0], "kept-c": [0]})
        one = Member(side, group, "m-1")
        one.joins("kept-a", subscribed_topic_regex="kept-b")
        side.answers.pop()
        one.until_given({"kept-a": [0], "kept-b": [0]})
        # Kafka has got there in two steps.
        side.answers.pop()
        side.deletes_offsets(group, "kept-a", "kept-b", "kept-c", "nowhere")
        side.fetches(group, "kept-c", 1)
        one.leaves()
        side.deletes_offsets(group, "kept-a", "kept-b", "nowhere")
        side.fetches(group, "kept-a", 1)

    stage.play(scene)


@in_kafka_4
def test_classic_members_speak_a_protocol_that_all_of_them_know_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "spoken"
        side.makes_topic(group, 4)
        Member(side, group, "!").joins(group)
        both = ClassicMember(side, group, roundrobin=subscription(group), range=subscription(group))
        both.joins()
        both.syncs()
        both.syncs(protocol_name="range")
        sticky, old, alike = (
            {"sticky": subscription(group)},
            {"range": subscription(version=0)},
            {"roundrobin": subscription(group)},
        )
        for number, protocols in enumerate((sticky, {}, old, alike)):
            other = ClassicMember(side, group, instance=f"i{number}")
            other.protocols = protocols
            other.joins()
            if other.generation > 0:
                other.syncs()
                other.leaves()
        both.joins(session_timeout_ms=1)
        both.joins()
        both.leaves()
        side.looks(group)

    stage.play(scene)


@whichever_way
def test_a_static_member_changes_protocols_beside_another_member_alike(stage: Stage) -> None:
    def scene(side: Side) -> None:
        group = "static-beside"
        side.makes_topic(group, 4)
        stays, new = Member(side, group, "m-1", "one"), Member(side, group, "m-2", "two")
        stays.joins(group)
        new.joins(group)
        stays.says()
        stays.has(**{group: [0, 1]})
        new.says()
        # Its place is taken though it has not gone.
        old = ClassicMember(side, group, group, instance="two")
        old.joins()
        new.says()
        side.looks(group)
        old.syncs()
        again = ClassicMember(side, group, group, instance="two")
        again.joins()
        old.beats()
        again.syncs()
        side.looks(group)
        new = Member(side, group, "m-3", "two")
        new.joins(group)
        again.beats()
        again.commits(**{group: [2]})
        side.looks(group)
        new.has(**{group: [2, 3]})
        side.looks(group)

    stage.play(scene)
