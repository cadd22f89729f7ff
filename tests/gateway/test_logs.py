"""The log: one line per event, no forged lines, no blocking, lost lines are counted."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import logs

#: Seconds that the writer thread may need on a busy machine. A process that ends waits less.
WRITTEN_SECONDS = 60.0


def lines_of(write, **kwargs):
    sink = io.StringIO()
    with logs.ProcessLog(sink, **kwargs) as log:
        write()
        log.close(WRITTEN_SECONDS)
    # "\n" alone: splitlines would hide a separator that was not escaped.
    return sink.getvalue().removesuffix("\n").split("\n") if sink.getvalue() else []


def line_of(write, **kwargs):
    (line,) = lines_of(write, **kwargs)
    return line


SESSION = logs.get_logger("gateway.protocol.session")


def test_text_line_has_time_level_module_event_and_fields():
    line = line_of(
        lambda: SESSION.warning(
            "refused", peer="127.0.0.1:5000", api_key=3, known=False, reason="not a frame"
        )
    )
    stamp, rest = line.split(" ", 1)
    assert rest == (
        "warning gateway.protocol.session refused "
        'peer=127.0.0.1:5000 api_key=3 known=False reason="not a frame"'
    )
    assert time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")
    assert stamp.endswith("Z")


def test_json_line_is_one_object_with_typed_values():
    row = json.loads(
        line_of(
            lambda: SESSION.info(
                "served", count=3, ratio=0.5, ok=True, who=None, token=b"\x00\xff"
            ),
            layout="json",
        )
    )
    assert row.pop("time").endswith("Z")
    assert row == {
        "level": "info",
        "part": "gateway.protocol.session",
        "event": "served",
        "count": 3,
        "ratio": 0.5,
        "ok": True,
        "who": None,
        "token": "00ff",
    }


def test_field_cannot_replace_standard_json_key():
    row = json.loads(line_of(lambda: SESSION.info("served", level="x", time="y"), layout="json"))
    assert (row["level"], row["level_"], row["time_"]) == ("info", "x", "y")


ANY_TEXT = st.text(alphabet=st.characters(), max_size=50)


def is_one_quiet_line(lines):
    (line,) = lines
    return all(" " <= char <= "~" for char in line)


@given(value=ANY_TEXT, event=ANY_TEXT)
def test_text_layout_escapes_line_breaks_and_control_characters(value, event):
    assert is_one_quiet_line(lines_of(lambda: SESSION.info(event, value=value)))


@given(value=ANY_TEXT, event=ANY_TEXT)
def test_json_layout_escapes_line_breaks_and_control_characters(value, event):
    assert is_one_quiet_line(lines_of(lambda: SESSION.info(event, value=value), layout="json"))


@given(value=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=50))
def test_json_round_trips_any_text(value):
    assert (
        json.loads(line_of(lambda: SESSION.info("x", value=value), layout="json"))["value"] == value
    )


def test_text_value_cannot_forge_field():
    line = line_of(
        lambda: SESSION.info("x", client='a" peer=1.2.3.4\n2026 error gateway.cli.main stopped')
    )
    assert line.endswith(r'client="a\" peer=1.2.3.4\n2026 error gateway.cli.main stopped"')


@pytest.mark.parametrize("layout", ["text", "json"])
def test_lone_surrogate_is_escaped(layout):
    assert r"\\ud800" in line_of(lambda: SESSION.info("x", client="\ud800"), layout=layout)


def test_long_value_is_truncated_with_note():
    row = json.loads(line_of(lambda: SESSION.info("x", client="a" * 32_767), layout="json"))
    assert row["client"] == "a" * 1000 + "...(31767 more)"


def test_bug_line_has_traceback():
    def fail():
        try:
            raise ZeroDivisionError("by\nnought")
        except ZeroDivisionError as error:
            SESSION.bug("handler failed", error, api_key=1)

    row = json.loads(line_of(fail, layout="json"))
    assert row["error"] == "ZeroDivisionError: by\nnought"
    assert row["traceback"].startswith("Traceback (most recent call last)")
    assert row["api_key"] == 1


def test_record_of_other_library_is_written_as_line():
    line = line_of(lambda: logging.getLogger("otherlib.conn").warning("lost %s\nagain", "broker 1"))
    assert line.endswith(r'warning otherlib.conn message text="lost broker 1\nagain"')


def test_traceback_of_other_library_is_written():
    def fail():
        try:
            raise KeyError("x")
        except KeyError:
            logging.getLogger("otherlib.conn").exception("oops")

    assert "KeyError" in line_of(fail)


def test_other_libraries_log_from_warning_up():
    assert (
        lines_of(lambda: logging.getLogger("otherlib.conn").info("connected"), level="debug") == []
    )


def test_level_can_be_set_per_module():
    def speak():
        logs.get_logger("gateway.protocol.session").debug("a")
        logs.get_logger("gateway.protocol.session.inner").debug("b")
        logs.get_logger("gateway.protocol.dispatch").debug("c")
        logs.get_logger("storage.lmdb").info("d")

    heard = lines_of(speak, levels={"gateway.protocol.session": "debug", "storage": "warning"})
    assert [line.split(" ")[3] for line in heard] == ["a", "b"]


def test_logger_reports_whether_debug_is_enabled():
    heard = []
    lines_of(
        lambda: heard.append(SESSION.is_debug_enabled()),
        levels={"gateway.protocol.session": "debug"},
    )
    lines_of(lambda: heard.append(SESSION.is_debug_enabled()))
    assert heard == [True, False]


def test_lines_keep_order():
    heard = lines_of(lambda: [SESSION.info("n", i=i) for i in range(500)] and None)
    assert [line.rpartition("=")[2] for line in heard] == [str(i) for i in range(500)]


def test_closing_restores_logging():
    before = (logging.getLogger().handlers[:], logging.getLogger("gateway").level)
    lines_of(lambda: None, level="debug")
    assert (logging.getLogger().handlers, logging.getLogger("gateway").level) == before


class Gate:
    """A stream that blocks until it is opened."""

    def __init__(self):
        self.text = ""
        self.entered = threading.Event()
        self.open = threading.Event()

    def write(self, text):
        self.entered.set()
        assert self.open.wait(WRITTEN_SECONDS)
        self.text += text

    def flush(self):
        pass


def test_blocked_stream_drops_and_counts_lines():
    gate = Gate()
    with logs.ProcessLog(gate, queue_events=100) as log:
        SESSION.info("first")
        assert gate.entered.wait(WRITTEN_SECONDS)
        for i in range(150):
            SESSION.info("n", i=i)
        assert log.dropped == 50
        gate.open.set()
        log.close(WRITTEN_SECONDS)
    *heard, last = gate.text.splitlines()
    assert len(heard) == 101
    assert (
        'warning gateway.logs lines dropped count=50 reason="stderr was too slow or closed"' in last
    )


def test_closing_abandons_blocked_stream():
    gate = Gate()
    log = logs.ProcessLog(gate, queue_events=100)
    with log:
        SESSION.info("first")
        assert gate.entered.wait(WRITTEN_SECONDS)
        log.close(timeout=0.01)
    gate.open.set()


def test_unread_pipe_does_not_block_callers():
    reader, writer = os.pipe()
    sink = os.fdopen(writer, "w")
    with logs.ProcessLog(sink, queue_events=100) as log:
        for i in range(5_000):  # far beyond the 64 KiB of a pipe and the queue
            SESSION.info("n", i=i, filler="x" * 500)
        log.close(timeout=0.01)
    assert log.dropped > 1_000
    os.close(reader)
    with contextlib.suppress(BrokenPipeError):  # buffered text cannot be written
        sink.close()


def test_closed_pipe_does_not_affect_callers():
    reader, writer = os.pipe()
    os.close(reader)
    sink = os.fdopen(writer, "w", buffering=1)
    with logs.ProcessLog(sink) as log:
        SESSION.info("n")
        log.close(WRITTEN_SECONDS)
    assert log.dropped >= 1
    with pytest.raises(BrokenPipeError):
        sink.close()


def test_unformattable_log_call_does_not_affect_caller():
    with logs.ProcessLog(io.StringIO()) as log:
        logging.getLogger("otherlib.conn").warning("%d", "not a number")
    assert log.dropped == 1
