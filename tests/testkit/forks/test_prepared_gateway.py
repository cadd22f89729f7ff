"""A gateway that is forked looks like one that Python started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.testkit.forks import prepared_gateway
from tests.testkit.forks.prepared_gateway import start_gateway
from tests.testkit.gateway import STOP_SECONDS, GatewayProcess, gateway

pytestmark = [pytest.mark.long]

#: Lines of /proc/PID/status that a new interpreter and a fork have in common.
IN_COMMON = r"(Umask|PPid|Uid|Gid|Groups|Threads|Sig(Blk|Ign|Cgt)|Cap\w+|NoNew\w+|Cpus_\w+):"
SECONDS = 60.0


def visible(server: GatewayProcess) -> dict[str, object]:
    """What the kernel shows of a process, without what differs between any two."""
    place = Path(f"/proc/{server.process.pid}")
    files = {}
    for one in place.joinpath("fd").iterdir():
        # It may just have been closed.
        with suppress(FileNotFoundError):
            at = os.readlink(one).replace(str(server.log.parent), "folder")
            files[int(one.name)] = re.sub(r"\[\d+\]", "", at)
    status = place.joinpath("status").read_text().splitlines()
    stat = place.joinpath("stat").read_text().rpartition(")")[2].split()
    return {
        "status": [line for line in status if re.match(IN_COMMON, line)],
        "parent, group, session, terminal": stat[1:5],
        "priorities": [*stat[15:17], *stat[37:39]],
        "files": files,
        "limits": place.joinpath("limits").read_text(),
        "folder": os.readlink(place / "cwd"),
        "out of memory": place.joinpath("oom_score_adj").read_text(),
    }


def test_process_of_a_fork_is_that_of_a_new_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "new", tmp_path / "fork"]
    for folder in folders:
        folder.mkdir()
    with gateway(folders[0], by_fork=False) as new, gateway(folders[1]) as fork:
        end = time.monotonic() + SECONDS
        # Threads may still be starting.
        while (found := visible(fork)) != (wanted := visible(new)) and time.monotonic() < end:
            time.sleep(0.02)
        assert found == wanted
        assert [new.stop(), fork.stop()] == [0, 0]


@pytest.mark.parametrize("by_fork", [False, True])
def test_exit_code_and_output_of_another_command(by_fork, monkeypatch):
    """Standard streams, environment and arguments are those of this start."""
    monkeypatch.setenv("KOPGATE_NODE_ID", "x")
    with start_gateway(["serve"], subprocess.PIPE, by_fork=by_fork) as process:
        output = process.communicate(timeout=STOP_SECONDS)
    assert (process.returncode, output) == (
        2,
        ("", "kopgate: KOPGATE_NODE_ID: input should be a valid integer, not 'x'\n"),
    )


def test_sources_of_another_checkout_run_in_their_folder(tmp_path):
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").touch()
    (tmp_path / "gateway" / "__main__.py").write_text(
        "import os, sys; print(os.getcwd(), sys.argv[1])"
    )
    with start_gateway(["serve"], subprocess.PIPE, checkout=tmp_path) as process:
        assert process.communicate(timeout=STOP_SECONDS)[0] == f"{tmp_path} serve\n"


def test_signal_that_killed_a_fork_is_its_exit_code(tmp_path):
    with gateway(tmp_path) as started:
        pid = started.process.pid
        assert started.process.poll() is None
        started.process.kill()
        # As `Stopwatch` needs it: the process can be observed until its exit code is read.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{pid}/stat").exists()
        assert started.process.wait(STOP_SECONDS) == -signal.SIGKILL
        assert not Path(f"/proc/{pid}").exists()


def test_threads_start_forks_at_once():
    prepared_gateway._forker.cache_clear()
    ended = []

    def run(number: int) -> None:
        with start_gateway(["serve", "--node-id", f"x{number}"], subprocess.PIPE) as process:
            errors = process.communicate(timeout=STOP_SECONDS)[1]
        ended.append((number, process.returncode, errors.rpartition(" not ")[2]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [(number, 2, f"'x{number}'\n") for number in range(4)]


def test_prepared_process_that_ended_is_replaced():
    prepared = prepared_gateway._forker(None)._process
    prepared.kill()
    prepared.wait()
    with pytest.raises((RuntimeError, BrokenPipeError)):
        start_gateway(["--version"], subprocess.PIPE)
    with start_gateway(["--version"], subprocess.PIPE) as process:
        assert process.communicate(timeout=STOP_SECONDS)[0].startswith("kopgate")


def test_orphans_of_others_do_not_become_children_of_the_tests(tmp_path):
    with gateway(tmp_path):
        done = subprocess.run(
            ["sh", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"], capture_output=True, check=True
        )
    orphan = int(done.stdout)
    parent = int(Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(orphan, signal.SIGKILL)
    assert parent != os.getpid()


def test_ctrl_c_does_not_end_the_prepared_process():
    def said() -> str:
        with start_gateway(["--version"], subprocess.PIPE) as process:
            return process.communicate(timeout=STOP_SECONDS)[0]

    before = said()
    prepared = prepared_gateway._forker(None)._process
    prepared.send_signal(signal.SIGINT)
    assert (said(), prepared.poll()) == (before, None)
