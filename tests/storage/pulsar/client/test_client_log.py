"""Forwarding of the client library's log."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from storage.pulsar.client.client_log import LineRateLimiter, client_logger, forward_lines

#: Clients of other tests in this process may still write lines.
THREAD_OF_THE_PROCESS = "pulsar-log"
LINE = (
    "2026-01-31 12:00:00.000 {:5} [140000000000000] ClientConnection:190 | "
    "[<none> -> pulsar://127.0.0.1:1] Failed: refused | again"
)


def forwarded(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    """Logger, level and text of the lines logged by a test."""
    records = [record for record in caplog.records if record.threadName != THREAD_OF_THE_PROCESS]
    return [(record.name, record.levelno, record.getMessage()) for record in records]


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("WARN", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("INFO", logging.INFO),
        ("DEBUG", logging.DEBUG),
    ],
)
def test_line_keeps_level_and_text(word, level, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "pulsar")
    LineRateLimiter(10).log_line(LINE.format(word), 0)
    assert forwarded(caplog) == [
        ("pulsar", level, "[<none> -> pulsar://127.0.0.1:1] Failed: refused | again")
    ]


def test_line_of_unknown_format_is_a_warning(caplog: pytest.LogCaptureFixture):
    LineRateLimiter(10).log_line("terminate called", 0)
    assert forwarded(caplog) == [("pulsar", logging.WARNING, "terminate called")]


@pytest.mark.parametrize(
    "reason",
    [
        "ResultProducerFenced (...: Topic has an existing exclusive producer: standalone-0-1)",
        "Received error response from server: ResultProducerFenced (...) -- req_id: 7",
        "Failed to create consumer: AlreadyClosed",
        "Failed to create producer: AlreadyClosed",
        "Failed to close producer: AlreadyClosed",
        "Cancel the reconnection since the handler is destroyed",
    ],
)
def test_line_that_is_normal_in_a_cluster_is_not_forwarded(
    reason: str, caplog: pytest.LogCaptureFixture
):
    line = LINE.format("WARN").replace("Failed: refused", reason)
    LineRateLimiter(10).log_line(line, 0)
    assert forwarded(caplog) == []


def test_lines_above_limit_per_minute_are_counted(caplog: pytest.LogCaptureFixture):
    limiter = LineRateLimiter(2)
    for second in range(5):
        limiter.log_line(LINE.format("WARN"), second)
    assert len(forwarded(caplog)) == 2
    limiter.log_line(LINE.format("WARN"), 61)
    assert [text for _, _, text in forwarded(caplog)[2:]] == [
        "3 log lines of the Pulsar client library dropped, over the limit of 2 a minute",
        "[<none> -> pulsar://127.0.0.1:1] Failed: refused | again",
    ]


def test_pipe_is_read_to_its_end(caplog: pytest.LogCaptureFixture):
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write((LINE.format("ERROR") + "\n").encode() + b"\xff no text\n")
    thread = threading.Thread(target=forward_lines, args=(reading, lambda: 0.0))
    thread.start()
    thread.join(60)
    assert [level for _, level, _ in forwarded(caplog)] == [logging.ERROR, logging.WARNING]


def test_process_has_one_library_logger():
    assert client_logger() is client_logger()
