"""Fuzz the parsers of foreign bytes for a limited time.

    python -m tests.fuzz.fuzzer [--target NAME] [--seconds N] [--seed N]

With atheris (pip install atheris), coverage of the Python implementation guides the fuzzer, and the
compiled one gets every input too. Without it, or with `--plain`, valid input is mutated: the short
form for CI. Exits with 0 if nothing was found.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: Target -> the module that has it, and the packages whose coverage guides the fuzzer.
TARGETS = {
    "agreement": ("records_targets", ("compat.message_sets", "records")),
    "entry_points": ("records_targets", ("compat.message_sets", "records")),
    "whole": ("records_targets", ("compat.message_sets", "records")),
    "requests": ("wire_targets", ("gateway.protocol.wire", "gateway.net.framing", "records")),
    "journal": ("journal_targets", ("storage.lmdb.frames",)),
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
    options = parser.parse_args()
    if options.plain or importlib.util.find_spec("atheris") is None:
        return _mutate(options.target, options.seconds, options.seed)
    return _guided(options.target, options.seconds, options.seed)


def _guided(name: str, seconds: int, seed: int) -> int:
    import atheris

    with atheris.instrument_imports(include=list(TARGETS[name][1])):
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


def _mutate(name: str, seconds: int, seed: int) -> int:
    """Mutate valid input until the time is over; a finding's bytes are printed before it is
    raised.
    """
    (target, seeds), rng = _target(name), random.Random(seed)
    deadline = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < deadline:
        for _ in range(100):
            content = _mutated(rng, rng.choice(seeds))
            try:
                target(content)
            except BaseException:
                print(f"target {name}, seed {seed}, input {content.hex()}", file=sys.stderr)
                raise
        tried += 100
    print(f"{name}: {tried} inputs, nothing found")
    return 0


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
    module = importlib.import_module(f"tests.fuzz.{TARGETS[name][0]}")
    return module.TARGETS[name], module.seeds()


if __name__ == "__main__":
    raise SystemExit(main())
