"""How long a Fetch may wait on a connection that carries other requests as well."""

from __future__ import annotations

from gateway.protocol.long_poll import MIN_WAIT_SECONDS, LongPoll

MAX_WAIT_MS = 500


def waits(poll, count):
    """How long as many fetches wait, one after the other, that all find nothing."""
    found = []
    for _ in range(count):
        found.append(poll.wait_seconds(MAX_WAIT_MS))
        poll.timed_out()
    return found


def produces(poll):
    poll.requests_arrived(1)
    poll.request_started(is_produce=True)


def overlaps(poll):
    """A request arrives while a Fetch waits. How often the Fetch learned of it."""
    told = []
    poll.on_request = lambda: told.append(None)
    poll.requests_arrived(1)
    poll.on_request = None
    return len(told)


def test_a_consumer_waits_as_long_as_it_likes():
    poll = LongPoll()
    poll.requests_arrived(0)
    assert waits(poll, 3) == [0.5, 0.5, 0.5]


def test_waits_are_short_after_a_produce_and_double_until_the_clients_own():
    poll = LongPoll()
    produces(poll)
    found = waits(poll, 12)
    assert found[:3] == [MIN_WAIT_SECONDS, 2 * MIN_WAIT_SECONDS, 4 * MIN_WAIT_SECONDS]
    # 1 + 2 + 4 + ... + 256 ms, and then its own.
    assert found[8:] == [256 * MIN_WAIT_SECONDS, 0.5, 0.5, 0.5]


def test_no_wait_is_longer_than_the_clients_own():
    poll = LongPoll()
    produces(poll)
    assert poll.wait_seconds(1) == 0.001
    assert poll.wait_seconds(MAX_WAIT_MS) == 0.5


def test_other_requests_than_produce_shorten_no_wait():
    poll = LongPoll()
    poll.requests_arrived(1)
    poll.request_started(is_produce=False)
    assert waits(poll, 1) == [0.5]


def test_waits_are_not_short_for_a_client_that_sends_behind_a_fetch():
    poll = LongPoll()
    produces(poll)
    assert overlaps(poll) == 1
    poll.request_started(is_produce=True)
    assert waits(poll, 1) == [0.5]
    produces(poll)
    assert waits(poll, 1) == [0.5]


def test_a_fetch_is_unwanted_until_what_is_behind_it_is_served():
    poll = LongPoll()
    poll.partial_request_arrived()
    assert poll.should_end
    poll.requests_arrived(2)
    poll.request_started(is_produce=False)
    assert poll.should_end
    poll.request_started(is_produce=False)
    assert not poll.should_end
    poll.requests_arrived(0)
    assert not poll.should_end
