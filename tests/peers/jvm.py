"""Command lines of the JVMs that the tests and benchmarks start."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.peers.cache import CannotInstall

#: Keeps the JVM's own output out of a program's stdout, which is compared. A performance data file
#: would cause a warning when another process has the same id; other warnings are sent to stderr.
QUIET = ("-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=warning:stderr")
#: For small or short-lived processes on few cores, where parallel collectors would compete.
SERIAL = ("-XX:+UseSerialGC",)
#: The same, for processes that live too briefly for the second compiler to pay off.
CLIENT = (*SERIAL, "-XX:TieredStopAtLevel=1")


def argv(
    classpath: Sequence[Path | str],
    main: str | Path,
    *arguments: str,
    flags: Sequence[str] = SERIAL,
) -> list[str]:
    """The argv of a Java program: a main class, or a source file, which Java compiles first.

    Raises CannotInstall if there is no `java` on this machine.
    """
    if not shutil.which("java"):
        raise CannotInstall("`java` is not on this machine: install a JDK of version 17 or later")
    return ["java", *QUIET, *flags, "-cp", ":".join(map(str, classpath)), str(main), *arguments]
