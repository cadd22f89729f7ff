"""The second run of failed tests with real peers, in separate test sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reruns import MAX_RERUNS, entries, list_versions, unstable_list

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent

PASSES_SECOND_TIME = """
    def test_{name}(request):
        once = request.config.rootpath / "{name}-ran"
        was_there = once.exists()
        once.touch()
        assert was_there
"""
PEER = "    @pytest.mark.peer"


class Sessions:
    """Test sessions in a folder with the layout of this repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tests").mkdir()
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    peer: a\n    spark: b\n")
        (folder / "conftest.py").write_text('pytest_plugins = ["tests.reruns"]\n')

    def write(self, *functions: str) -> None:
        text = "\n".join(functions).replace("\n    ", "\n").removeprefix("    ")
        (self.folder / "test_it.py").write_text(f"import os\nimport pytest\n\n{text}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # The outer session may be that of a worker.
        outside = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "xdist",
                "-p",
                "no:cacheprovider",
                "--rerun-failed-peers",
                *arguments,
            ],
            cwd=self.folder,
            env={**outside, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def unstable(self) -> list[str]:
        listed = unstable_list(self.folder)
        return entries(listed.read_text()) if listed.exists() else []


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


@pytest.mark.parametrize(("marker", "workers"), [("peer", "2"), ("spark", "0")])
def test_failed_peer_test_that_passes_alone_is_unstable(
    sessions: Sessions, marker: str, workers: str
) -> None:
    marked = f"    @pytest.mark.{marker}"
    sessions.write(
        marked, PASSES_SECOND_TIME.format(name="late"), "    def test_other():\n        pass\n"
    )
    done = sessions.run("-n", workers, "--dist", "loadfile")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 unstable in" in done.stdout
    assert "UNSTABLE test_it.py::test_late" in done.stdout
    # The first failure is printed.
    assert ">       assert was_there" in done.stdout
    assert sessions.unstable() == ["test_it.py::test_late"]


def test_failed_peer_test_that_fails_alone_fails_the_session(sessions: Sessions) -> None:
    sessions.write(
        PEER,
        PASSES_SECOND_TIME.format(name="late"),
        PEER,
        "    def test_never():\n        assert False\n",
    )
    done = sessions.run("-n", "2")
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 unstable in" in done.stdout
    assert "FAILED test_it.py::test_never" in done.stdout
    assert sessions.unstable() == ["test_it.py::test_late"]


def test_failed_test_without_peers_is_not_run_again(sessions: Sessions) -> None:
    sessions.write(
        PASSES_SECOND_TIME.format(name="late"), PEER, "    def test_peer():\n        pass\n"
    )
    done = sessions.run()
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed in" in done.stdout
    assert "second run" not in done.stdout
    assert sessions.unstable() == []


def test_second_run_has_only_the_failed_tests_and_no_workers(sessions: Sessions) -> None:
    record = """
    def test_{name}(request):
        with (request.config.rootpath / "ran").open("a") as ran:
            ran.write("{name} " + os.environ.get("PYTEST_XDIST_WORKER", "alone") + "\\n")
        assert {condition}
"""
    alone = 'os.environ.get("PYTEST_XDIST_WORKER") is None'
    sessions.write(
        PEER,
        record.format(name="a", condition=alone),
        PEER,
        record.format(name="b", condition="True"),
    )
    assert sessions.run("-n", "1").returncode == 0
    assert sorted((sessions.folder / "ran").read_text().splitlines()) == [
        "a alone",
        "a gw0",
        "b gw0",
    ]


def test_failing_setup_and_teardown_are_run_again(sessions: Sessions) -> None:
    fixture = """
    @pytest.fixture
    def broker(request):
        once = request.config.rootpath / "broker-{when}"
        was_there = once.exists()
        once.touch()
        assert was_there or {before}
        yield
        assert was_there or not {before}

    @pytest.mark.peer
    def test_it(broker):
        pass
"""
    for when, before in (("setup", False), ("teardown", True)):
        sessions.write(fixture.format(when=when, before=before))
        done = sessions.run()
        assert done.returncode == 0, done.stdout
        assert "1 unstable in" in done.stdout


def test_many_failures_are_not_run_again(sessions: Sessions) -> None:
    sessions.write(
        "    @pytest.mark.peer\n"
        f"    @pytest.mark.parametrize('n', range({MAX_RERUNS + 1}))\n"
        "    def test_it(n):\n        assert False\n"
    )
    done = sessions.run()
    assert done.returncode == 1
    assert "second run" not in done.stdout


def test_test_that_vanishes_in_the_second_run_fails_the_session(sessions: Sessions) -> None:
    sessions.write(
        PEER,
        """
    def test_it(request):
        request.path.write_text("def test_other(): pass")
        assert False
""",
    )
    done = sessions.run()
    assert done.returncode == 1, done.stdout
    assert "1 failed in" in done.stdout
    assert sessions.unstable() == []


def were_mended(versions: list[str]) -> bool:
    """Whether the newest version of the list is empty or the first after an empty one."""
    newest, *older = map(entries, versions)
    return not newest or not older or not older[0]


def test_unstable_tests_are_mended_before_others_are_listed() -> None:
    assert were_mended(list_versions(ROOT)), (
        "find out why the tests of tests/unstable.txt failed, and empty it"
    )


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["#\n"], True),
        (["#\ntest_a\n", "#\n"], True),
        (["#\n", "#\ntest_a\n", "#\n"], True),
        (["#\ntest_a\ntest_b\n", "#\ntest_a\n", "#\n"], False),
        (["#\ntest_b\n", "#\ntest_a\n", "#\n"], False),
    ],
)
def test_change_to_non_empty_list_of_unstable_tests_must_empty_it(
    tmp_path: Path, versions: list[str], expected: bool
) -> None:
    listed = unstable_list(tmp_path)
    listed.parent.mkdir()

    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], capture_output=True, check=True
        )

    git("init")
    for text in reversed(versions):
        listed.write_text(text)
        git("add", ".")
        git("commit", "-m", "next")
    assert list_versions(tmp_path) == versions
    assert were_mended(versions) == expected


def test_uncommitted_list_counts_as_its_newest_version(tmp_path: Path) -> None:
    listed = unstable_list(tmp_path)
    listed.parent.mkdir()
    listed.write_text("test_a\n")
    assert list_versions(tmp_path) == ["test_a\n"]
