"""Entries, and the status and watchers that all partition logs have."""

from __future__ import annotations

from copy import copy

import pytest

from storage.log import Entry, Fenced, LogClosed, LogStatus


def test_watcher_that_raises_is_logged_and_others_are_called(caplog):
    status, called = LogStatus(), []
    status.watch(lambda: 1 / 0)
    status.watch(lambda: called.append("second"))
    status.notify()
    assert called == ["second"]
    assert "a watcher of a log raised" in caplog.text


def test_watcher_may_unwatch_while_it_is_called():
    status, called = LogStatus(), []

    def once():
        called.append("once")
        status.unwatch(once)

    status.watch(once)
    status.watch(lambda: called.append("other"))
    status.notify()
    status.notify()
    assert called == ["once", "other", "other"]


def test_ended_log_raises_its_first_end_reason_as_a_new_exception():
    status = LogStatus()
    status.check_open()
    status.end(Fenced("another writer"))
    status.end(LogClosed("closed"))
    raised = []
    for _ in range(2):
        with pytest.raises(Fenced, match="another writer") as info:
            status.check_open()
        raised.append(info.value)
    assert raised[0] is not raised[1]


def test_entry_is_a_value():
    entry = Entry(5, last_offset=9, max_timestamp=-1, payload=b"secret")
    assert entry == Entry(5, 9, -1, bytearray(b"secret"))
    assert hash(entry) == hash(Entry(5, 9, -1, b"secret"))
    others = Entry(4, 9, -1, b"secret"), Entry(5, 9, -1, b"other"), (5, 9, -1, b"secret")
    assert entry not in others
    assert (entry.base_offset, entry.last_offset, entry.max_timestamp) == (5, 9, -1)
    assert entry.payload == b"secret"
    assert repr(entry) == "Entry(5-9, 6 bytes)"
    assert copy(entry) == entry
    with pytest.raises(AttributeError):
        entry.base_offset = 6
    with pytest.raises(TypeError):
        Entry(5, 9, -1)
