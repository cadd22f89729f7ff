"""Command lines of the JVMs that the tests and benchmarks start."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tests.testkit.cache import CannotInstall, cached, command, fingerprint

#: Keeps the JVM's own output out of a program's stdout, which is compared. A performance data file
#: would cause a warning when another process has the same id; other warnings are sent to stderr.
QUIET = ("-XX:-UsePerfData", "-Xlog:disable", "-Xlog:all=warning:stderr")
#: For small or short-lived processes on few cores, where parallel collectors would compete.
SERIAL = ("-XX:+UseSerialGC",)
#: The same, for processes that live too briefly for the second compiler to pay off. With only the
#: first, Java reserves 48 MB for compiled code instead of 240. Spark needs more, and would compile
#: code again that Java had to drop.
CLIENT = (*SERIAL, "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
#: The compiler, without the JVM's own second compiler, which would take half of its time.
JAVAC = ("javac", "-J-XX:TieredStopAtLevel=1", "-nowarn")
VERSION_SECONDS = 60.0


def argv(
    classpath: Sequence[Path | str],
    main: str | Path,
    *arguments: str,
    flags: Sequence[str] = SERIAL,
) -> list[str]:
    """The argv of a Java program: a main class, or a source file, which is compiled once.

    Raises CannotInstall if there is no `java` on this machine.
    """
    _check_installed()
    if isinstance(main, Path):
        # Behind the jars: an archive of classes is used if its class path is the beginning.
        classpath, main = [*classpath, _compiled(main, classpath)], main.stem
    return ["java", *QUIET, *flags, "-cp", ":".join(map(str, classpath)), main, *arguments]


def _compiled(source: Path, classpath: Sequence[Path | str]) -> Path:
    """The folder with the classes of a program of one file, for this version of Java."""
    jars = ":".join(map(str, classpath))

    def build(folder: Path) -> None:
        command([*JAVAC, "-d", folder, "-cp", jars, source])

    parts = [_version(), source.read_bytes(), jars]
    return cached(f"programs/{source.stem}-{fingerprint(parts)}", build)


def class_archive(
    classpath: Sequence[Path | str], record: Callable[[Sequence[str]], None]
) -> Sequence[str]:
    """Flags for a JVM that maps its classes from an archive (JEP 350), made once.

    This saves half of the CPU time of a start. `record` runs a program with these jars, with flags
    that write the archive when the program ends. There are no flags if the archive cannot be made
    or stored: a start then only takes longer.
    """
    name = f"class-archives/{fingerprint([_version(), *map(str, classpath)])}"
    file = "classes.jsa"

    def build(folder: Path) -> None:
        record([f"-XX:ArchiveClassesAtExit={folder / file}"])
        if not (folder / file).exists():
            # With the name of a missing archive, a JVM does not use its default archive either.
            raise CannotInstall("Java has not written an archive of its classes")

    try:
        folder = cached(name, build)
    except Exception as failure:
        warnings.warn(f"JVMs start without archived classes: {failure}", stacklevel=2)
        return []
    return [f"-XX:SharedArchiveFile={folder / file}"]


def _check_installed() -> None:
    if not shutil.which("java"):
        raise CannotInstall("`java` is not on this machine: install a JDK of version 17 or later")


@cache
def _version() -> str:
    _check_installed()
    return subprocess.run(
        ["java", "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=True
    ).stderr
