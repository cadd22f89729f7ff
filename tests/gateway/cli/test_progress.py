from __future__ import annotations

import io
import os

import pytest

from gateway.cli.progress import ProgressBar
from tests.gateway.cli.screen import drained, lines_of, terminal

STEPS = (
    ("starting Spark", 0.0),
    ("files", 0.25),
    ("files", 0.5),
    ("readiness", 0.7),
    ("done", 1.0),
)


def shown(columns, *said):
    """Return the screen after all steps, with the printed lines."""
    ours, theirs = terminal(columns)
    with os.fdopen(theirs, "w") as file, ProgressBar(file) as progress:
        for number, (step, part) in enumerate(STEPS):
            progress(step, part)
            for text in said if number == 1 else ():
                progress.print_above(text)
    written = drained(ours)
    os.close(ours)
    return lines_of(written, columns), written


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (200, "[########################################] 100%  done"),
        (80, "[########################################] 100%  done"),
        (40, "[##########################] 100%  done"),
        (20, "100%  done"),
        (7, "100%"),
    ],
)
def test_bar_ends_as_one_line_at_any_width(columns, line):
    lines, written = shown(columns)
    assert lines == [line]
    assert written.endswith("\r\n")


def test_progress_bar_advances_with_steps():
    _, written = shown(40)
    assert [part for part in ("0%", "25%", "50%", "70%", "100%") if f"{part}  " in written] == [
        "0%",
        "25%",
        "50%",
        "70%",
        "100%",
    ]


def test_printed_lines_stay_above_bar():
    assert shown(40, "spark: ERROR one", "two")[0] == [
        "spark: ERROR one",
        "two",
        "[##########################] 100%  done",
    ]


def test_log_output_is_one_line_per_step_without_control_characters():
    file = io.StringIO()
    with ProgressBar(file) as progress:
        for step, part in STEPS:
            progress(step, part)
        progress.print_above("a word")
    assert file.getvalue() == "starting Spark\nfiles\nreadiness\ndone\na word\n"


@pytest.mark.parametrize(
    ("columns", "line"), [(40, "[2/2] shop (kafka-clients 4.4.0)"), (12, "[2/2] shop")]
)
def test_step_of_unknown_length_is_one_line(columns, line):
    ours, theirs = terminal(columns)
    with os.fdopen(theirs, "w") as file, ProgressBar(file) as progress:
        progress.show("[1/2] a-longer-name (kafka-clients 0.8.2.2)")
        progress.show("[2/2] shop (kafka-clients 4.4.0)")
    assert lines_of(drained(ours), columns) == [line]
    os.close(ours)


def fail_at(progress):
    progress("files", 0.5)
    raise ValueError("no")


def test_bar_ends_its_line_after_failure():
    ours, theirs = terminal(40)
    with os.fdopen(theirs, "w") as file:
        progress = ProgressBar(file)
        with pytest.raises(ValueError, match="no"), progress:
            fail_at(progress)
        file.write("Error: no\n")
    assert lines_of(drained(ours), 40) == ["[############-------------]  50%  files", "Error: no"]
    os.close(ours)
