"""Requests of one connection: order, overlap, cancellation and failures."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.protocol.consumer.fetch import FetchResponse
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from gateway.net.flow_control import MAX_BYTES_BEHIND_WAITING_REQUEST, MemoryBudget
from gateway.protocol.dispatch import MAX_BUFFERED_REPLY_BYTES, MAX_REQUESTS_PER_TURN
from gateway.protocol.errors import ErrorCode, KafkaError, Refused
from gateway.protocol.routes import ROUTES, DelayedReply, Route
from gateway.protocol.wire.api_keys import ApiKey
from tests.examples import scaled
from tests.fakes.broker import ended, open_environment
from tests.fakes.connection import PEER, MemoryClient, events, plain_frame, versions
from tests.gateway.handlers.fetch_requests import batch_entry
from tests.testkit.gateway import encode_request, fetch_request

PRODUCE, OTHER, TAGGED = ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FETCH


class Handlers:
    """The handlers handlers the dispatch.

    Each request waits for its Deferred, if there is one; its reply is its body.
    """

    def __init__(self):
        self.started = []
        self.ended = []
        self.cancelled = []
        self.clock = None
        self.takes = 0.0
        self.preparing = {}
        self.answers = {}
        self.on_start = lambda body: None
        self.long_poll = None

    async def other(self, request, caller):
        self.long_poll = caller.long_poll
        return await self._serve(request, self.answers)

    async def produce(self, request, caller):
        body, _ = request
        self.on_start(body)
        self.started.append(body)
        if body in self.preparing:
            await self.preparing[body]
        return DelayedReply(self._finish(body))

    async def _finish(self, body):
        answer = self.answers.get(body)
        if isinstance(answer, Exception):
            raise answer
        return body if answer is None else await answer

    async def _serve(self, request, answers):
        body, _ = request
        self.on_start(body)
        self.started.append(body)
        if self.clock is not None:
            self.clock.rightNow += self.takes
        try:
            return await self._finish(body)
        except CancelledError:
            self.cancelled.append(body)
            raise

    def notes(self, look):
        """Record what `look` returns when each request starts, by body."""
        found = {}
        self.on_start = lambda body: found.setdefault(body, look())
        return found

    def waits(self, body):
        self.answers[body] = Deferred()
        return self.answers[body]


def read(frame, position, version):
    body = bytes(frame[position:])
    if body == b"unreadable":
        raise struct.error("too short")
    return body, version


class SlowTransport:
    """A transport whose peer reads slowly after the first write."""

    def __init__(self, client):
        self.client = client
        self.is_slow = True
        self.writes = 0

    def write(self, buffers):
        self.writes += 1
        self.client.dispatch.pause_writing(self.is_slow)


@pytest.fixture
def handlers(monkeypatch):
    handlers = Handlers()
    for key, handler, has_tags in [
        (PRODUCE, handlers.produce, False),
        (OTHER, handlers.other, False),
        (TAGGED, handlers.other, True),
    ]:
        route = Route(key, handler, read, lambda reply, version: [reply], has_tags)
        monkeypatch.setitem(ROUTES, (key, 0), route)
    return handlers


@pytest.fixture
def client(handlers):
    return MemoryClient()


def number(body):
    return int(body[1:])


def produce(body):
    return plain_frame(PRODUCE, 0, body, number(body))


def other(body):
    return plain_frame(OTHER, 0, body, number(body))


def reply(body):
    return struct.pack(">i", number(body)) + body


def test_reply_has_length_and_correlation_id(client):
    client.send(other(b"m7"))
    assert b"".join(client.written) == b"\0\0\0\x06" + b"\0\0\0\x07" + b"m7"


def test_flexible_reply_header_ends_with_tagged_fields(client):
    client.send(plain_frame(TAGGED, 0, b"f7", 7))
    assert client.receive() == [b"\0\0\0\x07" + b"\0" + b"f7"]


def test_requests_in_one_chunk_are_answered_in_one_write(client):
    client.send(other(b"m1"), produce(b"p2"), other(b"m3"))
    assert client.writes == 1
    assert client.receive() == [reply(b"m1"), reply(b"p2"), reply(b"m3")]


def test_finished_reply_is_written_before_next_request_starts(client, handlers):
    append = handlers.waits(b"p1")
    written = handlers.notes(lambda: list(client.written))
    client.send(produce(b"p1"), other(b"m2"))
    append.callback(b"p1")
    client.run_reactor()
    assert len(written[b"m2"]) > 0
    assert client.receive() == [reply(b"p1"), reply(b"m2")]


def test_finished_replies_are_written_before_fetch_starts(client, handlers):
    written = handlers.notes(lambda: list(client.written))
    client.send(other(b"m1"), other(b"m2"), plain_frame(TAGGED, 0, b"f3", 3))
    assert (written[b"m2"], len(written[b"f3"]) > 0) == ([], True)
    assert len(client.receive()) == 3


def test_waiting_request_is_acknowledged_at_once(client, handlers):
    handlers.waits(b"m1")
    client.send(other(b"m1"))
    assert (client.written, client.acknowledgements) == ([], 1)


def test_fetch_is_acknowledged_by_its_handler(client, handlers):
    """When it begins to wait for data."""
    handlers.waits(b"f1")
    client.send(plain_frame(TAGGED, 0, b"f1", 1))
    assert (client.written, client.acknowledgements) == ([], 0)
    handlers.long_poll.acknowledge()
    assert client.acknowledgements == 1


def test_request_answered_at_once_is_not_acknowledged(client):
    client.send(other(b"m1"))
    assert client.acknowledgements == 0


def test_requests_are_served_one_at_a_time(client, handlers):
    first = handlers.waits(b"m1")
    client.send(other(b"m1"), other(b"m2"))
    assert handlers.started == [b"m1"]
    first.callback(b"m1")
    assert handlers.started == [b"m1", b"m2"]
    assert client.receive() == [reply(b"m1"), reply(b"m2")]


def test_produce_requests_overlap_and_are_answered_in_order(client, handlers):
    first, second = handlers.waits(b"p1"), handlers.waits(b"p2")
    client.send(produce(b"p1"), produce(b"p2"), produce(b"p3"))
    assert handlers.started == [b"p1", b"p2", b"p3"]
    second.callback(b"p2")
    assert client.receive() == []
    first.callback(b"p1")
    assert client.receive() == [reply(b"p1"), reply(b"p2"), reply(b"p3")]


def test_produce_starts_after_previous_one_queued_its_appends(client, handlers):
    handlers.preparing[b"p1"] = Deferred()
    client.send(produce(b"p1"), produce(b"p2"))
    assert handlers.started == [b"p1"]
    handlers.preparing[b"p1"].callback(None)
    assert handlers.started == [b"p1", b"p2"]


def test_other_request_waits_for_appends_before_it(client, handlers):
    append = handlers.waits(b"p1")
    client.send(produce(b"p1"), other(b"m2"), produce(b"p3"))
    assert handlers.started == [b"p1"]
    append.callback(b"p1")
    client.run_reactor()
    assert handlers.started == [b"p1", b"m2", b"p3"]
    assert client.receive() == [reply(b"p1"), reply(b"m2"), reply(b"p3")]


def test_produce_waits_for_other_request_before_it(client, handlers):
    poll = handlers.waits(b"m1")
    client.send(other(b"m1"), produce(b"p2"))
    assert handlers.started == [b"m1"]
    poll.callback(b"m1")
    assert client.receive() == [reply(b"m1"), reply(b"p2")]


def test_request_without_reply_does_not_block_later_replies(client, handlers):
    first = handlers.waits(b"p1")
    second = handlers.waits(b"p2")
    client.send(produce(b"p1"), produce(b"p2"), produce(b"p3"))
    second.callback(None)  # acks=0
    first.callback(b"p1")
    assert client.receive() == [reply(b"p1"), reply(b"p3")]
    assert client.dispatch.is_idle


def test_many_requests_in_one_chunk_yield_to_reactor(client, handlers):
    client.send(*[other(b"m%d" % index) for index in range(10_000)])
    assert len(handlers.started) == MAX_REQUESTS_PER_TURN
    client.run_reactor()
    assert client.receive() == [reply(b"m%d" % index) for index in range(10_000)]


def test_slow_requests_yield_to_reactor_after_each(client, handlers):
    handlers.clock, handlers.takes = client.clock, 0.01
    client.send(*[other(b"m%d" % index) for index in range(10)])
    assert len(handlers.started) == 1
    client.run_reactor()
    assert client.receive() == [reply(b"m%d" % index) for index in range(10)]


def test_requests_behind_waiting_one_yield_to_reactor(client, handlers):
    first = handlers.waits(b"m0")
    client.send(*[other(b"m%d" % index) for index in range(10_000)])
    client.run_reactor()
    assert handlers.started == [b"m0"]
    first.callback(b"m0")
    assert len(handlers.started) == 1 + MAX_REQUESTS_PER_TURN
    client.run_reactor()
    assert len(client.receive()) == 10_000


def test_large_replies_are_sent_before_more_requests_start(client, handlers):
    large = SlowTransport(client)
    client.write = large.write
    client.send(
        *[
            plain_frame(OTHER, 0, b"m%d" % index + bytes(MAX_BUFFERED_REPLY_BYTES), index)
            for index in range(10)
        ]
    )
    # After the first write the transport reports that its peer reads slowly.
    assert len(handlers.started) == 1
    large.is_slow = False
    client.dispatch.pause_writing(False)
    assert len(handlers.started) == 10
    assert large.writes == 10


def test_no_request_starts_after_disconnect(client, handlers):
    client.send(*[other(b"m%d" % index) for index in range(1000)])
    client.disconnect()
    client.run_reactor()
    assert len(handlers.started) == MAX_REQUESTS_PER_TURN
    assert client.budget.used == 0


@pytest.mark.long
def test_cost_of_a_request_does_not_depend_on_queue_length(handlers):
    def seconds(count):
        client = MemoryClient()
        frames = [other(b"m%d" % index) for index in range(count)]
        began = time.process_time()
        client.send(*frames)
        client.run_reactor()
        return time.process_time() - began

    few = min(seconds(4000) for _ in range(5))
    many = min(seconds(64_000) for _ in range(2))
    # Sixteen times the requests. Scanning all unanswered ones each time would take 256 times
    # as long.
    assert many < 64 * few


# requests handlers a waiting Fetch


@pytest.fixture
def consumer():
    """A connection to a broker with the empty topic `orders`."""
    env = open_environment()
    env.topic("orders")
    return MemoryClient(broker=env.broker)


WAIT_MS = 30_000


def fetch(number, version=4):
    return encode_request(
        fetch_request("orders", 0, version, max_wait_ms=WAIT_MS), version, correlation_id=number
    )


def answered(client):
    """Correlation ids of the replies, in order."""
    return [struct.unpack_from(">i", frame)[0] for frame in client.receive()]


@pytest.mark.parametrize("version", [0, 3, 4, 11])
def test_waiting_fetch_is_answered_when_another_request_arrives(consumer, version):
    consumer.send(fetch(1, version))
    assert answered(consumer) == []
    consumer.send(versions(correlation_id=2))
    assert answered(consumer) == [1, 2]
    assert consumer.budget.used == 0


def test_early_answer_has_the_available_records(consumer):
    partition = ended(consumer.dispatch._broker.topics.partition("orders", 0))
    partition.log.append([batch_entry(0, 3)])
    asked = fetch_request("orders", 0, max_wait_ms=WAIT_MS, min_bytes=1 << 20)
    consumer.send(encode_request(asked, 4))
    assert answered(consumer) == []
    consumer.send(versions(correlation_id=2))
    fetched, _ = consumer.receive()
    reply = FetchResponse.decode(fetched[4:], version=4)
    assert bytes(reply.responses[0].partitions[0].records) == bytes(batch_entry(0, 3).payload)


def test_fetch_does_not_wait_if_request_arrived_with_it(consumer):
    consumer.send(fetch(1), versions(correlation_id=2))
    assert answered(consumer) == [1, 2]


def test_fetches_before_another_request_do_not_wait(consumer):
    consumer.send(fetch(1), fetch(2))
    consumer.send(versions(correlation_id=3))
    assert answered(consumer) == [1, 2, 3]


def test_fetch_behind_waiting_fetch_does_not_end_wait(consumer):
    """Two consumers on one connection would otherwise keep ending each other's waits."""
    consumer.send(fetch(1))
    consumer.send(fetch(2))
    assert answered(consumer) == []
    consumer.dispatch._broker.clock.advance(WAIT_MS / 1000)
    assert answered(consumer) == [1]


def test_request_behind_fetch_ends_one_wait(consumer):
    """The next Fetch waits for its full time unless another request arrives."""
    consumer.send(fetch(1))
    consumer.send(versions(correlation_id=2))
    consumer.send(fetch(3))
    assert answered(consumer) == [1, 2]
    consumer.dispatch._broker.clock.advance(WAIT_MS / 1000 - 1)
    assert answered(consumer) == []
    consumer.dispatch._broker.clock.advance(1)
    assert answered(consumer) == [3]


def test_waiting_fetch_is_answered_when_partial_request_arrives(consumer):
    """Its rest may not be read before the reply."""
    consumer.send(fetch(1))
    consumer.dispatch.partial_frame_received(b"")
    consumer.dispatch.partial_frame_received(b"\0")
    assert answered(consumer) == []
    consumer.dispatch.partial_frame_received(versions(correlation_id=2)[:2])
    assert answered(consumer) == [1]
    consumer.send(versions(correlation_id=2), fetch(3))
    assert answered(consumer) == [2]


def test_partial_fetch_does_not_end_wait(consumer):
    consumer.send(fetch(1))
    consumer.dispatch.partial_frame_received(fetch(2)[:2])
    assert answered(consumer) == []


# limits


def test_reading_pauses_at_request_limit_and_no_request_is_lost(handlers):
    client = MemoryClient(max_requests=3)
    first = handlers.waits(b"m1")
    client.send(other(b"m1"), other(b"m2"))
    assert client.is_read
    client.send(other(b"m3"), other(b"m4"))
    assert not client.is_read
    first.callback(b"m1")
    assert client.is_read
    assert len(client.receive()) == 4
    assert client.budget.used == 0


def test_no_request_starts_while_peer_reads_slowly(client, handlers):
    client.dispatch.pause_writing(True)
    client.send(other(b"m1"), produce(b"p2"))
    assert handlers.started == []
    client.dispatch.pause_writing(False)
    assert client.receive() == [reply(b"m1"), reply(b"p2")]


def test_running_request_is_answered_while_peer_reads_slowly(client, handlers):
    append = handlers.waits(b"p1")
    client.send(produce(b"p1"), produce(b"p2"))
    client.dispatch.pause_writing(True)
    client.send(produce(b"p3"))
    append.callback(b"p1")
    assert client.receive() == [reply(b"p1"), reply(b"p2")]
    assert not client.dispatch.is_idle


def test_large_requests_behind_waiting_one_are_not_read(client, handlers):
    poll = handlers.waits(b"m1")
    client.send(other(b"m1"))
    client.send(other(b"m2"))
    assert client.is_read
    client.send(plain_frame(PRODUCE, 0, b"p3" + bytes(MAX_BYTES_BEHIND_WAITING_REQUEST), 3))
    assert not client.is_read
    poll.callback(b"m1")
    assert client.is_read
    assert len(client.receive()) == 3
    client.send(plain_frame(PRODUCE, 0, b"p4" + bytes(MAX_BYTES_BEHIND_WAITING_REQUEST), 4))
    assert client.is_read


def test_large_appends_behind_append_are_read(client, handlers):
    handlers.waits(b"p1")
    client.send(produce(b"p1"))
    client.send(plain_frame(PRODUCE, 0, b"p2" + bytes(MAX_BYTES_BEHIND_WAITING_REQUEST), 2))
    assert client.is_read


# disconnects


def test_disconnect_cancels_waiting_requests(client, handlers, caplog):
    handlers.waits(b"m1")
    client.send(other(b"m1"), other(b"m2"))
    client.disconnect()
    assert handlers.cancelled == [b"m1"]
    assert handlers.started == [b"m1"]
    assert (client.receive(), events(caplog)) == ([], [])
    assert client.budget.used == 0


def test_running_append_completes_and_counts_after_disconnect(client, handlers, caplog):
    append = handlers.waits(b"p1")
    client.send(produce(b"p1"), other(b"m2"))
    client.disconnect()
    assert client.budget.used == len(produce(b"p1"))
    append.callback(b"p1")
    assert client.budget.used == 0
    assert (client.receive(), events(caplog)) == ([], [])


def test_append_that_fails_after_disconnect_is_logged(client, handlers, caplog):
    refused, broken = handlers.waits(b"p1"), handlers.waits(b"p2")
    client.send(produce(b"p1"), produce(b"p2"))
    client.disconnect()
    refused.errback(Refused("not stored"))
    broken.errback(ZeroDivisionError())
    assert [event for event, _ in events(caplog)] == ["request failed after its connection closed"]
    assert client.budget.used == 0


def test_disconnect_cancels_produce_before_its_appends(client, handlers):
    handlers.preparing[b"p1"] = Deferred()
    client.send(produce(b"p1"), produce(b"p2"))
    client.disconnect()
    assert handlers.started == [b"p1"]
    assert client.budget.used == 0


def test_second_close_has_no_effect(client, handlers):
    handlers.waits(b"m1")
    client.send(other(b"m1"))
    client.disconnect()
    client.disconnect()
    assert client.budget.used == 0


# failures


def test_refusal_logs_one_line_and_closes_connection(client, handlers, caplog):
    handlers.answers[b"m1"] = Refused("out of order")
    client.send(other(b"m1"), other(b"m2"))
    assert client.is_aborted
    assert handlers.started == [b"m1"]
    assert client.receive() == []
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert fields == {
        "peer": PEER,
        "listener": "SASL_PLAINTEXT",
        "api_key": OTHER,
        "version": 0,
        "reason": "out of order",
    }


@pytest.mark.parametrize("failure", [Refused("not stored"), ZeroDivisionError()])
def test_replies_to_requests_before_a_failed_one_are_sent(client, handlers, failure):
    """Otherwise it would depend on how many requests arrive in one chunk."""
    handlers.answers[b"p2"] = failure
    client.send(produce(b"p1"), produce(b"p2"))
    assert client.is_aborted
    assert [frame[4:] for frame in client.receive()] == [b"p1"]


@pytest.mark.parametrize(
    "failure", [ZeroDivisionError(), KafkaError(ErrorCode.INVALID_REQUEST), KeyError("x")]
)
def test_unexpected_failure_logs_traceback_and_closes_connection(client, handlers, caplog, failure):
    handlers.answers[b"m1"] = failure
    client.send(other(b"m1"), other(b"m2"))
    assert client.is_aborted
    assert handlers.started == [b"m1"]
    ((event, fields),) = events(caplog)
    assert event == "request failed"
    assert type(failure).__name__ in fields["traceback"]


def test_reply_that_cannot_be_encoded_is_a_bug(client, handlers, caplog, monkeypatch):
    def write(reply, version):
        raise TypeError("no bytes")

    monkeypatch.setitem(ROUTES, (OTHER, 0), Route(OTHER, handlers.other, read, write, False))
    client.send(other(b"m1"))
    assert client.is_aborted
    assert [event for event, _ in events(caplog)] == ["request failed"]


def test_failing_acks_0_request_closes_connection(client, handlers, caplog):
    append = handlers.waits(b"p1")
    client.send(produce(b"p1"), produce(b"p2"))
    append.errback(Refused("records sent with acks=0 were not stored: MESSAGE_TOO_LARGE"))
    assert client.is_aborted
    assert client.receive() == []
    client.disconnect()
    assert client.budget.used == 0


def test_no_request_starts_after_failure(client, handlers):
    first, second = handlers.waits(b"p1"), handlers.waits(b"p2")
    client.send(produce(b"p1"), produce(b"p2"), other(b"m3"))
    first.errback(Refused("no"))
    second.callback(b"p2")
    client.send(produce(b"p4"))
    client.dispatch.pause_writing(False)
    assert handlers.started == [b"p1", b"p2"]
    assert client.receive() == []
    client.disconnect()
    assert client.budget.used == 0


@pytest.mark.parametrize(
    ("frame", "api_key", "version", "reason"),
    [
        (b"", -1, -1, "header"),
        (b"\0\x03\0\0\0\0\0\x01", -1, -1, "header"),
        (plain_frame(OTHER, 0, b"unreadable"), OTHER, 0, "body"),
        (plain_frame(OTHER, 999, b"\0"), OTHER, 999, "unsupported API or version"),
        (plain_frame(4242, 0), 4242, 0, "unsupported API or version"),
        (plain_frame(-5, -5), -5, -5, "unsupported API or version"),
    ],
)
def test_malformed_frame_is_refused(client, caplog, frame, api_key, version, reason):
    client.send(frame)
    assert client.is_aborted
    ((event, fields),) = events(caplog)
    assert event == "refused"
    assert reason in fields["reason"]
    assert (fields["api_key"], fields["version"]) == (api_key, version)


def test_earlier_requests_are_answered_before_refusal(client, handlers):
    client.send(other(b"m1"), plain_frame(4242, 0))
    assert client.receive() == [reply(b"m1")]
    assert client.is_aborted


class DispatchMachine(RuleBasedStateMachine):
    """Any requests, ended in any order: replies keep the order, and all counters end at 0."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.handlers = Handlers()
        for key, handler in [(PRODUCE, self.handlers.produce), (OTHER, self.handlers.other)]:
            self.patch.setitem(
                ROUTES, (key, 0), Route(key, handler, read, lambda reply, version: [reply], False)
            )
        self.budget = MemoryBudget(1 << 30, Clock())
        self.client = MemoryClient(budget=self.budget, max_requests=8)
        self.sent = []
        self.heard = []
        self.is_gone = False

    @rule(kinds=st.lists(st.sampled_from(["p", "m"]), min_size=1, max_size=5), waits=st.booleans())
    def sends(self, kinds, waits):
        if self.is_gone or not self.client.is_read:
            return
        bodies = [
            b"%s%d" % (kind.encode(), len(self.sent) + index) for index, kind in enumerate(kinds)
        ]
        self.sent += bodies
        if waits:
            for body in bodies:
                self.handlers.waits(body)
        self.client.send(
            *[produce(body) if body.startswith(b"p") else other(body) for body in bodies]
        )

    @rule(data=st.data(), fails=st.booleans())
    def request_ends(self, data, fails):
        waiting = [
            body
            for body in self.handlers.started
            if body in self.handlers.answers and not self.handlers.answers[body].called
        ]
        if waiting:
            body = data.draw(st.sampled_from(waiting))
            if fails and self.is_gone:
                self.handlers.answers[body].errback(Refused("no"))
            else:
                self.handlers.answers[body].callback(body)

    @rule(held=st.booleans())
    def peer_pauses_or_resumes_reading(self, held):
        self.client.dispatch.pause_writing(held)

    @rule()
    def peer_disconnects(self):
        self.client.disconnect()
        self.is_gone = True

    @invariant()
    def replies_are_in_order_of_requests(self):
        self.heard += [frame[4:] for frame in self.client.receive()]
        assert self.heard == self.sent[: len(self.heard)]

    @invariant()
    def only_produce_requests_overlap(self):
        waiting = [
            body
            for body in self.handlers.started
            if body in self.handlers.answers and not self.handlers.answers[body].called
        ]
        if not self.is_gone:
            assert len(waiting) <= 1 or all(body.startswith(b"p") for body in waiting)

    def teardown(self):
        self.client.dispatch.pause_writing(False)
        while any(
            not answer.called
            for body, answer in self.handlers.answers.items()
            if body in self.handlers.started
        ):
            for body, answer in list(self.handlers.answers.items()):
                if body in self.handlers.started and not answer.called:
                    answer.callback(body)
            self.client.run_reactor()
        self.replies_are_in_order_of_requests()
        assert self.is_gone or self.heard == self.sent
        assert self.client.dispatch.is_idle
        assert self.budget.used == 0
        self.patch.undo()


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(max_examples=scaled(60), stateful_step_count=30, deadline=None)


def late(handlers, monkeypatch, seconds=5):
    """Produce replies with `late` after its timeout."""

    async def produce_within(request, caller):
        later = await handlers.produce(request, caller)
        return DelayedReply(later.reply, seconds, lambda: b"late")

    monkeypatch.setitem(
        ROUTES,
        (PRODUCE, 0),
        Route(PRODUCE, produce_within, read, lambda reply, version: [reply], False),
    )


def test_delayed_reply_after_timeout_is_dropped(handlers, client, monkeypatch):
    late(handlers, monkeypatch)
    stored = handlers.waits(b"p1")
    client.send(produce(b"p1"), produce(b"p2"))
    client.clock.advance(4.9)
    assert client.receive() == []
    client.clock.advance(0.3)
    assert [frame[4:] for frame in client.receive()] == [b"late", b"p2"]
    assert client.dispatch.is_idle
    stored.callback(b"p1")
    assert (client.receive(), client.dispatch.is_idle, client.budget.used) == ([], True, 0)


def test_append_that_fails_at_once_has_no_timeout(handlers, client, monkeypatch):
    late(handlers, monkeypatch)
    handlers.answers[b"p1"] = Refused("not stored")
    client.send(produce(b"p1"))
    assert client.is_aborted
    assert client.clock.getDelayedCalls() == []


def test_bug_in_timeout_reply_closes_only_its_connection(handlers, client, monkeypatch):
    async def produce_within(request, caller):
        later = await handlers.produce(request, caller)
        return DelayedReply(later.reply, 5, lambda: int("bug"))

    monkeypatch.setitem(
        ROUTES,
        (PRODUCE, 0),
        Route(PRODUCE, produce_within, read, lambda reply, version: [reply], False),
    )
    handlers.waits(b"p1")
    client.send(produce(b"p1"))
    followed = []
    client.dispatch._broker.deadlines.callLater(5, followed.append, True)
    client.clock.advance(5.3)
    assert (followed, client.receive(), client.is_aborted) == ([True], [], True)


def test_append_is_under_way_until_it_is_answered(handlers, client, monkeypatch):
    late(handlers, monkeypatch)
    poll = handlers.waits(b"m1")
    client.send(other(b"m1"))
    assert not client.dispatch.is_appending
    poll.callback(b"m1")
    handlers.waits(b"p1")
    client.send(produce(b"p1"))
    assert client.dispatch.is_appending
    client.clock.advance(5.3)
    assert not client.dispatch.is_appending


def test_reply_in_time_cancels_its_timeout(handlers, client, monkeypatch):
    late(handlers, monkeypatch)
    stored = handlers.waits(b"p1")
    client.send(produce(b"p1"))
    stored.callback(b"p1")
    client.clock.advance(10)
    assert [frame[4:] for frame in client.receive()] == [b"p1"]


def test_append_after_disconnect_releases_bytes_when_stored(handlers, client, monkeypatch):
    late(handlers, monkeypatch)
    stored = handlers.waits(b"p1")
    client.send(produce(b"p1"))
    client.disconnect()
    client.clock.advance(10)
    assert client.budget.used > 0
    stored.callback(b"p1")
    assert client.budget.used == 0
