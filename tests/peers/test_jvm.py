"""JVMs are started by one function, which keeps their warnings out of stdout."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.peers import jvm

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


def test_only_the_jvm_module_starts_jvms() -> None:
    sources = [path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    found = [
        str(path.relative_to(ROOT))
        for path in sources
        if re.search(r'\[["]java["],', path.read_text("utf-8"))
    ]
    assert sorted(found) == ["tests/peers/jvm.py"]
