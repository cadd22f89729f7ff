"""A gateway that loses its store logs it and exits with code 1 in bounded time, with clients
connected.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

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
