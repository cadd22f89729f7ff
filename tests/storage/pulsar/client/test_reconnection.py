"""When a producer or reader is taken for one that the client library does not reconnect."""

from __future__ import annotations

from twisted.internet.task import Clock

from storage.pulsar.client.reconnection import Reconnection


class StuckHandle:
    is_attached = False

    def is_connected(self) -> bool:
        return self.is_attached


def test_handle_is_given_up_after_the_time_without_a_connection() -> None:
    clock, handle = Clock(), StuckHandle()
    reconnection = Reconnection(clock.seconds, 10)
    assert not reconnection.has_given_up(handle)
    clock.advance(9)
    assert not reconnection.has_given_up(handle)
    clock.advance(1)
    assert reconnection.has_given_up(handle)


def test_time_begins_with_the_last_known_connection() -> None:
    clock, handle = Clock(), StuckHandle()
    reconnection = Reconnection(clock.seconds, 10)
    assert not reconnection.has_given_up(handle)
    clock.advance(9)
    handle.is_attached = True
    assert not reconnection.has_given_up(handle)
    handle.is_attached = False
    clock.advance(9)
    assert not reconnection.has_given_up(handle)
    reconnection.connected()
    clock.advance(9)
    assert not reconnection.has_given_up(handle)
    clock.advance(9)
    assert not reconnection.has_given_up(handle)
    clock.advance(1)
    assert reconnection.has_given_up(handle)
