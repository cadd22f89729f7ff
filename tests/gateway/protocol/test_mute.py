"""Muted connections: when requests may start again, and the timer."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from gateway.protocol.mute import Mute


class NotedFlow:
    """Notes what the mute reports as waiting."""

    def __init__(self):
        self.waiting = []

    def set_waiting(self, size):
        self.waiting.append(size)


class MutedClient:
    def __init__(self):
        self.clock, self.flow, self.ends = Clock(), NotedFlow(), []
        self.mute = Mute(self.clock, self.flow, lambda: self.ends.append(self.clock.seconds()))


@pytest.fixture
def client():
    return MutedClient()


def test_connection_is_muted_for_the_throttle_time(client):
    client.mute.extend(2000)
    client.clock.advance(1.5)
    assert (client.mute.is_on, client.ends, client.flow.waiting) == (True, [], [0])
    client.clock.advance(0.5)
    assert (client.mute.is_on, client.ends, client.flow.waiting) == (False, [2.0], [0, None])


@pytest.mark.parametrize("times", [(1000, 3000), (3000, 1000)])
def test_longest_throttle_time_counts_with_one_timer(client, times):
    for time in times:
        client.mute.extend(time)
    assert client.mute.until == 3.0
    for _ in range(3):
        assert len(client.clock.getDelayedCalls()) == 1
        client.clock.advance(1)
    assert client.ends == [3.0]


def test_cancelled_mute_has_no_timer_and_never_ends(client):
    client.mute.extend(1000)
    client.mute.cancel()
    client.clock.advance(2)
    assert client.ends == []
    assert client.clock.getDelayedCalls() == []


def test_disabled_mute_ends_at_once_and_never_begins_again(client):
    client.mute.extend(1000)
    client.mute.disable()
    client.mute.extend(1000)
    client.mute.disable()
    assert (client.mute.is_on, client.ends, client.flow.waiting) == (False, [0.0], [0, None])
    assert client.clock.getDelayedCalls() == []
