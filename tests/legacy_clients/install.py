"""Downloads and builds a client of the table, once, into the tests' cache.

Uses the machine's pip, npm, go, mvn and apt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.legacy_clients.brokers import gateway
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall, cached, command, fingerprint, maven_jars

if TYPE_CHECKING:
    from tests.legacy_clients.clients import Client

DRIVERS = Path(__file__).parent / "drivers"
# The last virtualenv release that supports Python 2.7 and 3.6.
VIRTUALENV = "virtualenv==20.21.1"


@cache
def install(client: Client) -> tuple[str, ...]:
    """Return the command of the client's driver; the first call on a machine downloads and builds
    it.

    Raises CannotInstall with the failed command and the tail of its output.
    """
    return tuple(INSTALLERS[client.driver](client))


def _sources(client: Client) -> list[Path]:
    whole = DRIVERS / client.driver
    if whole.is_dir():
        return sorted(
            file
            for file in whole.iterdir()
            if file.suffix in (".java", ".go")
            and (not client.sources or file.name in client.sources)
        )
    return [next(DRIVERS.glob(f"{client.driver}.*"))]


def _place(client: Client, *parts: str) -> str:
    """A cache name that changes with everything the build depends on.

    Rows that differ only in options share it.
    """
    sources = _sources(client)
    own = Path(__file__).read_bytes()
    mark = fingerprint(
        [
            own,
            *client.install,
            *parts,
            *(part for file in sources for part in (file.name, file.read_bytes())),
        ]
    )
    return f"clients/{client.library}-{client.version}-{mark}"


def _copied(client: Client, folder: Path) -> list[Path]:
    return [Path(shutil.copy(file, folder)) for file in _sources(client)]


def _java(client: Client) -> list[str]:
    # slf4j-simple writes to stderr, whose tail a failure includes.
    jars = maven_jars(
        (*client.install, "org.slf4j:slf4j-api:1.7.36", "org.slf4j:slf4j-simple:1.7.36")
    )

    def build(folder: Path) -> None:
        classes = folder / "classes"
        command([*jvm.JAVAC, "-d", classes, "-cp", f"{jars}/*", *_copied(client, folder)])
        # Classes in a folder cannot be archived.
        command(["jar", "-c", "-f", folder / "driver.jar", "-C", classes, "."])

    classpath = [f"{jars}/*", cached(_place(client), build) / "driver.jar"]
    # For hundreds of JVMs that start in a test run and live for a second.
    flags = ["-Xmx256m", *jvm.CLIENT, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]

    def record(archiving: Sequence[str]) -> None:
        _produce_one(jvm.argv(classpath, "Driver", flags=[*flags, *archiving]))

    archived = jvm.class_archive(classpath, record)
    return jvm.argv(classpath, "Driver", flags=[*flags, *archived])


def _produce_one(driver: Sequence[str]) -> None:
    """Run a driver that sends a record to a gateway."""
    with tempfile.TemporaryDirectory() as folder, gateway(Path(folder)) as broker:
        argv = [*driver, "produce", "--bootstrap", broker.bootstrap]
        record = "topic\t0\t-\t-\t-\t-\n"
        subprocess.run(argv, input=record, text=True, capture_output=True, check=True, timeout=300)


def _python(client: Client) -> list[str]:
    interpreter = find_python(client.python)

    def build(folder: Path) -> None:
        _copied(client, folder)
        site = folder / "site"
        words: list[str | Path] = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-warn-script-location",
            "--target",
            site,
            *client.install,
        ]
        if client.python == "3":
            command([interpreter, *words])
            return
        environment = folder / "environment"
        tool = cached(f"tools/{VIRTUALENV}", lambda at: _pip_into(at, VIRTUALENV))
        # A virtual environment only for its pip: old interpreters have none, or one too old for
        # current wheels.
        command(
            [sys.executable, "-m", "virtualenv", "-q", "-p", interpreter, environment],
            env={"PYTHONPATH": str(tool)},
        )
        command([environment / "bin" / "python", *words])
        shutil.rmtree(environment)

    described = command([interpreter, "-c", "import sys; print(sys.version)"])
    folder = cached(_place(client, described), build)
    return [
        "env",
        f"PYTHONPATH={folder / 'site'}",
        "PYTHONDONTWRITEBYTECODE=1",
        interpreter,
        str(folder / _sources(client)[0].name),
    ]


def _pip_into(folder: Path, requirement: str) -> None:
    command([sys.executable, "-m", "pip", "install", "-q", "--target", folder, requirement])


def find_python(version: str) -> str:
    """Find an interpreter of that version in pyenv, then in PATH.

    "3" is the interpreter that runs the tests.
    """
    if version == "3":
        return sys.executable
    candidates = [
        str(one)
        for root in _pyenv_roots()
        for one in sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    ]
    for candidate in [*candidates, f"python{version}"]:
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
        except OSError:
            continue
        # A pyenv shim on PATH exists for inactive versions, too, and fails.
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    raise CannotInstall(
        f"no Python {version}: install one with `pyenv install {version}` "
        f"or put python{version} on PATH"
    )


def _pyenv_roots() -> list[Path]:
    roots = [Path(os.environ["PYENV_ROOT"])] if "PYENV_ROOT" in os.environ else []
    if shutil.which("pyenv"):
        roots.append(Path(command(["pyenv", "root"]).strip()))
    return [*roots, Path.home() / ".pyenv"]


def _node(client: Client) -> list[str]:
    def build(folder: Path) -> None:
        _copied(client, folder)
        quiet = [
            "--no-save",
            "--no-package-lock",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--omit=optional",
            "--loglevel=error",
        ]
        command(["npm", "install", *quiet, *client.install], cwd=folder)

    folder = cached(_place(client), build)
    return ["node", str(folder / _sources(client)[0].name)]


def _go(client: Client) -> list[str]:
    def build(folder: Path) -> None:
        _copied(client, folder)
        (folder / "go.mod").write_text("module driver\n")
        edits = []
        for module in client.install:
            name, _, other = module.partition("=")
            if other:
                edits += [f"-replace={name}={other}", f"-require={name}@{other.partition('@')[2]}"]
            else:
                edits.append(f"-require={module}")
        command(["go", "mod", "edit", *edits], cwd=folder)
        # Built by Go 1.26.8, the assembly code of lz4 2.6.1 refuses some valid frames.
        tags = ["-tags=noasm"] if any("pierrec/lz4@v2" in one for one in client.install) else []
        command(
            ["go", "build", "-mod=mod", *tags, "-o", "driver", "."],
            cwd=folder,
            env={"CGO_ENABLED": "0"},
        )

    return [str(cached(_place(client), build) / "driver")]


def _kcat(client: Client) -> list[str]:
    """kcat from PATH, otherwise Debian's package with its libraries, unpacked but not installed."""

    def build(folder: Path) -> None:
        listed = command(["apt-cache", "depends", "--recurse", *_NO_EXTRAS, *client.install])
        packages = [line for line in listed.splitlines() if line[:1].isalnum()]
        wanted = [name for name in packages if name not in _EVERYWHERE]
        command(["apt-get", "download", "-q", *wanted], cwd=folder)
        for file in sorted(folder.glob("*.deb")):
            command(["dpkg", "-x", file, folder / "root"])
            file.unlink()
        script = folder / "kcat"
        script.write_text(_KCAT_SCRIPT)
        script.chmod(0o755)
        command([script, "-V"])

    found = shutil.which("kcat") or shutil.which("kafkacat")
    binary = Path(found) if found else cached(_place(client), build) / "kcat"
    return [sys.executable, str(_sources(client)[0]), str(binary)]


_NO_EXTRAS = [
    f"--no-{kind}"
    for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
]
# The C library must be that of the running system.
_EVERYWHERE = {"libc6", "libgcc-s1", "gcc-12-base", "gcc-14-base", "libcrypt1"}
_KCAT_SCRIPT = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
for lib in "$here"/root/usr/lib/*-linux-gnu "$here"/root/lib/*-linux-gnu; do
    path="$path${path:+:}$lib"
done
LD_LIBRARY_PATH=$path exec "$here/root/usr/bin/kcat" "$@"
"""

INSTALLERS: dict[str, Callable[[Client], list[str]]] = {
    "java": _java,
    "kafka_python": _python,
    "confluent": _python,
    "aio": _python,
    "kafkajs": _node,
    "kafka_node": _node,
    "sarama": _go,
    "franz": _go,
    "kcat": _kcat,
}
