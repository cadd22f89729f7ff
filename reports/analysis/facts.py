"""Facts about Kafka and its clients, as data with sources: a new target or library is a new file or
line.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from compat.fingerprint.table import version_numbers

PACKAGE = Path(__file__).parent.parent
TARGETS = PACKAGE / "targets"
DEFAULT_TARGET = "kafka-4.0"
"""The strictest Kafka 4 release: applications that are ready for it are ready for the others."""
NO_VERSION = 1 << 15
"""Minimum of a request that is not served in any version."""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Version limits of a library.

    `supported` is the lowest supported version and `wire` the lowest version that is not refused,
    if known. `instead` is a replacement library, if no version of this one is served.
    """

    supported: str | None = None
    wire: str | None = None
    instead: str | None = None

    def __post_init__(self) -> None:
        if not (self.supported or self.wire or self.instead):
            raise ValueError("a library needs `supported`, `wire` or `instead`")
        for version in filter(None, (self.supported, self.wire)):
            version_numbers(version)

    @property
    def lowest(self) -> str | None:
        """The lowest version that is both supported and not refused."""
        known = [version for version in (self.supported, self.wire) if version]
        return max(known, key=version_numbers, default=None) if not self.instead else None


class _TargetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a target file: the differences from the target named by `like`, if any.

    Unknown keys are an error: a misspelt key would otherwise mean "served".
    """

    title: str
    sources: tuple[str, ...]
    minimums: dict[int, int]
    like: str | None = None
    maximums: dict[int, int] = {}
    removed: tuple[int, ...] = ()
    bare_gssapi: bool | None = None
    libraries: dict[str, Baseline] = {}


@dataclass(frozen=True, slots=True)
class MigrationTarget:
    """A target that applications are to be migrated to.

    A request is refused below its minimum and above its maximum. Maximums are set only for requests
    that clients send without asking for versions first. A library below its baseline is
    unsupported.
    """

    name: str
    title: str
    sources: tuple[str, ...]
    minimums: dict[int, int]
    maximums: dict[int, int]
    serves_bare_gssapi: bool
    libraries: dict[str, Baseline]


def target_names() -> list[str]:
    return sorted(path.stem for path in TARGETS.glob("*.toml"))


def load_target(name: str) -> MigrationTarget:
    """Load a target by name or from the path of a TOML file. Raises ValueError."""
    path = Path(name) if name.endswith(".toml") else TARGETS / f"{name}.toml"
    if ("/" in name.removesuffix(".toml") and not name.endswith(".toml")) or not path.is_file():
        raise ValueError(
            f"unknown target {name!r}: use {', '.join(target_names())}, or the path of a .toml file"
        )
    try:
        file = msgspec.convert(
            tomllib.loads(path.read_text("utf-8")), _TargetFile, strict=True, str_keys=True
        )
        return _merge(path.stem, file, _base_target(file))
    except (OSError, msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"invalid target {path}: {error}") from error


def _base_target(file: _TargetFile) -> MigrationTarget:
    if file.like is None:
        return MigrationTarget("", "", (), {}, {}, True, {})
    # Only built-in targets, so that files cannot refer to each other in a loop.
    if file.like not in target_names():
        raise ValueError(f"`like` must be one of {', '.join(target_names())}, not {file.like!r}")
    return load_target(file.like)


def _merge(name: str, file: _TargetFile, other: MigrationTarget) -> MigrationTarget:
    return MigrationTarget(
        name,
        file.title,
        (*file.sources, *other.sources),
        other.minimums | file.minimums | dict.fromkeys(file.removed, NO_VERSION),
        other.maximums | file.maximums,
        other.serves_bare_gssapi if file.bare_gssapi is None else file.bare_gssapi,
        other.libraries | file.libraries,
    )


def api_names() -> dict[int, str]:
    return {int(key): str(name) for key, name in _table("apis.toml")["names"].items()}


def library_names() -> dict[str, str]:
    """Library names by the name that a client sends, in lower case."""
    return {str(sent): str(name) for sent, name in _table("libraries.toml")["names"].items()}


def generations() -> list[tuple[int, int, int, str]]:
    """Rows of api key, version, and the first Kafka release whose client sends it (its index and
    name).
    """
    table = _table("generations.toml")
    rows: list[tuple[int, int, int, str]] = []
    for key, highest in table["highest"].items():
        for version in range(max(highest) + 1):
            number = next(place for place, most in enumerate(highest) if most >= version)
            rows.append((int(key), version, number, table["releases"][number]))
    return rows


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGE / name).read_text("utf-8"))
