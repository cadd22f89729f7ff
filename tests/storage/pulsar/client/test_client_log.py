"""What the client library writes."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from storage.pulsar.client.client_log import LineRateLimiter, client_logger, forward_lines

#: A client of another test in this process can still write lines.
THREAD_OF_THE_PROCESS = "pulsar-log"
LINE = "2026-01-31 12:00:00.000 {:5} [140000000000000] ClientConnection:190 | [<none> -> pulsar://127.0.0.1:1] Failed: refused | again"


def passed_on(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    """Logger, level and text of the lines that a test has logged."""
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
def test_a_line_keeps_its_level_and_its_text(word, level, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "pulsar")
    LineRateLimiter(10).log_line(LINE.format(word), 0)
    assert passed_on(caplog) == [
        ("pulsar", level, "[<none> -> pulsar://127.0.0.1:1] Failed: refused | again")
    ]


def test_a_line_of_another_shape_is_a_warning(caplog: pytest.LogCaptureFixture):
    LineRateLimiter(10).log_line("terminate called", 0)
    assert passed_on(caplog) == [("pulsar", logging.WARNING, "terminate called")]


def test_what_is_more_than_the_limit_of_a_minute_is_counted(caplog: pytest.LogCaptureFixture):
    sieve = LineRateLimiter(2)
    for second in range(5):
        sieve.log_line(LINE.format("WARN"), second)
    assert len(passed_on(caplog)) == 2
    sieve.log_line(LINE.format("WARN"), 61)
    assert [text for _, _, text in passed_on(caplog)[2:]] == [
        "dropped 3 more lines of the client library",
        "[<none> -> pulsar://127.0.0.1:1] Failed: refused | again",
    ]


def test_the_pipe_is_read_to_its_end(caplog: pytest.LogCaptureFixture):
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write((LINE.format("ERROR") + "\n").encode() + b"\xff no text\n")
    thread = threading.Thread(target=forward_lines, args=(reading, lambda: 0.0))
    thread.start()
    thread.join(60)
    assert [level for _, level, _ in passed_on(caplog)] == [logging.ERROR, logging.WARNING]


def test_a_process_has_one_log():
    assert client_logger() is client_logger()
