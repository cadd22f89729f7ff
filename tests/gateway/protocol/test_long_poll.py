"""How long a Fetch may wait on a connection that carries other requests as well."""

from __future__ import annotations

from gateway.protocol.long_poll import MIN_WAIT_SECONDS, LongPoll, acknowledge_nothing

MAX_WAIT_MS = 500


def waits(poll, count):
    """The waits of `count` consecutive fetches without data."""
    found = []
    for _ in range(count):
        found.append(poll.wait_seconds(MAX_WAIT_MS))
        poll.timed_out()
    return found


def produces(poll):
    poll.requests_arrived(1)
    poll.request_started(is_produce=True)


def overlaps(poll):
    """Number of notifications when a request arrives while a Fetch waits."""
    told = []
    poll.on_request = lambda: told.append(None)
    poll.requests_arrived(1)
    poll.on_request = None
    return len(told)


def test_fetch_waits_for_max_wait():
    poll = LongPoll(acknowledge_nothing)
    poll.requests_arrived(0)
    assert waits(poll, 3) == [0.5, 0.5, 0.5]


def test_waits_after_produce_double_up_to_max_wait():
    poll = LongPoll(acknowledge_nothing)
    produces(poll)
    found = waits(poll, 12)
    assert found[:3] == [MIN_WAIT_SECONDS, 2 * MIN_WAIT_SECONDS, 4 * MIN_WAIT_SECONDS]
    # 1, 2, 4, ..., 256 ms, then max_wait.
    assert found[8:] == [256 * MIN_WAIT_SECONDS, 0.5, 0.5, 0.5]


def test_wait_never_exceeds_max_wait():
    poll = LongPoll(acknowledge_nothing)
    produces(poll)
    assert poll.wait_seconds(1) == 0.001
    assert poll.wait_seconds(MAX_WAIT_MS) == 0.5


def test_only_produce_shortens_waits():
    poll = LongPoll(acknowledge_nothing)
    poll.requests_arrived(1)
    poll.request_started(is_produce=False)
    assert waits(poll, 1) == [0.5]


def test_waits_are_not_shortened_for_pipelining_client():
    poll = LongPoll(acknowledge_nothing)
    produces(poll)
    assert overlaps(poll) == 1
    poll.request_started(is_produce=True)
    assert waits(poll, 1) == [0.5]
    produces(poll)
    assert waits(poll, 1) == [0.5]


def test_fetch_should_end_until_requests_behind_it_are_served():
    poll = LongPoll(acknowledge_nothing)
    poll.partial_request_arrived()
    assert poll.should_end
    poll.requests_arrived(2)
    poll.request_started(is_produce=False)
    assert poll.should_end
    poll.request_started(is_produce=False)
    assert not poll.should_end
    poll.requests_arrived(0)
    assert not poll.should_end
