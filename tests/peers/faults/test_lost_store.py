"""A gateway that loses its store logs it and exits in bounded time, with clients connected."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.testkit.gateway import STOP_SECONDS, gateway

pytestmark = [pytest.mark.peer]


@pytest.mark.parametrize("how", ["", "hangs"], ids=["closes", "hangs"])
def test_gateway_that_lost_its_store_exits_with_code_1_and_logs_why(how: str) -> None:
    argv = [sys.executable, "-m", "tests.peers.faults.store_loss", *how.split()]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
            with socket.create_connection(("127.0.0.1", port), timeout=60):
                _, told = process.communicate("lose it\n", timeout=240)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "store lost" in told
    assert "node 2 has it" in told
    assert ("store not closed" in told) == (how == "hangs")


def test_mapped_page_that_cannot_be_read_leaves_the_stacks_of_all_threads(tmp_path: Path) -> None:
    """The kernel then sends the signal that it sends for a page behind the file's end."""
    with gateway(tmp_path) as server:
        os.truncate(tmp_path / "store" / "data.mdb", 0)
        with suppress(OSError, AssertionError), server.peer() as peer:
            peer.create_topic("orders")
        assert server.process.wait(STOP_SECONDS) == -signal.SIGBUS
        log = server.log.read_text()
    assert "Fatal Python error: Bus error" in log
    assert "storage/lmdb/" in log
