"""Invariants of a consumer group under any sequence of events.

Events are requests, topic changes, store results, crashes and timeouts.

1. A partition never has two owners: no two clients read it, unless the group has removed the first.
2. Epochs only rise: the group's, its target's, and a member's while it is a member.
3. A member that vanishes is removed, and its partitions are assigned to others.
4. With regular heartbeats and no disturbances a group becomes stable: every partition of a
   subscribed topic has one owner, which subscribes to it.
5. Every request is answered once; none waits forever.
6. A reply is never reverted by a crash: afterwards each member continues in the epoch it received.
7. `next_expire_at` is never later than the next deadline, and `expire` handles all due ones.
8. A commit of an owned partition in the received epoch is accepted.

Members use either protocol and are static or not. When a group is converted to a classic group the
test ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from gateway.groups.consumer.consumer_member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatResult,
    MemberHeartbeat,
)
from gateway.groups.consumer.consumer_rows import decode_group, encode, parse_key
from gateway.groups.group_effects import NEVER, Reply, StoreRows
from gateway.protocol.errors import ErrorCode
from gateway.settings.model import Settings
from tests.examples import scaled
from tests.fakes.topology import FakeTopology

START = 1_700_000_000_000
SESSION = 45_000
REBALANCE = 20_000

WHICH = st.integers(0, 1_000)
TOPICS = st.sets(st.sampled_from(["a", "b", "c"]), min_size=1)
INSTANCES = st.sampled_from([None, None, "i1", "i2"])


@dataclass
class ModelMember:
    """A client's view. `reads` is by topic id and partition."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    is_classic: bool
    epoch: int = 0
    reads: set[tuple[bytes, int]] = field(default_factory=set)
    is_joined: bool = False
    must_join: bool = True
    said: frozenset[str] = frozenset()
    """The topics that it has sent to the group."""
    lost: int = 0
    """Number of consecutive lost replies."""
    asked: int | None = None
    """The handle of its waiting request."""

    def owned(self):
        found = {}
        for topic, index in self.reads:
            found.setdefault(topic, set()).add(index)
        return {topic: frozenset(indexes) for topic, indexes in found.items()}


class ConsumerGroupModel(RuleBasedStateMachine):
    @initialize(interval=st.sampled_from([0, 0, 1_000]), members=st.integers(0, 3))
    def begin(self, interval, members):
        self.settings = Settings(group_consumer_assignment_interval_ms=interval)
        self.topology = FakeTopology()
        for name, partitions in (("a", 3), ("b", 2), ("c", 1)):
            self.topology.make(name, partitions)
        self.now = START
        self.group = ConsumerGroup("g", self.topology, self.settings, self.now)
        self.rows: dict[bytes, bytes] = {}
        self.writes: list[StoreRows] = []
        self.waiting: dict[int, ModelMember] = {}
        self.clients: list[ModelMember] = []
        self.count = 0
        self.epochs = (0, 0)
        self.member_epochs: dict[str, int] = {}
        for number in range(members):
            self.member_joins(frozenset("ab"), None, number == 2)

    # Group side

    def _take(self):
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Reply):
                    self._handle_reply(effect.handle, effect.result)
                elif isinstance(effect, StoreRows):
                    assert not self.writes, "two writes at a time"
                    self.writes.append(effect)
        if self.group.successor is not None:
            self._end()

    def _end(self):
        """The group was converted; its members are those with the classic protocol."""
        successor = self.group.successor
        assert len(successor.roster)
        assert all(
            client.is_classic for client in self.clients if client.member_id in successor.roster
        )
        self.clients.clear()
        self.rows.clear()
        self.writes.clear()
        self.waiting.clear()
        self.member_epochs.clear()
        self.group = ConsumerGroup("g", self.topology, self.settings, self.now)
        self.epochs = (0, 0)

    def _handle_reply(self, handle, reply):
        client = self.waiting.pop(handle, None)
        assert client is not None, "answered twice (5)"
        client.asked = None
        if client not in self.clients:
            return
        match reply:
            case HeartbeatResult(code=ErrorCode.NONE):
                self._apply_assignment(client, reply.epoch, reply.assignment)
            case JoinResult(code=ErrorCode.NONE):
                client.epoch, client.is_joined, client.must_join = (
                    reply.generation,
                    True,
                    client.said != client.topics,
                )
                self._ask(
                    client,
                    lambda handle: self.group.sync(
                        MemberSync(client.member_id, client.instance_id, client.epoch),
                        handle,
                        self.now,
                    ),
                )
            case SyncResult(code=ErrorCode.NONE):
                self._apply_assignment(client, client.epoch, self._by_id(reply.assignment))
            case (
                HeartbeatResult(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
                | JoinResult(code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            ):
                client.must_join = client.must_join or client.is_classic
                client.lost += 1
            case HeartbeatResult(code=ErrorCode.FENCED_MEMBER_EPOCH) if client.lost > 1:
                # Only the previous epoch is accepted.
                client.epoch, client.reads, client.is_joined, client.lost = 0, set(), False, 0
            case SyncResult() | JoinResult(code=ErrorCode.REBALANCE_IN_PROGRESS):
                client.must_join = True
            case _:
                assert (
                    client.instance_id is not None or client.member_id not in self.group.roster
                ), f"{reply} to {client} (6)"
                self.clients.remove(client)

    def _apply_assignment(self, client, epoch, assignment):
        assert epoch >= client.epoch, "a member's epoch went back (2)"
        client.epoch, client.is_joined, client.lost = epoch, True, 0
        if assignment is None:
            return
        told = {(topic, index) for topic, indexes in assignment.items() for index in indexes}
        client.must_join = client.is_classic and (client.must_join or bool(client.reads - told))
        client.reads = told
        for other in self.clients:
            assert other is client or not other.reads & told, (
                f"{client} and {other} read the same (1)"
            )

    def _by_id(self, assignment):
        decoded = ConsumerProtocolAssignment.decode(assignment)
        found = {}
        for row in decoded.assigned_partitions:
            found[self.topology.id_of(row.topic)] = frozenset(row.partitions)
        return found

    # Client side

    def _ask(self, client, ask):
        self.count += 1
        client.asked = self.count
        self.waiting[self.count] = client
        ask(self.count)

    def _join(self, client):
        row = ConsumerProtocolSubscription.TopicPartition
        owned = [
            row(topic=self.topology.name_of(topic), partitions=sorted(indexes))
            for topic, indexes in client.owned().items()
            if self.topology.name_of(topic) is not None
        ]
        said = ConsumerProtocolSubscription(
            version=1, topics=sorted(client.topics), user_data=b"", owned_partitions=owned
        )
        metadata = bytes(said.encode(version=1))
        client.said = client.topics
        known = "" if client.instance_id is not None and not client.is_joined else client.member_id
        joining = MemberJoin(
            known,
            client.instance_id,
            "c",
            "/h",
            "consumer",
            (("sticky", metadata),),
            SESSION,
            REBALANCE,
        )
        self._ask(
            client, lambda handle: self.group.join(joining, client.member_id, handle, self.now)
        )

    def _heartbeat(self, client):
        is_first = not client.is_joined
        beat = MemberHeartbeat(
            client.member_id,
            client.epoch,
            client.instance_id,
            None,
            REBALANCE,
            client.topics,
            owned={} if is_first else client.owned(),
        )
        self._ask(client, lambda handle: self.group.consumer_heartbeat(beat, handle, self.now))

    def _poll(self, client):
        """One poll of a client: its heartbeat and the consequences."""
        if client.asked is not None or client not in self.clients:
            return
        if not client.is_classic:
            self._heartbeat(client)
        elif client.must_join:
            self._join(client)
        else:
            try:
                self.group.heartbeat(client.member_id, client.epoch, client.instance_id, self.now)
            except Exception as refusal:
                if refusal.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    client.must_join = True
                else:
                    assert (
                        client.instance_id is not None or client.member_id not in self.group.roster
                    ), "(6)"
                    self.clients.remove(client)
        self._take()

    def _client(self, which):
        return self.clients[which % len(self.clients)]

    @precondition(lambda self: len(self.clients) < 6)
    @rule(topics=TOPICS, instance=INSTANCES, is_classic=st.sampled_from([False, False, True]))
    def member_joins(self, topics, instance, is_classic):
        if is_classic and not any(
            not client.is_classic and client.is_joined for client in self.clients
        ):
            return
        taken = [
            client
            for client in self.clients
            if instance is not None and client.instance_id == instance
        ]
        if taken and not (is_classic or taken[0].is_classic):
            return
        for before in taken:
            # Starting the same static member twice stops the first one, which no longer reads its
            # partitions.
            self.clients.remove(before)
        self.count += 1
        client = ModelMember(f"m{self.count}", instance, frozenset(topics), is_classic)
        self.clients.append(client)
        self._poll(client)

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def member_polls(self, which):
        self._poll(self._client(which))

    @rule()
    def all_members_poll(self):
        for client in list(self.clients):
            self._poll(client)

    @precondition(lambda self: self.clients)
    @rule(which=WHICH, topics=TOPICS)
    def member_changes_subscription(self, which, topics):
        client = self._client(which)
        client.topics, client.must_join = frozenset(topics), True
        self._poll(client)

    @precondition(lambda self: self.clients)
    @rule(which=WHICH, goes_away=st.booleans())
    def member_leaves(self, which, goes_away):
        client = self._client(which)
        if client.asked is not None or not client.is_joined:
            return
        self.clients.remove(client)
        if client.is_classic:
            self.group.leave(client.member_id, client.instance_id, "", self.now)
        else:
            epoch = (
                STATIC_LEAVE_EPOCH if goes_away and client.instance_id is not None else LEAVE_EPOCH
            )
            self._ask(
                client,
                lambda handle: self.group.consumer_heartbeat(
                    MemberHeartbeat(client.member_id, epoch, client.instance_id), handle, self.now
                ),
            )
        self._take()

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def member_vanishes(self, which):
        self.clients.remove(self._client(which))

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def reply_is_lost(self, which):
        """The client repeats its request with its previous state."""
        client = self._client(which)
        if client.asked is None or client.is_classic:
            return
        self.waiting[client.asked] = ModelMember("", None, frozenset(), False)
        client.asked = None
        client.lost += 1
        self._poll(client)

    @precondition(lambda self: self.clients)
    @rule(which=WHICH)
    def member_commits(self, which):
        client = self._client(which)
        if not client.is_joined or client.member_id not in self.group.roster:
            return
        fence = self.group.validate_offset_commit(client.member_id, client.epoch, 9)
        assert fence is None or all(
            fence(topic, index) is ErrorCode.NONE for topic, index in client.reads
        ), "(8)"

    # Environment

    @rule(name=st.sampled_from("abc"), partitions=st.integers(1, 5))
    def topic_is_created_or_extended(self, name, partitions):
        before = self.topology.topics.get(name, (0, 0))[1]
        self.topology.make(name, max(partitions, before))

    @rule(name=st.sampled_from("abc"))
    def topic_is_deleted(self, name):
        if name in self.topology.topics:
            gone = self.topology.id_of(name)
            self.topology.delete(name)
            for client in self.clients:
                client.reads = {place for place in client.reads if place[0] != gone}

    @precondition(lambda self: self.writes)
    @rule(is_stored=st.sampled_from([True, True, True, False]))
    def store_completes_write(self, is_stored):
        write = self.writes.pop()
        if is_stored:
            self._store(write)
            self.group.on_stored(write)
        else:
            self.group.on_store_failed(write, self.now)
        self._take()

    def _store(self, write):
        for key, row in write.rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = encode(row)

    @rule(ms=st.sampled_from([1, 1_000, 5_000, 10_000, 10_000, REBALANCE, SESSION]))
    def time_passes(self, ms):
        self.now += ms
        if self.group.next_expire_at <= self.now:
            self.group.expire(self.now)
            assert self.group.next_expire_at > self.now, "due and not done (7)"
            for client in list(self.clients):
                if client.member_id not in self.group.roster:
                    # The client received no reply for longer than its session timeout, which it
                    # detects itself.
                    self.clients.remove(client)
            self._take()

    @rule(is_stored=st.booleans())
    def crash(self, is_stored):
        """Drop all waiting requests. Each write in flight is either stored or not."""
        if is_stored and self.writes:
            self._store(self.writes[0])
        self.writes.clear()
        self.waiting.clear()
        for client in self.clients:
            client.lost += client.asked is not None
            client.asked = None
        if not self.rows:
            self.group = ConsumerGroup("g", self.topology, self.settings, self.now)
            self.clients = []
        else:
            stored = decode_group((parse_key(key)[1], value) for key, value in self.rows.items())
            self.group = ConsumerGroup.restored("g", stored, self.topology, self.settings, self.now)
            for client in self.clients:
                assert not client.is_joined or client.member_id in self.group.roster, (
                    "a member was forgotten (6)"
                )
        self.epochs = (0, 0)
        self.member_epochs.clear()

    @rule()
    def becomes_stable_without_disturbances(self):
        """Invariant 4."""
        for _ in range(30):
            for client in list(self.clients):
                self._poll(client)
                while self.writes:
                    self.store_completes_write(True)
            self.now += 5_000
            if self.group.next_expire_at <= self.now:
                self.group.expire(self.now)
                self._take()
                while self.writes:
                    self.store_completes_write(True)
        if not self.clients:
            assert self.group.is_empty, "(3)"
            return
        assert self.group.state is ConsumerGroupState.STABLE, "(4)"
        for name, (_, partitions) in self.topology.topics.items():
            readers = [client for client in self.clients if name in client.topics]
            topic = self.topology.id_of(name)
            for index in range(partitions):
                owners = [client for client in self.clients if (topic, index) in client.reads]
                assert len(owners) == bool(readers), f"{name}-{index} (4)"
                assert all(owner in readers for owner in owners), "(4)"

    @invariant()
    def holds(self):
        if not hasattr(self, "group"):
            return
        group = self.group
        assert (group.epoch, group.target_epoch) >= self.epochs, "(2)"
        assert group.target_epoch <= group.epoch, "(2)"
        self.epochs = (group.epoch, group.target_epoch)
        for member in group.roster:
            assert (
                member.epoch >= self.member_epochs.get(member.member_id, 0)
                or member.epoch == STATIC_LEAVE_EPOCH
            ), "(2)"
            self.member_epochs[member.member_id] = member.epoch
            assert member.epoch <= group.target_epoch, "(2)"
        self.member_epochs = {
            one.member_id: self.member_epochs[one.member_id] for one in group.roster
        }
        held = [
            (topic, index)
            for one in group.roster
            for part in (one.assigned, one.revoking)
            for topic, row in part.items()
            for index in row
        ]
        assert len(held) == len(set(held)), "(1)"
        assert group.roster.size == sum(member.size for member in group.roster)
        numbers = [member.number for member in group.roster]
        assert len(numbers) == len(set(numbers))
        assert group.next_expire_at <= min(
            (group._deadlines.of(member).earliest for member in group.roster), default=NEVER
        ), "(7)"
        on_their_way = {answer.handle for write in self.writes for answer in write.replies}
        assert set(self.waiting) == group._unstored.handles() | on_their_way, (
            "a request will never be answered (5)"
        )

    def teardown(self):
        """Invariants 3 and 5: time passes without requests."""
        if not hasattr(self, "group"):
            return
        self.clients = []
        for _ in range(100):
            while self.writes:
                self.store_completes_write(True)
            if self.group.next_expire_at == NEVER:
                break
            self.now = max(self.now, self.group.next_expire_at)
            self.group.expire(self.now)
            self._take()
        assert self.group.is_empty, "a silent member stays (3)"
        assert not self.waiting, "(5)"


ConsumerGroupModel.TestCase.settings = settings(
    deadline=None, max_examples=scaled(100), stateful_step_count=40
)
test_a_consumer_group_keeps_its_word = ConsumerGroupModel.TestCase
