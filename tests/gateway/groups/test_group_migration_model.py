"""Invariants of online migration with members of both protocols, store failures and crashes:

1. A partition never has two consumers at a time.
2. Without disturbances every partition of the topic is consumed by one member.
3. The group is a consumer group while a member uses the consumer protocol, and a classic group when
   only members with the classic protocol are left.
4. No request waits forever.
5. The store has one group, of the current kind, and a restart continues with it.

Classic members behave like Java's with a cooperative or an eager assignor. A client may lag behind
the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.groups.classic.classic_group import GroupState
from gateway.groups.classic.classic_member import MemberJoin, MemberSync
from gateway.groups.classic.subscription import (
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from gateway.groups.consumer.assignors import Subscriber, assign_uniform
from gateway.groups.consumer.consumer_member import LEAVE_EPOCH, MemberHeartbeat
from gateway.protocol.errors import ErrorCode, KafkaError
from tests.examples import scaled
from tests.fakes.broker import BrokerEnvironment, Started, open_environment
from tests.gateway.groups.group_harness import TOPIC, metadata_of

SESSION = 30_000
PARTITIONS = 5
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "group_consumer_session_timeout_ms": SESSION,
    "group_consumer_heartbeat_interval_ms": 1_000,
}

WHICH = st.integers(0, 1_000)


@dataclass
class ModelMember:
    """A client's view, and the request that it waits for."""

    env: BrokerEnvironment
    is_classic: bool
    is_stepwise: bool
    member_id: str
    epoch: int = 0
    reads: set[int] = field(default_factory=set)
    waiting: Started | None = None
    is_syncing: bool = False
    must_join: bool = True
    is_gone: bool = False
    is_lagging: bool = False
    """Whether it sends no requests and handles no replies until time passes."""
    joins: int = 0
    """JoinGroups sent, for unique member ids: the fake gateway counts from 1 after a restart."""

    def poll(self) -> None:
        if self.is_lagging:
            return
        if self.waiting is None:
            self._send_request()
        for _ in range(4):
            if self.waiting is None or not self.waiting.is_done:
                return
            reply, self.waiting = self.waiting.result, None
            self._handle_reply(reply)

    def leave(self) -> None:
        self.reads.clear()
        self.is_gone = True
        if not self.is_classic:
            Started(
                self.env.broker.groups.consumer_heartbeat(
                    "g", MemberHeartbeat(self.member_id, LEAVE_EPOCH)
                )
            )
            return
        if self.waiting is not None:
            self.waiting.cancel()
        try:
            self.env.broker.groups.leave("g", self.member_id, None, "")
        except KafkaError:
            return

    def disconnect(self, env: BrokerEnvironment) -> None:
        """The gateway has restarted."""
        self.env = env
        if self.waiting is not None:
            self.waiting, self.is_syncing, self.must_join = None, False, True

    def _send_request(self) -> None:
        groups = self.env.broker.groups
        if not self.is_classic:
            topic = self.env.broker.topics.get(TOPIC).topic.topic_id
            owned = {topic: frozenset(self.reads)} if self.reads else {}
            beat = MemberHeartbeat(
                self.member_id, self.epoch, None, None, 60_000, frozenset({TOPIC}), owned=owned
            )
            self.waiting = Started(groups.consumer_heartbeat("g", beat))
        elif self.must_join:
            if not self.is_stepwise:
                self.reads.clear()
            protocol = "stepwise" if self.is_stepwise else "at once"
            words = ((protocol, metadata_of(self.reads)),)
            self.joins += 1
            joining = MemberJoin(
                self.member_id if self.epoch else "",
                None,
                f"{self.member_id}-{self.joins}",
                "/h",
                "consumer",
                words,
                SESSION,
                60_000,
            )
            self.waiting = Started(groups.join("g", joining))
        else:
            try:
                groups.heartbeat("g", self.member_id, self.epoch, None)
            except KafkaError as refusal:
                self._handle_error(refusal.code)

    def _handle_reply(self, reply: Any) -> None:
        if reply.code is not ErrorCode.NONE:
            self.is_syncing = False
            self._handle_error(reply.code)
        elif not self.is_classic:
            self.epoch = reply.epoch
            if reply.assignment is not None:
                self.reads = {index for indexes in reply.assignment.values() for index in indexes}
        elif self.is_syncing:
            self.is_syncing = False
            told = set(parse_assignment(reply.assignment)[0].get(TOPIC, ()))
            # Cooperative: revoked partitions are assigned to others after this client has rejoined.
            self.must_join = self.is_stepwise and bool(self.reads - told)
            self.reads = told
        else:
            self.member_id, self.epoch, self.must_join, self.is_syncing = (
                reply.member_id,
                reply.generation,
                False,
                True,
            )
            words = (
                tuple(self._assign(reply.members).items()) if reply.leader == self.member_id else ()
            )
            self.waiting = Started(
                self.env.broker.groups.sync(
                    "g", MemberSync(self.member_id, None, self.epoch, assignments=words)
                )
            )

    def _handle_error(self, code: ErrorCode) -> None:
        self.must_join = True
        if code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            self.reads.clear()
            self.epoch = 0

    def _assign(self, members: Any) -> dict[str, bytes]:
        """Assign as a leader.

        A cooperative leader does not assign partitions that another member still owns.
        """
        owned = {
            one.member_id: parse_subscription(one.metadata).owned.get(TOPIC, frozenset())
            for one in members
        }
        topic = TOPIC.encode()
        members = {
            name: Subscriber(None, frozenset({topic}), {topic: indexes})
            for name, indexes in owned.items()
        }
        given = {
            name: set(rows.get(topic, ()))
            for name, rows in assign_uniform(members, {topic: PARTITIONS}).items()
        }
        for name, indexes in given.items():
            for other, has in owned.items():
                if other != name:
                    indexes -= has
        return {
            name: encode_assignment({TOPIC: frozenset(indexes)} if indexes else {}, b"\0\1")
            for name, indexes in given.items()
        }


class ConversionModel(RuleBasedStateMachine):
    @initialize(is_stepwise=st.booleans(), classic=st.integers(0, 2))
    def begin(self, is_stepwise, classic):
        self.env = open_environment(**SETTINGS)
        self.env.topic(TOPIC, PARTITIONS)
        self.is_stepwise = is_stepwise
        self.clients: list[ModelMember] = []
        self.names = count(1)
        for _ in range(classic):
            self.client_joins(True)

    def _poll_all(self):
        for client in list(self.clients):
            client.poll()
            self.holds()

    def _advance(self, seconds):
        self.env.clock.advance(seconds)
        for client in self.clients:
            client.is_lagging = False
        self._poll_all()

    @precondition(lambda self: len(self.clients) < 5)
    @rule(is_classic=st.booleans())
    def client_joins(self, is_classic):
        client = ModelMember(self.env, is_classic, self.is_stepwise, f"m{next(self.names)}")
        self.clients.append(client)
        client.poll()

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def client_polls(self, which):
        self.clients[which % len(self.clients)].poll()

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def client_lags(self, which):
        self.clients[which % len(self.clients)].is_lagging = True

    @rule(rounds=st.integers(1, 3))
    def all_clients_poll(self, rounds):
        for _ in range(rounds):
            self._poll_all()

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def member_leaves(self, which):
        client = self.clients.pop(which % len(self.clients))
        client.leave()

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def member_vanishes(self, which):
        client = self.clients.pop(which % len(self.clients))
        if client.waiting is not None:
            client.waiting.cancel()

    @rule(ms=st.sampled_from([100, 1_000, 5_000]))
    def time_passes(self, ms):
        self._advance(ms / 1_000)

    @rule()
    def store_is_slow(self):
        self.env.store.hold()
        self._poll_all()
        self.env.store.release()
        self._poll_all()

    @rule()
    def store_fails(self):
        self.env.store.refuse_writes = True
        self._poll_all()
        self.env.store.refuse_writes = False

    @rule(is_busy=st.booleans())
    def crash(self, is_busy):
        """While requests of all clients are in progress, or before they send any."""
        if is_busy:
            self.env.store.hold()
            self._poll_all()
        medium = self.env.store.medium
        medium.held_by = None
        self.env = open_environment(medium, **SETTINGS)
        for client in self.clients:
            client.disconnect(self.env)

    @rule()
    def all_partitions_are_read_without_disturbances(self):
        for _ in range(60):
            self._advance(1)
        if not self.clients:
            return
        read = [index for client in self.clients for index in client.reads]
        assert sorted(read) == list(range(PARTITIONS)), "(2)"
        group = self.env.broker.groups.get("g")
        assert group.kind == (
            "classic" if all(client.is_classic for client in self.clients) else "consumer"
        ), "(3)"
        assert not any(client.waiting for client in self.clients), "(4)"
        assert len(group.roster) == len(self.clients)

    @invariant()
    def holds(self):
        if not hasattr(self, "clients"):
            return
        read = [index for client in self.clients for index in client.reads]
        assert len(read) == len(set(read)), "(1)"
        assert not self.env.bugs

    def teardown(self):
        if not hasattr(self, "clients"):
            return
        self.all_partitions_are_read_without_disturbances()
        if self.clients:
            medium = self.env.store.medium
            medium.held_by = None
            kinds = [group.kind for group in open_environment(medium, **SETTINGS).broker.groups]
            assert kinds == [self.env.broker.groups.get("g").kind], "(5)"


ConversionModel.TestCase.settings = settings(
    deadline=None, max_examples=scaled(60), stateful_step_count=25
)
test_a_group_of_both_protocols_keeps_its_word = ConversionModel.TestCase


def settled(*, is_stepwise: bool, classic: int) -> ConversionModel:
    model = ConversionModel()
    model.begin(is_stepwise=is_stepwise, classic=classic)
    model.all_partitions_are_read_without_disturbances()
    return model


def test_one_member_reads_partition_if_consumer_joins_before_follower_handles_assignment():
    model = settled(is_stepwise=True, classic=2)
    leader, follower = model.clients
    assert model.env.broker.groups.get("g").roster.leader == leader.member_id
    for _ in range(2):
        model.client_joins(True)
    # Each learns of the rebalance and rejoins. The leader then sends the assignments, which revoke
    # a partition of the follower.
    for client in (follower, follower, leader, leader):
        client.poll()
    follower.is_lagging = True
    assert model.env.broker.groups.get("g").state is GroupState.STABLE
    model.client_joins(False)
    model.all_clients_poll(3)
    model.teardown()


@pytest.mark.parametrize("is_stepwise", [False, True])
def test_all_partitions_are_read_if_gateway_restarts_after_consumer_left(is_stepwise):
    model = settled(is_stepwise=is_stepwise, classic=1)
    model.client_joins(False)
    model.all_partitions_are_read_without_disturbances()
    model.member_leaves(1)
    model.crash(is_busy=False)
    model.teardown()


@pytest.mark.parametrize("owned", [set(), {0, 3}])
def test_model_clients_report_owned_partitions(owned):
    said = parse_subscription(metadata_of(owned))
    assert (said.topics, set(said.owned.get(TOPIC, ()))) == ({TOPIC}, owned)
