"""The status and watchers that all partition logs have."""

from __future__ import annotations

import pytest

from storage.log import Fenced, LogClosed, LogStatus


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
