"""The options of `make bench`, and the text between the marks of a document."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from bench import __main__ as bench_main
from bench import clients, steps
from bench.__main__ import (
    BEGIN,
    DOCUMENT,
    END,
    checkouts,
    file_to_write,
    parse,
    replace_between_marks,
    server_starts,
)
from bench.steps import WarmUpLimits
from tests.legacy_clients.brokers import are_required
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A checkout with one extension module, which is compiled."""
    folder = tmp_path / "older"
    (folder / "gateway").mkdir(parents=True)
    (folder / "gateway" / "__init__.py").touch()
    (folder / "gateway" / "__main__.py").touch()
    (folder / "gateway" / "_plain.pyx").touch()
    (folder / "gateway" / f"_plain{EXTENSION_SUFFIXES[0]}").touch()
    return folder


def test_another_checkout_is_measured_beside_kafka_or_instead_of_it(older: Path) -> None:
    assert len(server_starts(parse([]))) == 2
    options = parse(["--beside", str(older)])
    assert checkouts(options) == [None, older]
    assert len(server_starts(options)) == 3
    assert len(server_starts(parse(["--beside", str(older), "--log-flush", "os"]))) == 4
    assert len(server_starts(parse(["--beside", str(older), "--without-kafka"]))) == 2


def test_kafka_is_left_out_only_beside_another_checkout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--without-kafka"])
    assert "--without-kafka needs --beside" in capsys.readouterr().err


def test_checkout_without_sources_or_compiled_modules_is_refused(
    older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--beside", str(older.parent)])
    assert "has no gateway/__init__.py" in capsys.readouterr().err
    (older / "gateway" / f"_plain{EXTENSION_SUFFIXES[0]}").unlink()
    with pytest.raises(SystemExit):
        parse(["--beside", str(older)])
    assert "_plain.pyx is not compiled" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["--only-small", "--log-flush os", "--beside {older}"])
def test_only_the_default_comparison_is_written_without_out(arguments: str, older: Path) -> None:
    words = arguments.format(older=older).split()
    assert file_to_write(parse([])) == DOCUMENT
    assert file_to_write(parse(words)) is None
    assert file_to_write(parse([*words, "--out", "x.md"])) == Path("x.md")


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("without", [[], ["--without-kafka"]])
def test_servers_are_measured_in_one_run_and_written_to_out(
    without: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(steps, "SMALL_MIB", 1)
    monkeypatch.setattr(clients, "JVM_FLAGS", jvm.CLIENT)
    monkeypatch.setattr(bench_main, "WarmUpLimits", lambda: WarmUpLimits(limit=1))
    checkout = Path(__file__).parents[2]
    arguments = ["--rounds", "2", "--small", "1", "--only-small", "--beside", str(checkout)]
    out = tmp_path / "found.md"
    try:
        bench_main.main([*arguments, *without, "--out", str(out)])
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    printed = capsys.readouterr().out
    other = f"kopgate in {checkout.name}"
    assert (f"ratio to {other} (min-max)" in printed) == (not without)
    assert (f"\n\n{other}:\n\n" in printed) == (not without)
    assert ("Kafka" in printed) == (not without)
    assert f" --beside {checkout}" in out.read_text().replace("\n", " ")
    assert printed.strip() in out.read_text()
    assert out.with_suffix(".svg").exists()


def test_text_around_the_marks_is_kept() -> None:
    text = f"# Benchmarks\n\n{BEGIN}\nold\n{END}\n\n## How to read it\n"
    assert (
        replace_between_marks(text, "new")
        == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}\n\n## How to read it\n"
    )


def test_missing_marks_are_appended() -> None:
    assert (
        replace_between_marks("# Benchmarks\n\n", "new") == f"# Benchmarks\n\n{BEGIN}\nnew\n{END}"
    )


def test_prose_of_the_block_is_wrapped_and_tables_are_not() -> None:
    prose, row = "word " * 30, "| " + "x" * 120 + " |"
    _, first, second, table, _ = replace_between_marks("", f"{prose}\n{row}").split("\n")
    assert (len(first) <= 100, f"{first} {second}", table) == (True, prose.strip(), row)
