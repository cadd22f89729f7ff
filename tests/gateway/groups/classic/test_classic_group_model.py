"""Invariants of a classic group under any sequence of events.

Events are requests, disconnects, store results, crashes and timeouts.

1. A request is answered exactly once, and not at all after its connection has closed.
2. Nothing waits forever: as time passes, each request is answered and each silent member removed.
3. There is one generation at a time, and it never goes back while the process runs.
4. A generation has one leader, and only the leader receives the members.
5. Assignments come from the leader of their generation and are stored before they are sent.
6. A member is in the group once, a static one under its latest member id only.
7. `next_expire_at` is never later than the next deadline, and `expire` handles all due ones.
8. A restart continues with the last stored generation.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.groups.classic.classic_group import ClassicGroup, GroupState
from gateway.groups.classic.classic_member import JoinResult, MemberJoin, MemberSync, SyncResult
from gateway.groups.classic.classic_rows import decode, encode
from gateway.groups.group_effects import NEVER, Reply, StoreClassicGroup
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.settings.model import Settings
from tests.examples import scaled

START = 1_700_000_000_000
LONGEST = 30_000

WHICH = st.integers(0, 1_000)
INSTANCES = st.sampled_from([None, None, None, "i1", "i2"])
FITTING = st.sampled_from(
    [(("range", b"a"),), (("range", b"a"), ("sticky", b"b")), (("range", b"b"),)]
)
PROTOCOLS = st.sampled_from(
    [
        (("range", b"a"),),
        (("range", b"a"), ("sticky", b"b")),
        (("sticky", b"b"), ("range", b"c")),
        (("other", b""),),
        (),
    ]
)
TIMEOUTS = st.sampled_from([1_000, 5_000, LONGEST])


class GroupModel(RuleBasedStateMachine):
    @initialize(
        delay=st.sampled_from([0, 3_000]),
        size=st.sampled_from([2, 100]),
        instances=st.lists(st.sampled_from(["i1", None]), max_size=3),
    )
    def begin(self, delay, size, instances):
        self.settings = Settings(
            group_initial_rebalance_delay_ms=delay, group_max_size=size, group_max_pending_members=3
        )
        self.now = START
        self.group = ClassicGroup("g", self.settings, self.now)
        self.handles = 0
        self.waiting: dict[int, str] = {}
        self.ids = [""]
        self.stored = None
        self.saves: list[StoreClassicGroup] = []
        self.leaders: dict[int, str] = {}
        self.words: dict[int, set[bytes]] = {}
        self.generation = 0
        for instance in instances:
            self._join("", instance, (("range", b"a"),), LONGEST, LONGEST, False, False)
        self.rebalance_completes()

    def _handle(self, member_id):
        self.handles += 1
        self.waiting[self.handles] = member_id
        return self.handles

    def _take(self):
        for effect in self.group.take_effects():
            if isinstance(effect, Reply):
                assert effect.handle in self.waiting, (
                    "answered twice, or after its connection went (1)"
                )
                self._check(effect.result, self.waiting.pop(effect.handle))
            elif isinstance(effect, StoreClassicGroup):
                self.saves.append(effect)

    def _check(self, reply, member_id):
        if reply.code is not ErrorCode.NONE:
            return
        if isinstance(reply, JoinResult):
            assert reply.member_id == member_id
            assert bool(reply.members) <= (reply.leader == member_id), (
                "who is there is for the leader alone (4)"
            )
            if reply.members:
                # A static leader may rejoin under another id while all others stay.
                before = self.leaders.setdefault(reply.generation, member_id)
                assert before == member_id or self.group.roster.get(before) is None, (
                    "two leaders of one generation (4)"
                )
                self.leaders[reply.generation] = member_id
        elif isinstance(reply, SyncResult):
            assert self.stored is not None
            row = decode(self.stored)
            assert row.generation == self.group.generation, (
                "an assignment of a generation that is not stored (5)"
            )
            assert self._stored_for(member_id, row) == reply.assignment, (
                "told before it was stored (5)"
            )
            assert reply.assignment in {b"", *self.words.get(row.generation, ())}, (
                "not the leader's word (5)"
            )

    def _stored_for(self, member_id, row):
        """The stored assignment of a member.

        The row may have a static member under its previous id until the new id is stored.
        """
        instance_id = self.group.roster.get(member_id).instance_id
        is_it = [
            one
            for one in row.members
            if one.member_id == member_id
            or (instance_id is not None and one.instance_id == instance_id)
        ]
        return is_it[0].assignment if is_it else None

    def _member(self, which):
        """A member or pending id, with its instance id."""
        candidates = [(member.member_id, member.instance_id) for member in self.group.roster] + [
            (name, None) for name in self.group.roster.pending
        ]
        return candidates[which % len(candidates)] if candidates else ("unknown", None)

    def _any_member_id(self, which):
        """Any id that was ever issued."""
        return self.ids[which % len(self.ids)]

    def _join(self, member_id, instance, protocols, session, rebalance, first, skip):
        new_id = member_id or f"{instance or 'm'}-{self.handles}"
        if not member_id:
            self.ids.append(new_id)
        handle = self._handle(new_id)
        joining = MemberJoin(
            member_id, instance, "c", "/h", "consumer", protocols, session, rebalance, first, skip
        )
        self.group.join(joining, new_id, handle, self.now)
        self._take()

    def _sync(self, member_id, instance, generation):
        assignments = {
            one.member_id: f"{generation}-{one.member_id}-{self.handles}".encode()
            for one in self.group.roster
        }
        if self.group.roster.leader == member_id:
            self.words.setdefault(generation, set()).update(assignments.values())
        handle = self._handle(member_id)
        self.group.sync(
            MemberSync(member_id, instance, generation, assignments=tuple(assignments.items())),
            handle,
            self.now,
        )
        self._take()

    @rule(
        instance=INSTANCES,
        protocols=FITTING,
        session=TIMEOUTS,
        rebalance=TIMEOUTS,
        first=st.booleans(),
        skip=st.booleans(),
    )
    def new_member_joins(self, instance, protocols, session, rebalance, first, skip):
        self._join("", instance, protocols, session, rebalance, first, skip)

    @rule(which=WHICH, protocols=FITTING, session=TIMEOUTS, rebalance=TIMEOUTS)
    def member_rejoins(self, which, protocols, session, rebalance):
        self._join(*self._member(which), protocols, session, rebalance, True, False)

    @rule()
    def all_rejoin(self):
        """As clients do after REBALANCE_IN_PROGRESS."""
        for member in list(self.group.roster):
            if self.group.roster.get(
                member.member_id
            ) is member and not self.group._waiting_requests.has_join(member.member_id):
                self._join(
                    member.member_id, member.instance_id, member.protocols, 5_000, 5_000, True, True
                )

    @rule()
    def rebalance_completes(self):
        self.all_rejoin()
        self.now += self.settings.group_initial_rebalance_delay_ms
        self._expire()
        self.all_sync()
        while self.saves:
            self.store_completes_write(True)

    @rule(which=WHICH)
    def member_syncs(self, which):
        self._sync(*self._member(which), self.group.generation)

    @rule()
    def all_sync(self):
        for member in list(self.group.roster):
            self._sync(member.member_id, member.instance_id, self.group.generation)

    @rule(
        which=WHICH,
        instance=INSTANCES,
        protocols=PROTOCOLS,
        older=st.integers(0, 1),
        first=st.booleans(),
    )
    def client_sends_inconsistent_requests(self, which, instance, protocols, older, first):
        self._join(self._any_member_id(which), instance, protocols, 1_000, 1_000, first, False)
        self._sync(self._any_member_id(which), instance, self.group.generation - older)
        with suppress(KafkaError):
            self.group.leave(self._any_member_id(which), instance, "", self.now)
        self._take()

    @rule(which=WHICH, older=st.sampled_from([0, 0, 1]))
    def heartbeat_and_commit(self, which, older):
        member_id, instance = self._member(which)
        for ask in (self.group.heartbeat, self.group.validate_offset_commit):
            with suppress(KafkaError):
                ask(member_id, self.group.generation - older, instance, self.now)
                assert self.group.state is GroupState.EMPTY or (
                    not older and member_id in self.group.roster
                )
        self._take()

    @rule(which=WHICH, by_instance_alone=st.booleans())
    def leave(self, which, by_instance_alone):
        member_id, instance = self._member(which)
        with suppress(KafkaError):
            self.group.leave("" if by_instance_alone else member_id, instance, "", self.now)
        self._take()

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH)
    def connection_closes(self, which):
        handle = sorted(self.waiting)[which % len(self.waiting)]
        self.group.cancel_request(self.waiting.pop(handle), handle, self.now)
        if any(save.reply is not None and save.reply.handle == handle for save in self.saves):
            # The reply waits for the store and is then discarded.
            self.saves = [
                save
                if save.reply is None or save.reply.handle != handle
                else StoreClassicGroup(save.row)
                for save in self.saves
            ]
        self._take()

    @precondition(lambda self: self.saves)
    @rule(is_stored=st.sampled_from([True, True, True, False]))
    def store_completes_write(self, is_stored):
        save = self.saves.pop(0)
        if is_stored:
            self.stored = encode(save.row)
            self.group.on_stored(save, self.now)
        else:
            self.group.on_store_failed(save, self.now)
        self._take()

    @rule(ms=st.sampled_from([1, 500, 1_000, 3_000, 3_000, 3_000, 10_000, LONGEST, 400_000]))
    def time_passes(self, ms):
        self.now += ms
        self._expire()

    def _expire(self):
        self.group.expire(self.now)
        self._take()
        # Without an initial delay, a first rebalance that others joined is extended once.
        assert (
            self.group.next_expire_at > self.now
            or not self.settings.group_initial_rebalance_delay_ms
        ), "due and not done (7)"

    @rule(is_stored=st.booleans())
    def crash(self, is_stored):
        """Drop all waiting requests. Each write in flight is either stored or not."""
        if is_stored and self.saves:
            self.stored = encode(self.saves[-1].row)
        self.waiting.clear()
        self.saves.clear()
        self.leaders.clear()
        if self.stored is None:
            self.group = ClassicGroup("g", self.settings, self.now)
            self.generation = 0
            return
        row = decode(self.stored)
        self.group = ClassicGroup.restored("g", row, self.settings, self.now)
        self.generation = row.generation
        assert self.group.generation == row.generation
        assert [one.member_id for one in self.group.roster] == [
            one.member_id for one in row.members
        ], "(8)"
        self._take()

    @invariant()
    def holds(self):
        group = self.group
        assert group.generation >= self.generation, "a generation went back (3)"
        self.generation = group.generation
        ids = [member.member_id for member in group.roster]
        instances = [
            member.instance_id for member in group.roster if member.instance_id is not None
        ]
        assert len(ids) == len(set(ids)), "(6)"
        assert len(instances) == len(set(instances)), "(6)"
        assert all(
            group.roster.member_id_of(member.instance_id) == member.member_id
            for member in group.roster
            if member.instance_id
        ), "(6)"
        assert not set(ids) & set(group.roster.pending), "(6)"
        assert group.roster.size == sum(member.size for member in group.roster)
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert group.roster.leader in ids, "(4)"
            assert all(member.supports(group.protocol) for member in group.roster)
        if group.state is GroupState.EMPTY:
            assert not ids
        assert group.next_expire_at <= group._next_deadline(), "(7)"
        held = {save.reply.handle for save in self.saves if save.reply is not None}
        assert set(self.waiting) == group._waiting_requests.handles() | held, (
            "a request will never be answered (1, 2)"
        )

    def teardown(self):
        """Invariant 2: complete all writes, then let time pass without requests."""
        if not hasattr(self, "group"):
            return
        for _ in range(1_000):
            while self.saves:
                self.store_completes_write(True)
            if self.group.next_expire_at == NEVER:
                break
            self.now = max(self.now, self.group.next_expire_at)
            self.group.expire(self.now)
            self._take()
        assert not self.waiting, "it waits for ever (2)"
        assert not len(self.group.roster), "a silent member stays (2)"
        assert not self.group.roster.pending, "(2)"
        assert self.group.state is GroupState.EMPTY
        assert self.group.next_expire_at == NEVER


GroupModel.TestCase.settings = settings(
    deadline=None, max_examples=scaled(100), stateful_step_count=30
)
test_a_group_keeps_its_word = GroupModel.TestCase
