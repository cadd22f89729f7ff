"""Fuzz the parsers of foreign bytes for a limited time.

    python -m tests.fuzz.fuzzer [--target NAME] [--seconds N] [--seed N]

With atheris (pip install atheris), coverage of the Python implementation guides the fuzzer, and the
compiled one gets every input too. Without it, or with `--plain`, valid input is mutated: the short
form for CI. Exits with 0 if nothing was found.

`--modules` has extension modules to be used instead of the usual ones. A sanitizer in them may end
the process. The last input is then in the file `input` of this folder, behind its length (2 bytes).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import mmap
import random
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from typing import NamedTuple


class FuzzTarget(NamedTuple):
    """The module that has the target, the compiled module that it needs, and the packages whose
    coverage guides the fuzzer.
    """

    module: str
    compiled: str | None
    packages: tuple[str, ...]


_RECORDS = ("compat.message_sets", "records")

TARGETS = {
    "agreement": FuzzTarget("records_targets", "records._kernel", _RECORDS),
    "entry_points": FuzzTarget("records_targets", None, _RECORDS),
    "whole": FuzzTarget("records_targets", "records._kernel", _RECORDS),
    "entries": FuzzTarget(
        "entry_targets", "gateway.fetch._entry_loops", ("gateway.fetch.entry_loops", "records")
    ),
    "requests": FuzzTarget(
        "wire_targets",
        "gateway.protocol.wire._plain",
        ("gateway.protocol.wire", "gateway.net.framing", "records"),
    ),
    "chunks": FuzzTarget(
        "chunk_targets",
        "gateway.protocol.wire._plain",
        ("gateway.protocol", "gateway.handlers.produce"),
    ),
    "journal": FuzzTarget("journal_targets", "storage.lmdb._frames", ("storage.lmdb.frames",)),
    "recovery": FuzzTarget(
        "recovery_targets", None, ("storage.lmdb.frames", "storage.lmdb.recovery")
    ),
    "messages": FuzzTarget(
        "message_targets",
        "storage.pulsar.client._library",
        ("storage.pulsar.log.entry_messages",),
    ),
}

_MAX_SIZE = 4096
_EDGES = (0, 1, 0x7F, 0x80, 0xFF)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="agreement", choices=tuple(TARGETS))
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="do without atheris")
    parser.add_argument("--modules", type=Path, help="a folder of other extension modules")
    options = parser.parse_args()
    if options.modules:
        sys.meta_path.insert(0, _Modules(options.modules))
    # Refused connections and damaged segments are logged.
    logging.disable()
    try:
        return _run(options)
    finally:
        logging.disable(logging.NOTSET)


def _run(options: argparse.Namespace) -> int:
    if options.plain or importlib.util.find_spec("atheris") is None:
        return _mutate(options.target, options.seconds, options.seed, options.modules)
    return _guided(options.target, options.seconds, options.seed)


def _guided(name: str, seconds: int, seed: int) -> int:
    import atheris

    with atheris.instrument_imports(include=list(TARGETS[name].packages)):
        target, seeds = _target(name)
    with tempfile.TemporaryDirectory() as corpus:
        for number, content in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(content)
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds}",
                f"-seed={seed}",
                f"-max_len={_MAX_SIZE}",
                "-rss_limit_mb=2048",
                "-timeout=10",
                corpus,
            ],
            target,
        )
        atheris.Fuzz()
    return 0


def _mutate(name: str, seconds: int, seed: int, modules: Path | None) -> int:
    """Mutate valid input until the time is over; a finding's bytes are printed before it is
    raised.
    """
    (target, seeds), rng = _target(name), random.Random(seed)
    if modules:
        _check_modules(modules)
    deadline = time.monotonic() + seconds
    tried = 0
    kept = _kept_input(modules) if modules else None
    while time.monotonic() < deadline:
        for _ in range(100):
            content = _mutated(rng, rng.choice(seeds))
            if kept:
                kept[: 2 + len(content)] = len(content).to_bytes(2, "big") + content
            try:
                target(content)
            except BaseException:
                print(f"target {name}, seed {seed}, input {content.hex()}", file=sys.stderr)
                raise
        tried += 100
    print(f"{name}: {tried} inputs, nothing found")
    return 0


def _check_modules(folder: Path) -> None:
    """Fail if an extension module of this repository was loaded from elsewhere.

    One that could not be compiled is missing in the folder.
    """
    root, folder = Path(__file__).parents[2], folder.resolve()
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/").resolve()
        is_ours = name.partition(".")[0] in {"gateway", "records", "storage"}
        if is_ours and file.name.endswith(EXTENSION_SUFFIXES[0]) and folder not in file.parents:
            raise SystemExit(f"{name} is not in {folder}, but {file.relative_to(root)} was loaded")


def _kept_input(folder: Path) -> mmap.mmap:
    """A file that has what is written to it even if the process is aborted."""
    with (folder / "input").open("w+b") as file:
        file.truncate(2 + _MAX_SIZE)
        return mmap.mmap(file.fileno(), 0)


def _mutated(rng: random.Random, content: bytes) -> bytes:
    payload = bytearray(content)
    payload[0] = rng.randrange(256)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(1, len(payload)) if len(payload) > 1 else 0
        match rng.randrange(5):
            case 0:
                payload[at] = rng.choice(_EDGES)
            case 1:
                payload[at] ^= 1 << rng.randrange(8)
            case 2:
                del payload[at : at + rng.randrange(1, 16)]
                payload = payload or bytearray(1)
            case 3:
                payload[at:at] = rng.randbytes(rng.randrange(1, 16))
            case _:
                payload[at : at + 4] = rng.choice(
                    (
                        b"\xff\xff\xff\xff",
                        b"\x7f\xff\xff\xff",
                        b"\0\0\0\0",
                        b"\x80\0\0\0",
                        b"\0\0\0\x0e",
                    )
                )
    return bytes(payload[:_MAX_SIZE])


def _target(name: str) -> tuple[Callable[[bytes], None], list[bytes]]:
    """The function of a target, and valid input."""
    target = TARGETS[name]
    module = importlib.import_module(f"tests.fuzz.{target.module}")
    if target.compiled:
        print(f"{name} with {importlib.import_module(target.compiled).__file__}")
    return module.TARGETS[name], module.seeds()


class _Modules(MetaPathFinder):
    """Finds extension modules in a folder with the layout of the packages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        file = self._folder / (name.replace(".", "/") + EXTENSION_SUFFIXES[0])
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


if __name__ == "__main__":
    raise SystemExit(main())
