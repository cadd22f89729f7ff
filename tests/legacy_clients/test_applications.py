"""Applications that cannot run are left out and named, and the others run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.legacy_clients.applications import COMPANY, Application, ConsumeStep, ProduceStep, run
from tests.legacy_clients.clients import Client, table
from tests.testkit.traffic_rows import read_rows

pytestmark = [pytest.mark.peer]

ROOT = Path(__file__).parents[2]
WRITER = "kafka-python-3.0.12"


def test_application_without_records_to_read_is_left_out_and_others_run(
    tmp_path: Path, client: Callable[[str], Client]
) -> None:
    client(WRITER)
    company = (
        Application("reader-of-nothing", WRITER, (ConsumeStep("empty"),)),
        Application("writer", WRITER, (ProduceStep("full", 5),), user="alice"),
        Application("reader", WRITER, (ConsumeStep("full", records=1000),)),
    )
    told: list[tuple[int, str]] = []
    ran = run(
        company,
        tmp_path,
        tmp_path / "log",
        lambda number, who: told.append((number, who.client_id)),
    )
    assert ran.applications == [*company[1:]]
    assert ran.left_out == [(company[0], "no application wrote to empty")]
    assert told == [(0, "reader-of-nothing"), (1, "writer"), (2, "reader")]
    used = {
        (row["client_id"], row["principal"])
        for row in read_rows(tmp_path / "log")
        if row["kind"] == "usage"
    }
    assert used == {("writer", "User:alice"), ("reader", "User:ANONYMOUS")}


def test_application_without_its_interpreter_is_left_out_and_others_run(
    tmp_path: Path, client: Callable[[str], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not its client has been installed before."""
    client(WRITER)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to(shutil.which("env") or "/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    company = (
        Application("mobile-app", "kafkajs-2.2.4", (ProduceStep("events"),)),
        Application("writer", WRITER, (ProduceStep("full", 5),), user="alice"),
    )
    ran = run(company, tmp_path, tmp_path / "log")
    assert ran.applications == [company[1]]
    ((who, why),) = ran.left_out
    assert who == company[0]
    assert re.match(r"`(node|npm)` is not on this machine", why)


def test_example_applications_use_only_what_their_clients_support() -> None:
    names = [who.client_id for who in COMPANY]
    assert len(names) == len(set(names)) >= 12
    for who in COMPANY:
        row = table()[who.client]
        assert who.is_producer <= row.produces
        assert who.is_consumer <= row.consumes
        assert not who.user or "PLAIN" in row.sasl
        assert bool(who.groups) <= (row.groups == "member")
        assert {step.codec for step in who.steps if isinstance(step, ProduceStep)} <= set(
            row.codecs
        )


def demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.legacy_clients.demo", *words]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_refuses_a_folder_that_has_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    done = demo("--out", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "has a log already; name a new folder" in done.stderr


def test_demo_without_java_fails_naming_the_package(tmp_path: Path) -> None:
    done = demo("--out", str(tmp_path / "out"), PATH=str(tmp_path), JAVA_HOME="")
    assert (done.returncode, done.stdout, (tmp_path / "out").exists()) == (1, "", False)
    assert "there is no Java (on Debian: apt-get install openjdk-17-jdk-headless)" in done.stderr
