"""Limits on bytes in flight: who is paused, who goes on, in which order, and that nothing is ever left waiting or counted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from twisted.internet.task import Clock

from gateway.net.flow_control import (
    MAX_BYTES_BEHIND_WAITING_REQUEST,
    RESUME_INTERVAL_SECONDS,
    RESUME_RESERVE_BYTES,
    ConnectionFlow,
    MemoryBudget,
    OutgoingBytes,
)

KIB = 1 << 10
MIB = 1 << 20


class Client:
    """A connection as its flow sees it."""

    def __init__(self, budget, *, max_bytes=16 * MIB, max_requests=100):
        self.reads = True
        self.resumes = 0
        self.flow = ConnectionFlow(
            budget,
            max_bytes=max_bytes,
            max_requests=max_requests,
            pause=self._pause,
            resume=self._resume,
        )

    def sends(self, *requests, then=0):
        """One chunk: these requests, and `then` bytes of an unfinished frame."""
        self.flow.partial_frame(then)
        for size in requests:
            self.flow.requests_arrived(size, 1)
        self.flow.pause_if_over_limit()

    def _pause(self):
        self.reads = False

    def _resume(self):
        self.reads = True
        self.resumes += 1


def env(limit=100 * MIB):
    clock = Clock()
    return MemoryBudget(limit, clock), clock


def turn(clock, times=1):
    for _ in range(times):
        clock.advance(RESUME_INTERVAL_SECONDS)


def test_a_connection_at_its_limit_of_bytes_is_not_read_until_it_is_below():
    budget, _ = env()
    client = Client(budget, max_bytes=1000)
    client.sends(999)
    assert client.reads
    client.sends(1)
    assert not client.reads
    client.flow.requests_finished(1, 1)
    assert client.reads


def test_a_connection_at_its_limit_of_requests_is_not_read_until_it_is_below():
    budget, _ = env()
    client = Client(budget, max_requests=2)
    client.sends(1, 1)
    assert not client.reads
    client.flow.requests_finished(1, 1)
    assert client.reads


def test_one_request_above_the_limit_of_its_connection_is_taken():
    budget, _ = env()
    client = Client(budget, max_bytes=1000)
    client.sends(5000)
    assert not client.reads
    client.flow.requests_finished(5000, 1)
    assert client.reads


def test_little_is_read_behind_a_request_that_waits():
    budget, _ = env()
    client = Client(budget)
    client.sends(100)
    client.flow.set_waiting(100)
    client.sends(1000)
    assert client.reads
    client.sends(then=MAX_BYTES_BEHIND_WAITING_REQUEST)
    assert not client.reads
    client.flow.set_waiting(None)
    assert client.reads
    client.sends(MAX_BYTES_BEHIND_WAITING_REQUEST)
    assert client.reads


def test_as_much_is_read_behind_a_large_request_that_waits():
    budget, _ = env()
    client = Client(budget)
    client.sends(MAX_BYTES_BEHIND_WAITING_REQUEST)
    client.flow.set_waiting(MAX_BYTES_BEHIND_WAITING_REQUEST)
    client.sends(MAX_BYTES_BEHIND_WAITING_REQUEST - 1)
    assert client.reads
    client.sends(1)
    assert not client.reads
    client.flow.set_waiting(None)
    client.flow.requests_finished(MAX_BYTES_BEHIND_WAITING_REQUEST, 1)
    assert client.reads


def test_all_connections_together_are_limited():
    budget, clock = env()
    busy, other = Client(budget, max_bytes=200 * MIB), Client(budget)
    busy.sends(100 * MIB)
    other.sends(1)
    assert (busy.reads, other.reads) == (False, False)
    turn(clock, 10)
    assert (busy.reads, other.reads) == (False, False)
    busy.flow.requests_finished(100 * MIB, 1)
    turn(clock)
    assert (busy.reads, other.reads) == (True, True)


def test_the_longest_waiting_goes_on_first():
    budget, clock = env(100 * MIB)
    clients = [Client(budget, max_bytes=200 * MIB) for _ in range(3)]
    clients[0].sends(100 * MIB)
    clients[1].sends(10)
    clients[2].sends(10)
    # Room for one chunk, and so for one of them.
    clients[0].flow.requests_finished(RESUME_RESERVE_BYTES, 0)
    turn(clock)
    assert [client.reads for client in clients] == [True, False, False]
    clients[0].sends(RESUME_RESERVE_BYTES)
    turn(clock)
    assert [client.reads for client in clients] == [False, False, False]
    clients[0].flow.requests_finished(2 * RESUME_RESERVE_BYTES, 1)
    turn(clock)
    assert [client.reads for client in clients] == [False, True, True]


def test_no_more_go_on_at_a_time_than_there_is_room_for():
    budget, clock = env(100 * MIB)
    holder = Client(budget, max_bytes=200 * MIB)
    holder.sends(100 * MIB)
    clients = [Client(budget) for _ in range(100)]
    for client in clients:
        client.sends(1)
    holder.flow.requests_finished(10 * RESUME_RESERVE_BYTES, 0)
    turn(clock)
    assert 1 + sum(client.reads for client in clients) in (9, 10, 11)


def test_an_idle_connection_whose_turn_it_was_holds_nobody_up():
    budget, clock = env(100 * MIB)
    holder, idle, waiting = Client(budget, max_bytes=200 * MIB), Client(budget), Client(budget)
    holder.sends(100 * MIB)
    idle.sends(1)
    waiting.sends(1)
    holder.flow.requests_finished(100, 0)
    turn(clock, 5)
    assert idle.reads
    assert waiting.reads


def test_announced_bytes_that_never_come_use_nothing_up():
    budget, _ = env(100 * MIB)
    liars = [Client(budget) for _ in range(50)]
    for liar in liars:
        liar.sends(then=4)
    assert budget.used == 200


def test_unfinished_frames_that_hold_the_budget_end_one_after_the_other():
    budget, clock = env(100 * MIB)
    clients = [Client(budget, max_bytes=200 * MIB) for _ in range(3)]
    for client in clients:
        client.sends(then=60 * MIB)
    clients[0].sends(then=61 * MIB)
    assert [client.reads for client in clients] == [False, False, False]
    turn(clock)
    # The second was the first to be stopped. It may go on for as long as its frame does.
    for size in (70, 80, 90):
        assert [client.reads for client in clients] == [False, True, False]
        clients[1].sends(then=size * MIB)
        turn(clock, 3)
    clients[1].sends(90 * MIB)
    clients[1].flow.requests_finished(90 * MIB, 1)
    turn(clock)
    assert [client.reads for client in clients] == [False, True, True]
    clients[2].sends(60 * MIB)
    clients[2].flow.requests_finished(60 * MIB, 1)
    turn(clock)
    assert [client.reads for client in clients] == [True, True, True]


def test_a_long_poll_under_way_does_not_keep_unfinished_frames_from_ending():
    budget, clock = env(100 * MIB)
    consumer, producer = Client(budget), Client(budget)
    consumer.sends(100)
    producer.sends(then=100 * MIB)
    assert not producer.reads
    turn(clock)
    assert producer.reads


def test_small_requests_are_served_while_unfinished_frames_hold_the_budget():
    budget, clock = env(96 * MIB)
    stalled = [Client(budget, max_bytes=200 * MIB) for _ in range(2)]
    for client in stalled:
        client.sends(then=50 * MIB)
    turn(clock, 100)
    small = [Client(budget) for _ in range(20)]
    for _ in range(10):
        for client in small:
            assert client.reads
            client.sends(1000)
            client.flow.requests_finished(1000, 1)


def test_the_frame_that_is_let_go_on_does_not_keep_small_requests_out():
    budget, clock = env(80 * MIB)
    hoarders = [Client(budget, max_bytes=200 * MIB) for _ in range(4)]
    for size in (10, 20, 21):
        for hoarder in hoarders:
            hoarder.sends(then=size * MIB)
    turn(clock)
    (reading,) = [hoarder for hoarder in hoarders if hoarder.reads]
    reading.sends(then=79 * MIB)
    small = Client(budget)
    for _ in range(10):
        small.sends(1000)
        assert small.reads
        small.flow.requests_finished(1000, 1)


def test_of_those_that_begin_large_frames_meanwhile_each_gets_in_one_chunk():
    budget, clock = env(80 * MIB)
    Client(budget, max_bytes=200 * MIB).sends(then=80 * MIB)
    clients = [Client(budget) for _ in range(200)]
    come = dict.fromkeys(clients, 0)
    for _ in range(100):
        for client in clients:
            if client.reads:
                come[client] += RESUME_RESERVE_BYTES
                client.sends(then=come[client])
        turn(clock)
    assert budget.used == 80 * MIB + 200 * RESUME_RESERVE_BYTES


def test_one_that_comes_when_the_house_is_full_gets_in_one_chunk():
    budget, clock = env(80 * MIB)
    for _ in range(2):
        Client(budget, max_bytes=200 * MIB).sends(then=60 * MIB)
    late = Client(budget)
    late.sends(then=RESUME_RESERVE_BYTES)
    turn(clock, 100)
    assert not late.reads


def test_the_place_of_one_that_goes_is_free():
    budget, clock = env(100 * MIB)
    first, second = Client(budget, max_bytes=200 * MIB), Client(budget, max_bytes=200 * MIB)
    first.sends(then=60 * MIB)
    second.sends(then=60 * MIB)
    first.sends(then=61 * MIB)
    turn(clock)
    assert second.reads
    assert not first.reads
    second.flow.close()
    turn(clock)
    assert first.reads
    assert budget.used == 61 * MIB


def test_one_that_is_gone_is_never_resumed():
    budget, clock = env(100)
    client = Client(budget)
    client.sends(100)
    client.flow.close()
    client.flow.requests_finished(100, 1)
    turn(clock, 3)
    assert client.resumes == 0
    assert budget.used == 0


def test_nobody_waiting_means_nothing_to_do():
    budget, clock = env(100)
    client = Client(budget)
    client.sends(100)
    client.flow.requests_finished(100, 1)
    turn(clock, 2)
    assert client.reads
    assert clock.getDelayedCalls() == []


def test_a_reply_may_have_a_quarter_of_the_room_that_is_left():
    outgoing = OutgoingBytes(100 * MIB)
    assert outgoing.reserve(10 * MIB) == 10 * MIB
    assert outgoing.reserve(50 * MIB) == (90 * MIB) // 4
    outgoing.release(10 * MIB)
    outgoing.release((90 * MIB) // 4)
    outgoing.unsent = 99 * MIB
    assert outgoing.reserve(50 * MIB) == MIB // 4
    outgoing.unsent = 200 * MIB
    assert outgoing.reserve(50 * MIB) == 0


def test_however_many_ask_together_no_more_is_promised_than_there_is_room_for():
    outgoing = OutgoingBytes(100 * MIB)
    assert sum(outgoing.reserve(50 * MIB) for _ in range(1000)) <= 100 * MIB


def test_a_limit_below_zero_or_of_nothing_promises_nothing():
    outgoing = OutgoingBytes(100 * MIB)
    assert [outgoing.reserve(wanted) for wanted in (0, -1, -(2**31))] == [0, 0, 0]
    assert outgoing.reserved == 0


class BrokerEnvironment(RuleBasedStateMachine):
    """Any number of honest clients that come, send when they are read, are answered, and go at any time."""

    LIMIT = 4 * MIB
    clients = Bundle("clients")

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.budget = MemoryBudget(self.LIMIT, self.clock)
        self.owed = {}
        self.frames = {}
        self.leaving = []

    @rule(target=clients)
    def comes(self):
        client = Client(self.budget, max_bytes=1 * MIB, max_requests=5)
        self.owed[client], self.frames[client] = [], None
        return client

    @rule(client=clients, size=st.sampled_from([1, KIB, 100 * KIB, 256 * KIB, 1 * MIB, 3 * MIB]))
    def begins_a_frame(self, client, size):
        if client.reads and self.frames[client] is None:
            self.frames[client] = (0, size)
            self.reads_a_chunk(client)

    @rule(client=clients)
    def reads_a_chunk(self, client):
        if not client.reads or self.frames[client] is None:
            return
        come, size = self.frames[client]
        come = min(come + RESUME_RESERVE_BYTES, size)
        if come == size:
            self.frames[client] = None
            self.owed[client].append(size)
            client.sends(size)
        else:
            self.frames[client] = (come, size)
            client.sends(then=come)

    @rule(client=clients)
    def is_answered(self, client):
        if self.owed[client]:
            client.flow.requests_finished(self.owed[client].pop(0), 1)

    @rule(client=consumes(clients), keeps=st.booleans())
    def goes(self, client, keeps):
        """Some of its requests may outlive it: records that are being stored."""
        owed = self.owed.pop(client)
        del self.frames[client]
        kept = owed if keeps else []
        given = [] if keeps else owed
        client.flow.requests_finished(sum(given), len(given))
        client.flow.close()
        self.leaving += [(client, size) for size in kept]

    @rule()
    def time_passes(self):
        self.clock.advance(RESUME_INTERVAL_SECONDS)

    @invariant()
    def what_is_counted_is_there(self):
        assert self.budget.request_bytes == sum(map(sum, self.owed.values())) + sum(
            size for _, size in self.leaving
        )
        assert self.budget.partial_bytes == sum(frame[0] for frame in self.frames.values() if frame)

    @invariant()
    def the_limit_holds_but_for_a_chunk_each_and_one_frame(self):
        assert self.budget.used <= self.LIMIT + self.LIMIT // 8 + 3 * MIB + RESUME_RESERVE_BYTES * (
            len(self.owed) + 1
        )

    def teardown(self):
        """Everybody is served in the end: nobody waits for ever, and nothing is left in the books."""
        for client, size in self.leaving:
            client.flow.requests_finished(size, 1)
        self.leaving = []
        for _ in range(60 * (len(self.owed) + 1)):
            for client in self.owed:
                self.is_answered(client)
                self.reads_a_chunk(client)
            self.clock.advance(RESUME_INTERVAL_SECONDS)
        assert all(frame is None for frame in self.frames.values())
        assert not any(self.owed.values())
        assert all(client.reads for client in self.owed)
        assert self.budget.used == 0


TestHouse = BrokerEnvironment.TestCase
TestHouse.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
