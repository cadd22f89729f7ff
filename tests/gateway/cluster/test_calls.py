"""Calls are executed at most once, also if messages are lost, repeated or late."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from gateway.cluster import calls as module
from gateway.cluster.calls import CallError, CallFailed, CallRefused, Calls, CallUnanswered
from storage.cluster import MAX_CALL_BYTES
from tests.fakes.broker import Started
from tests.gateway.cluster.fake_inboxes import FakeInboxes


class ConnectedCalls:
    """ConnectedCalls 1 and 2; 2 serves `echo` and `other`, which wait while `held` is set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inboxes = FakeInboxes(self.clock)
        self.incarnations = {1: 100, 2: 200}
        self.executed: list[bytes] = []
        self.held: Deferred[None] | None = None
        self.outcome: Exception | None = None
        self.one, self.two = self.begin(1), self.begin(2)

    def begin(self, node_id: int) -> Calls:
        made = Calls(
            self.inboxes.sender(node_id),
            self.clock,
            node_id,
            self.incarnations[node_id],
            self.incarnations.get,
        )
        self.inboxes.receivers[node_id] = made.on_message
        made.serve("echo", self.echo)
        made.serve("other", self.echo)
        return made

    async def echo(self, payload: bytes) -> bytes:
        self.executed.append(payload)
        if self.held is not None:
            await self.held
        if self.outcome is not None:
            raise self.outcome
        return b"re: " + payload

    def start(
        self, payload: bytes = b"hello", *, method: str = "echo", timeout: float = 10
    ) -> Started:
        return Started(self.one.call(2, method, payload, timeout))

    def run(self, seconds: float = 60) -> None:
        self.clock.pump([0.01] * 100 + [0.1] * int(seconds * 10))


@pytest.fixture
def gateways() -> ConnectedCalls:
    return ConnectedCalls()


def test_call_returns_what_the_other_gateway_answers(gateways: ConnectedCalls) -> None:
    waiting = gateways.start()
    gateways.run(1)
    assert waiting.result == b"re: hello"
    assert gateways.inboxes.sent == [(1, 2), (2, 1)]


def test_lost_request_is_sent_again(gateways: ConnectedCalls) -> None:
    gateways.inboxes.loses = lambda sender, _: len(gateways.inboxes.sent) == 1
    waiting = gateways.start()
    gateways.run(2)
    assert waiting.result == b"re: hello"
    assert gateways.executed == [b"hello"]


def test_call_whose_reply_is_lost_is_executed_once(gateways: ConnectedCalls) -> None:
    gateways.inboxes.loses = lambda sender, _: sender == 2 and len(gateways.inboxes.sent) < 4
    waiting = gateways.start()
    gateways.run(5)
    assert waiting.result == b"re: hello"
    assert gateways.executed == [b"hello"]
    assert gateways.inboxes.sent == [(1, 2), (2, 1)] * 2


def test_repeated_request_waits_for_the_running_call(gateways: ConnectedCalls) -> None:
    gateways.held = held = Deferred()
    gateways.inboxes.copies = 3
    waiting = gateways.start()
    gateways.run(4)
    assert not waiting.is_done
    held.callback(None)
    gateways.run(1)
    assert waiting.result == b"re: hello"
    assert gateways.executed == [b"hello"]


def test_repetition_of_a_forgotten_call_is_not_executed(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLIES", 2)
    gateways.inboxes.loses = lambda sender, _: sender == 2
    waiting = gateways.start(b"0", timeout=20)
    for number in range(1, 4):
        Started(gateways.one.call(2, "echo", b"%d" % number, 0.5))
    gateways.run(30)
    assert isinstance(waiting.failure, CallUnanswered)
    assert gateways.executed == [b"0", b"1", b"2", b"3"]


def test_kept_replies_are_bounded_in_bytes(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1000)
    for _ in range(20):
        gateways.start(bytes(300))
    gateways.run(1)
    kept = gateways.two._kept["echo"]
    assert len(kept.replies) == 3
    assert kept.size == sum(map(len, kept.replies.values()))


def test_calls_of_one_method_do_not_evict_the_replies_of_another(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REPLIES", 2)
    # Only the reply to the first request is lost: the caller repeats it after a second.
    gateways.inboxes.loses = lambda sender, _: sender == 2 and len(gateways.inboxes.sent) == 2
    waiting = gateways.start(b"first", method="other", timeout=20)
    gateways.clock.advance(0.5)
    for number in range(5):
        gateways.start(b"%d" % number)
    gateways.run(5)
    assert waiting.result == b"re: first"
    assert gateways.executed.count(b"first") == 1


def test_call_without_an_answer_ends_at_its_deadline(gateways: ConnectedCalls) -> None:
    gateways.inboxes.loses = lambda *_: True
    waiting = gateways.start(timeout=10)
    gateways.clock.advance(9.9)
    assert not waiting.is_done
    gateways.run(1)
    assert isinstance(waiting.failure, CallUnanswered)
    assert str(waiting.failure) == "gateway 2 did not answer echo in 10 s"
    assert gateways.one._pending == {}
    assert not gateways.one._pending_by_target


def test_pause_between_repeated_requests_doubles(gateways: ConnectedCalls) -> None:
    gateways.inboxes.loses = lambda *_: True
    gateways.start(timeout=20)
    gateways.run(30)
    # At 0, 1, 3, 7 and 15 seconds.
    assert gateways.inboxes.sent == [(1, 2)] * 5


def test_request_without_time_left_is_not_executed(gateways: ConnectedCalls) -> None:
    for seconds in (0, -1):
        late = module._Request(1, 1, 100, 200, seconds, "echo", b"late")
        gateways.two.on_message(msgspec.msgpack.encode(late))
    assert gateways.executed == []


def test_request_for_a_former_process_is_not_executed(gateways: ConnectedCalls) -> None:
    waiting = gateways.start()
    gateways.two.close()
    gateways.incarnations[2] = 201
    gateways.two = gateways.begin(2)
    gateways.run(1)
    assert isinstance(waiting.failure, CallUnanswered)
    assert str(waiting.failure) == "the gateway has restarted"
    assert gateways.executed == []


@pytest.mark.parametrize(
    "change",
    [{"call_id": 2}, {"sender": 3}, {"incarnation": 199}, {"target_incarnation": 99}],
    ids=str,
)
def test_reply_that_does_not_belong_to_the_call_is_dropped(
    gateways: ConnectedCalls, change: dict[str, Any]
) -> None:
    gateways.inboxes.loses = lambda *_: True
    waiting = gateways.start()
    reply = module._Reply(1, 2, 200, 100, module._Status.DONE, b"right")
    gateways.one.on_message(msgspec.msgpack.encode(msgspec.structs.replace(reply, **change)))
    assert not waiting.is_done
    gateways.one.on_message(msgspec.msgpack.encode(reply))
    assert waiting.result == b"right"
    # A second answer has no effect.
    gateways.one.on_message(msgspec.msgpack.encode(reply))


@pytest.mark.parametrize("kind", [CallRefused, CallFailed, CallUnanswered])
def test_errors_keep_their_class_and_message(
    gateways: ConnectedCalls, kind: type[CallError]
) -> None:
    gateways.outcome = kind("for a reason")
    waiting = gateways.start()
    gateways.run(1)
    assert type(waiting.failure) is kind
    assert str(waiting.failure) == "for a reason"


def test_bug_of_a_handler_is_logged_and_answered(
    gateways: ConnectedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    gateways.outcome = KeyError("secret")
    waiting = gateways.start()
    gateways.run(1)
    assert isinstance(waiting.failure, CallFailed)
    assert str(waiting.failure) == "KeyError"
    record: Any
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "in echo" in record.fields["traceback"]


def test_unknown_method_is_an_error(gateways: ConnectedCalls) -> None:
    waiting = gateways.start(method="dance")
    gateways.run(1)
    assert str(waiting.failure) == "unknown method dance"


def test_cancelled_call_is_forgotten(gateways: ConnectedCalls) -> None:
    gateways.held = Deferred()
    waiting = gateways.start()
    gateways.run(1)
    waiting.cancel()
    assert waiting.is_done
    assert gateways.one._pending == {}
    gateways.held.callback(None)
    gateways.run(1)


def test_calls_to_one_gateway_and_to_all_are_limited(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CALLS_TO_TARGET", 2)
    monkeypatch.setattr(module, "MAX_CALLS", 3)
    gateways.incarnations |= {3: 300, 4: 400}
    started = [Started(gateways.one.call(node, "echo", b"", 10)) for node in (2, 2, 2, 3, 4)]
    assert [type(one.failure) for one in started] == [
        type(None), type(None), CallRefused, type(None), CallRefused,
    ]  # fmt: skip
    gateways.run(1)
    again = gateways.start()
    gateways.run(1)
    assert again.result == b"re: hello"


def test_bytes_of_calls_to_one_gateway_are_limited(gateways: ConnectedCalls) -> None:
    """Two of the largest wait for their reply. A third, and nothing else, is refused."""
    gateways.held = Deferred()
    largest = bytes(module.MAX_PAYLOAD_BYTES)
    waiting = [gateways.start(largest) for _ in range(2)]
    assert isinstance(gateways.start(largest).failure, CallRefused)
    small = gateways.start(b"small")
    assert not small.is_done
    gateways.held.callback(None)
    gateways.run()
    assert all(one.is_done for one in [*waiting, small])
    assert not gateways.one._bytes_by_target
    assert not gateways.start(largest).is_done


def test_running_calls_are_limited(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 1)
    gateways.held = Deferred()
    _, second = gateways.start(), gateways.start()
    gateways.run(1)
    assert isinstance(second.failure, CallRefused)


def test_repetition_of_a_refused_call_is_not_executed(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 1)
    gateways.held = held = Deferred()
    gateways.start(b"first")
    refused = gateways.start(b"second")
    gateways.clock.advance(0.01)
    late = msgspec.msgpack.encode(module._Request(2, 1, 100, 200, 5, "echo", b"second"))
    held.callback(None)
    gateways.run(1)
    assert isinstance(refused.failure, CallRefused)
    gateways.two.on_message(late)
    assert gateways.executed == [b"first"]


def test_unregistered_gateway_is_not_called(gateways: ConnectedCalls) -> None:
    assert isinstance(Started(gateways.one.call(9, "echo", b"", 1)).failure, CallRefused)
    assert gateways.inboxes.sent == []


def test_too_large_payloads_are_refused(
    gateways: ConnectedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PAYLOAD_BYTES", 10)
    assert isinstance(gateways.start(bytes(11)).failure, CallFailed)
    waiting = gateways.start(bytes(10))
    gateways.run(1)
    assert str(waiting.failure) == "the reply is too large"


def test_largest_payloads_fit_into_messages(gateways: ConnectedCalls) -> None:
    """The reply of `echo` is 4 bytes longer than the request."""
    largest = gateways.start(bytes(module.MAX_PAYLOAD_BYTES - 4))
    too_large_reply = gateways.start(bytes(module.MAX_PAYLOAD_BYTES))
    gateways.run(1)
    assert len(largest.result) == module.MAX_PAYLOAD_BYTES
    assert str(too_large_reply.failure) == "the reply is too large"
    too_large = gateways.start(bytes(module.MAX_PAYLOAD_BYTES + 1))
    assert isinstance(too_large.failure, CallFailed)


def test_long_error_is_cut_off(gateways: ConnectedCalls) -> None:
    gateways.outcome = CallFailed("x" * MAX_CALL_BYTES)
    waiting = gateways.start()
    gateways.run(1)
    assert isinstance(waiting.failure, CallFailed)
    assert str(waiting.failure) == "x" * module.MAX_ERROR_BYTES


def test_calls_to_a_gateway_that_ended_fail_at_once(gateways: ConnectedCalls) -> None:
    gateways.inboxes.loses = lambda *_: True
    waiting = gateways.start()
    gateways.one.node_gone(2, 199)
    assert not waiting.is_done
    gateways.one.node_gone(2, 200)
    assert isinstance(waiting.failure, CallUnanswered)


def test_closing_ends_calls_of_both_sides(gateways: ConnectedCalls) -> None:
    gateways.held = Deferred()
    waiting = gateways.start()
    gateways.run(1)
    gateways.two.close()
    gateways.one.close()
    assert isinstance(waiting.failure, CallUnanswered)
    assert isinstance(gateways.start().failure, CallRefused)
    assert gateways.held.called


def test_method_has_one_handler(gateways: ConnectedCalls) -> None:
    with pytest.raises(ValueError, match="already"):
        gateways.two.serve("echo", gateways.echo)


@given(st.binary(max_size=100))
def test_garbage_is_ignored(message: bytes) -> None:
    gateways = ConnectedCalls()
    gateways.two.on_message(message)
    assert gateways.executed == []


@given(
    st.builds(
        module._Request,
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.integers(-5, 5),
        st.integers(-5, 5),
        st.sampled_from([200, 7]),
        st.floats(),
        st.sampled_from(["echo", ""]),
        st.binary(max_size=20),
    ),
    st.integers(0, 100),
)
def test_damaged_requests_are_answered_or_ignored(request: Any, cut: int) -> None:
    gateways = ConnectedCalls()
    message = msgspec.msgpack.encode(request)
    gateways.two.on_message(message[: len(message) - cut % len(message)])
    gateways.two.on_message(message)
