"""`make demo`, interrupted."""

from __future__ import annotations

import sys
import time

import pytest

from tests.gateway.cli.screen import lines_of
from tests.reports.terminal import COLUMNS, Terminal, running_in, when

pytestmark = [
    pytest.mark.spark,
    pytest.mark.peer,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("pyspark"),
]


def test_ctrl_c_during_clients_exits_130_and_command_can_be_repeated(tmp_path):
    out = tmp_path / "out"
    here = Terminal([sys.executable, "-m", "tests.legacy_clients.demo", "--out", str(out)])
    when(here.process, lambda: "[ 1/" in here.written)
    here.ctrl_c()
    code, answer, written, _ = here.end()
    assert (code, answer, (out / "log").exists()) == (130, "", False), written
    # Client processes get Ctrl-C as well and can outlive the command for a moment.
    deadline = time.monotonic() + 60
    while left := running_in(here.process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    # The progress line may just have been erased, to be written again.
    word = lines_of(written, COLUMNS * 10)[-1]
    assert word == "stopped; downloaded clients are kept, and the same command starts again"
