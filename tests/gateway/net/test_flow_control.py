"""Flow control: which connections are paused and resumed, in which order, and exact accounting."""

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
from tests.examples import scaled

KIB = 1 << 10
MIB = 1 << 20


class FlowClient:
    """A connection as flow control sees it."""

    def __init__(self, budget, *, max_bytes=16 * MIB, max_requests=100):
        self.is_read = True
        self.resumes = 0
        self.flow = ConnectionFlow(
            budget,
            max_bytes=max_bytes,
            max_requests=max_requests,
            pause=self._pause,
            resume=self._resume,
        )

    def receive(self, *requests, then=0):
        """Receive one chunk: these requests, and `then` bytes of a partial frame."""
        self.flow.partial_frame(then)
        for size in requests:
            self.flow.requests_arrived(size, 1)
        self.flow.pause_if_over_limit()

    def _pause(self):
        self.is_read = False

    def _resume(self):
        self.is_read = True
        self.resumes += 1


def budget_and_clock(limit=100 * MIB):
    clock = Clock()
    return MemoryBudget(limit, clock), clock


def run_timer(clock, times=1):
    for _ in range(times):
        clock.advance(RESUME_INTERVAL_SECONDS)


def test_connection_at_byte_limit_is_paused_until_below_it():
    budget, _ = budget_and_clock()
    client = FlowClient(budget, max_bytes=1000)
    client.receive(999)
    assert client.is_read
    client.receive(1)
    assert not client.is_read
    client.flow.requests_finished(1, 1)
    assert client.is_read


def test_connection_at_request_limit_is_paused_until_below_it():
    budget, _ = budget_and_clock()
    client = FlowClient(budget, max_requests=2)
    client.receive(1, 1)
    assert not client.is_read
    client.flow.requests_finished(1, 1)
    assert client.is_read


def test_one_request_above_connection_limit_is_accepted():
    budget, _ = budget_and_clock()
    client = FlowClient(budget, max_bytes=1000)
    client.receive(5000)
    assert not client.is_read
    client.flow.requests_finished(5000, 1)
    assert client.is_read


def test_little_is_read_behind_waiting_request():
    budget, _ = budget_and_clock()
    client = FlowClient(budget)
    client.receive(100)
    client.flow.set_waiting(100)
    client.receive(1000)
    assert client.is_read
    client.receive(then=MAX_BYTES_BEHIND_WAITING_REQUEST)
    assert not client.is_read
    client.flow.set_waiting(None)
    assert client.is_read
    client.receive(MAX_BYTES_BEHIND_WAITING_REQUEST)
    assert client.is_read


def test_size_of_waiting_request_does_not_count():
    budget, _ = budget_and_clock()
    client = FlowClient(budget)
    client.receive(MAX_BYTES_BEHIND_WAITING_REQUEST)
    client.flow.set_waiting(MAX_BYTES_BEHIND_WAITING_REQUEST)
    client.receive(MAX_BYTES_BEHIND_WAITING_REQUEST - 1)
    assert client.is_read
    client.receive(1)
    assert not client.is_read
    client.flow.set_waiting(None)
    client.flow.requests_finished(MAX_BYTES_BEHIND_WAITING_REQUEST, 1)
    assert client.is_read


def test_total_of_all_connections_is_limited():
    budget, clock = budget_and_clock()
    busy, other = FlowClient(budget, max_bytes=200 * MIB), FlowClient(budget)
    busy.receive(100 * MIB)
    other.receive(1)
    assert (busy.is_read, other.is_read) == (False, False)
    run_timer(clock, 10)
    assert (busy.is_read, other.is_read) == (False, False)
    busy.flow.requests_finished(100 * MIB, 1)
    run_timer(clock)
    assert (busy.is_read, other.is_read) == (True, True)


def test_longest_waiting_connection_resumes_first():
    budget, clock = budget_and_clock(100 * MIB)
    clients = [FlowClient(budget, max_bytes=200 * MIB) for _ in range(3)]
    clients[0].receive(100 * MIB)
    clients[1].receive(10)
    clients[2].receive(10)
    # Room for one chunk, so one connection resumes.
    clients[0].flow.requests_finished(RESUME_RESERVE_BYTES, 0)
    run_timer(clock)
    assert [client.is_read for client in clients] == [True, False, False]
    clients[0].receive(RESUME_RESERVE_BYTES)
    run_timer(clock)
    assert [client.is_read for client in clients] == [False, False, False]
    clients[0].flow.requests_finished(2 * RESUME_RESERVE_BYTES, 1)
    run_timer(clock)
    assert [client.is_read for client in clients] == [False, True, True]


def test_connections_resume_only_as_room_allows():
    budget, clock = budget_and_clock(100 * MIB)
    holder = FlowClient(budget, max_bytes=200 * MIB)
    holder.receive(100 * MIB)
    clients = [FlowClient(budget) for _ in range(100)]
    for client in clients:
        client.receive(1)
    holder.flow.requests_finished(10 * RESUME_RESERVE_BYTES, 0)
    run_timer(clock)
    assert 1 + sum(client.is_read for client in clients) in (9, 10, 11)


def test_resumed_idle_connection_does_not_block_others():
    budget, clock = budget_and_clock(100 * MIB)
    holder, idle, waiting = (
        FlowClient(budget, max_bytes=200 * MIB),
        FlowClient(budget),
        FlowClient(budget),
    )
    holder.receive(100 * MIB)
    idle.receive(1)
    waiting.receive(1)
    holder.flow.requests_finished(100, 0)
    run_timer(clock, 5)
    assert idle.is_read
    assert waiting.is_read


def test_announced_bytes_that_never_arrive_do_not_count():
    budget, _ = budget_and_clock(100 * MIB)
    clients = [FlowClient(budget) for _ in range(50)]
    for client in clients:
        client.receive(then=4)
    assert budget.used == 200


def test_partial_frames_that_fill_budget_complete_one_by_one():
    budget, clock = budget_and_clock(100 * MIB)
    clients = [FlowClient(budget, max_bytes=200 * MIB) for _ in range(3)]
    for client in clients:
        client.receive(then=60 * MIB)
    clients[0].receive(then=61 * MIB)
    assert [client.is_read for client in clients] == [False, False, False]
    run_timer(clock)
    # The second was paused first. It may complete its frame.
    for size in (70, 80, 90):
        assert [client.is_read for client in clients] == [False, True, False]
        clients[1].receive(then=size * MIB)
        run_timer(clock, 3)
    clients[1].receive(90 * MIB)
    clients[1].flow.requests_finished(90 * MIB, 1)
    run_timer(clock)
    assert [client.is_read for client in clients] == [False, True, True]
    clients[2].receive(60 * MIB)
    clients[2].flow.requests_finished(60 * MIB, 1)
    run_timer(clock)
    assert [client.is_read for client in clients] == [True, True, True]


def test_long_poll_does_not_prevent_partial_frames_from_completing():
    budget, clock = budget_and_clock(100 * MIB)
    consumer, producer = FlowClient(budget), FlowClient(budget)
    consumer.receive(100)
    producer.receive(then=100 * MIB)
    assert not producer.is_read
    run_timer(clock)
    assert producer.is_read


def test_small_requests_are_served_while_partial_frames_fill_budget():
    budget, clock = budget_and_clock(96 * MIB)
    stalled = [FlowClient(budget, max_bytes=200 * MIB) for _ in range(2)]
    for client in stalled:
        client.receive(then=50 * MIB)
    run_timer(clock, 100)
    small = [FlowClient(budget) for _ in range(20)]
    for _ in range(10):
        for client in small:
            assert client.is_read
            client.receive(1000)
            client.flow.requests_finished(1000, 1)


def test_unblocked_frame_does_not_exclude_small_requests():
    budget, clock = budget_and_clock(80 * MIB)
    senders = [FlowClient(budget, max_bytes=200 * MIB) for _ in range(4)]
    for size in (10, 20, 21):
        for sender in senders:
            sender.receive(then=size * MIB)
    run_timer(clock)
    (reading,) = [sender for sender in senders if sender.is_read]
    reading.receive(then=79 * MIB)
    small = FlowClient(budget)
    for _ in range(10):
        small.receive(1000)
        assert small.is_read
        small.flow.requests_finished(1000, 1)


def test_new_large_frames_are_each_read_up_to_one_chunk():
    budget, clock = budget_and_clock(80 * MIB)
    FlowClient(budget, max_bytes=200 * MIB).receive(then=80 * MIB)
    clients = [FlowClient(budget) for _ in range(200)]
    received = dict.fromkeys(clients, 0)
    for _ in range(100):
        for client in clients:
            if client.is_read:
                received[client] += RESUME_RESERVE_BYTES
                client.receive(then=received[client])
        run_timer(clock)
    assert budget.used == 80 * MIB + 200 * RESUME_RESERVE_BYTES


def test_new_connection_may_read_one_chunk_when_budget_is_full():
    budget, clock = budget_and_clock(80 * MIB)
    for _ in range(2):
        FlowClient(budget, max_bytes=200 * MIB).receive(then=60 * MIB)
    late = FlowClient(budget)
    late.receive(then=RESUME_RESERVE_BYTES)
    run_timer(clock, 100)
    assert not late.is_read


def test_closed_connection_releases_unblocked_slot():
    budget, clock = budget_and_clock(100 * MIB)
    first, second = FlowClient(budget, max_bytes=200 * MIB), FlowClient(budget, max_bytes=200 * MIB)
    first.receive(then=60 * MIB)
    second.receive(then=60 * MIB)
    first.receive(then=61 * MIB)
    run_timer(clock)
    assert second.is_read
    assert not first.is_read
    second.flow.close()
    run_timer(clock)
    assert first.is_read
    assert budget.used == 61 * MIB


def test_closed_connection_is_never_resumed():
    budget, clock = budget_and_clock(100)
    client = FlowClient(budget)
    client.receive(100)
    client.flow.close()
    client.flow.requests_finished(100, 1)
    run_timer(clock, 3)
    assert client.resumes == 0
    assert budget.used == 0


def test_no_timer_runs_while_no_connection_waits():
    budget, clock = budget_and_clock(100)
    client = FlowClient(budget)
    client.receive(100)
    client.flow.requests_finished(100, 1)
    run_timer(clock, 2)
    assert client.is_read
    assert clock.getDelayedCalls() == []


def test_reply_reserves_at_most_a_quarter_of_free_bytes():
    outgoing = OutgoingBytes(100 * MIB)
    assert outgoing.reserve(10 * MIB) == 10 * MIB
    assert outgoing.reserve(50 * MIB) == (90 * MIB) // 4
    outgoing.release(10 * MIB)
    outgoing.release((90 * MIB) // 4)
    outgoing.unsent = 99 * MIB
    assert outgoing.reserve(50 * MIB) == MIB // 4
    outgoing.unsent = 200 * MIB
    assert outgoing.reserve(50 * MIB) == 0


def test_reservations_never_exceed_limit():
    outgoing = OutgoingBytes(100 * MIB)
    assert sum(outgoing.reserve(50 * MIB) for _ in range(1000)) <= 100 * MIB


def test_zero_or_negative_size_reserves_nothing():
    outgoing = OutgoingBytes(100 * MIB)
    assert [outgoing.reserve(wanted) for wanted in (0, -1, -(2**31))] == [0, 0, 0]
    assert outgoing.reserved == 0


class FlowControlMachine(RuleBasedStateMachine):
    """Clients that connect, send while they are read, get replies, and disconnect at any time."""

    LIMIT = 4 * MIB
    clients = Bundle("clients")

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.budget = MemoryBudget(self.LIMIT, self.clock)
        self.unanswered = {}
        self.frames = {}
        self.outliving = []

    @rule(target=clients)
    def connects(self):
        client = FlowClient(self.budget, max_bytes=1 * MIB, max_requests=5)
        self.unanswered[client], self.frames[client] = [], None
        return client

    @rule(client=clients, size=st.sampled_from([1, KIB, 100 * KIB, 256 * KIB, 1 * MIB, 3 * MIB]))
    def begins_a_frame(self, client, size):
        if client.is_read and self.frames[client] is None:
            self.frames[client] = (0, size)
            self.reads_a_chunk(client)

    @rule(client=clients)
    def reads_a_chunk(self, client):
        if not client.is_read or self.frames[client] is None:
            return
        received, size = self.frames[client]
        received = min(received + RESUME_RESERVE_BYTES, size)
        if received == size:
            self.frames[client] = None
            self.unanswered[client].append(size)
            client.receive(size)
        else:
            self.frames[client] = (received, size)
            client.receive(then=received)

    @rule(client=clients)
    def receives_a_reply(self, client):
        if self.unanswered[client]:
            client.flow.requests_finished(self.unanswered[client].pop(0), 1)

    @rule(client=consumes(clients), keeps=st.booleans())
    def disconnects(self, client, keeps):
        """Appends may outlive the connection."""
        unanswered = self.unanswered.pop(client)
        del self.frames[client]
        kept = unanswered if keeps else []
        given = [] if keeps else unanswered
        client.flow.requests_finished(sum(given), len(given))
        client.flow.close()
        self.outliving += [(client, size) for size in kept]

    @rule()
    def time_passes(self):
        self.clock.advance(RESUME_INTERVAL_SECONDS)

    @invariant()
    def counters_match_held_bytes(self):
        assert self.budget.request_bytes == sum(map(sum, self.unanswered.values())) + sum(
            size for _, size in self.outliving
        )
        assert self.budget.partial_bytes == sum(frame[0] for frame in self.frames.values() if frame)

    @invariant()
    def limit_is_exceeded_by_one_chunk_each_and_one_frame_at_most(self):
        assert self.budget.used <= self.LIMIT + self.LIMIT // 8 + 3 * MIB + RESUME_RESERVE_BYTES * (
            len(self.unanswered) + 1
        )

    def teardown(self):
        """In the end every client is served, none stays paused, and all counters are 0."""
        for client, size in self.outliving:
            client.flow.requests_finished(size, 1)
        self.outliving = []
        for _ in range(60 * (len(self.unanswered) + 1)):
            for client in self.unanswered:
                self.receives_a_reply(client)
                self.reads_a_chunk(client)
            self.clock.advance(RESUME_INTERVAL_SECONDS)
        assert all(frame is None for frame in self.frames.values())
        assert not any(self.unanswered.values())
        assert all(client.is_read for client in self.unanswered)
        assert self.budget.used == 0


TestFlowControl = FlowControlMachine.TestCase
TestFlowControl.settings = settings(max_examples=scaled(100), stateful_step_count=50, deadline=None)
