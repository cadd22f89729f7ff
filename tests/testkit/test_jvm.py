"""JVMs are started by one function, which keeps their warnings out of stdout."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.testkit import jvm

ROOT = Path(__file__).parent.parent.parent
#: A flag that a JVM warns about on a machine without large pages, by default on stdout.
FLAG_WITH_WARNING = "-XX:+UseLargePages"


@pytest.mark.peer
def test_jvm_warnings_are_not_on_stdout() -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
        )

    plain = run("java", FLAG_WITH_WARNING, "--version").stdout
    quiet = run(*jvm.argv(["."], "--version", flags=[FLAG_WITH_WARNING]))
    warnings = [line for line in plain.splitlines() if "[warning]" in line]
    assert quiet.stdout == plain.removeprefix("".join(f"{line}\n" for line in warnings))
    # The warning itself is not hidden.
    assert quiet.stderr.count("[warning]") == len(warnings)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TESTS_CACHE", str(tmp_path))
    monkeypatch.setattr(jvm, "_version", lambda: "17")
    return tmp_path


def archived_at(flags: Sequence[str]) -> Path:
    return Path(flags[0].removeprefix("-XX:ArchiveClassesAtExit="))


def test_class_archive_is_made_once(empty_cache: Path) -> None:
    made: list[Path] = []

    def record(flags: Sequence[str]) -> None:
        made.append(archived_at(flags))
        made[-1].touch()

    (flag,) = jvm.class_archive(["a.jar"], record)
    assert jvm.class_archive(["a.jar"], record) == [flag]
    assert len(made) == 1
    assert Path(flag.removeprefix("-XX:SharedArchiveFile=")).exists()


def ends_with_an_error(flags: Sequence[str]) -> None:
    archived_at(flags).touch()
    raise subprocess.CalledProcessError(1, "java")


@pytest.mark.parametrize("record", [ends_with_an_error, lambda flags: None], ids=["error", "none"])
def test_class_archive_that_is_not_made_is_not_used(
    empty_cache: Path, record: Callable[[Sequence[str]], None]
) -> None:
    with pytest.warns(UserWarning, match="without archived classes"):
        assert jvm.class_archive(["a.jar"], record) == []
    # The next process makes it.
    assert len(jvm.class_archive(["a.jar"], lambda flags: archived_at(flags).touch())) == 1


def test_class_archive_that_cannot_be_stored_is_not_used(empty_cache: Path) -> None:
    (empty_cache / "class-archives").touch()
    with pytest.warns(UserWarning, match="without archived classes"):
        assert jvm.class_archive(["a.jar"], ends_with_an_error) == []


def test_program_is_compiled_for_each_version_of_java(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jvm, "_check_installed", lambda: None)
    monkeypatch.setattr(jvm, "command", lambda argv: "")
    program = empty_cache / "Program.java"
    program.touch()
    with_17 = jvm.argv(["a.jar"], program)
    monkeypatch.setattr(jvm, "_version", lambda: "21")
    assert jvm.argv(["a.jar"], program) != with_17


def test_only_the_jvm_module_starts_jvms() -> None:
    sources = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    found = [
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(r'\[["]java["],', path.read_text("utf-8"))
    ]
    assert sorted(found) == ["tests/testkit/jvm.py"]
