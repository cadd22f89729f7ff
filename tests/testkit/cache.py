"""A cache for real brokers and clients fetched from package registries.

Each entry is built in a temporary folder and renamed into place under a lock. Parallel test workers
therefore wait for one build, and a killed build leaves no entry that looks complete. Folders are
named by a hash of all inputs and never change afterwards, so deleting the cache is always safe.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

TAIL_CHARACTERS = 3000
BUILD_SECONDS = 600.0


class CannotInstall(Exception):
    """A peer could not be fetched or built; the message ends with the tail of the failed command's
    output.
    """


def cache_root() -> Path:
    """`$TESTS_CACHE`, or else `kopgate` in the user's cache folder; created if missing."""
    explicit = os.environ.get("TESTS_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(explicit) if explicit else Path(user) / "kopgate"
    root.mkdir(parents=True, exist_ok=True)
    return root


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """Twelve hex digits that change if any part changes."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:12]


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The folder of that name. If it is missing, `build` fills an empty folder that is renamed to
    it.

    Files written by `build` must not contain the path of that folder.
    """
    target = cache_root() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            build(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def command(
    argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run one step of an installation and return its output. Every failure raises CannotInstall."""
    shown = " ".join(str(word) for word in argv)
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError as absent:
        raise CannotInstall(f"`{argv[0]}` is not on this machine (needed for: {shown})") from absent
    except subprocess.TimeoutExpired as late:
        raise CannotInstall(f"not finished after {BUILD_SECONDS:.0f} s: {shown}") from late
    if done.returncode:
        raise CannotInstall(
            f"exit code {done.returncode}: {shown}\n{done.stdout[-TAIL_CHARACTERS:]}"
        )
    return done.stdout


def maven(*words: str | Path) -> None:
    """Run Maven without the second JIT compiler, which would take half of its CPU time."""
    options = f"-XX:TieredStopAtLevel=1 {os.environ.get('MAVEN_OPTS', '')}"
    command(["mvn", "-q", "-B", *words], env={"MAVEN_OPTS": options})


def maven_jars(coordinates: Sequence[str]) -> Path:
    """A folder with the jars of `group:artifact:version` coordinates and their runtime
    dependencies.

    They are resolved with the Maven settings of this machine.
    """

    def build(folder: Path) -> None:
        rows = []
        for coordinate in coordinates:
            group, artifact, version = coordinate.split(":")
            rows.append(
                f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
            )
        pom = folder / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>kopgate.peers</groupId><artifactId>jars</artifactId><version>1</version>"
            f"<dependencies>{''.join(rows)}</dependencies></project>\n"
        )
        jars = f"-DoutputDirectory={folder / 'jars'}"
        maven("-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", jars)

    return (
        cached(f"jars/{coordinates[0].replace(':', '-')}-{fingerprint(coordinates)}", build)
        / "jars"
    )
