from __future__ import annotations

import logging

from gateway.traffic.dropped_lines import LOG_INTERVAL_SECONDS, DroppedLines
from tests.fakes.traffic import ManualClock


def test_drops_are_logged_at_once_then_every_minute(caplog):
    clock = ManualClock()
    losses = DroppedLines(clock.ticks)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            losses.add(2, "No space left on device")
        clock.seconds += LOG_INTERVAL_SECONDS
        losses.log_if_due()
        clock.seconds += LOG_INTERVAL_SECONDS
        losses.log_if_due()
    assert [record.fields for record in caplog.records] == [
        {"lines": 2, "reason": "No space left on device"},
        {"lines": 8, "reason": "No space left on device"},
    ]
    assert losses.total == 10
