"""Accuracy of library identification, printed by `python -m`.

Each recorded version is identified with a table that lacks it, and so are versions never in the
table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from compat.fingerprint.matcher import Identification, identify
from compat.fingerprint.table import (
    LibraryTable,
    RecordedRun,
    build_table,
    read_runs,
    version_numbers,
)

UNSEEN = Path(__file__).parent / "unseen.jsonl"


@dataclass(frozen=True, slots=True)
class Judged:
    """The result for one run. `releases` are all releases of the actual library."""

    run: RecordedRun
    verdict: Identification
    releases: tuple[str, ...]

    @property
    def is_right_library(self) -> bool:
        return self.verdict.library == self.run.library

    @property
    def is_wrong_library(self) -> bool:
        return self.verdict.library not in (None, self.run.library)

    @property
    def is_right_range(self) -> bool:
        """Whether the actual version is within the range, for runs with a named library."""
        low, high = self.verdict.version_low, self.verdict.version_high
        true = version_numbers(self.run.version)
        return (
            self.is_right_library
            and (low is None or version_numbers(low) <= true)
            and (high is None or true <= version_numbers(high))
        )

    @property
    def width(self) -> int:
        """Number of releases in the range, for runs with the right library."""
        low, high = (
            self.verdict.version_low or self.releases[0],
            self.verdict.version_high or self.releases[-1],
        )
        return self.releases.index(high) - self.releases.index(low) + 1

    def __str__(self) -> str:
        found = self.verdict
        mark = "? " if found.library is None else ("  " if self.is_right_range else "! ")
        versions = f"{found.version_low or ''}..{found.version_high or ''}"
        return (
            f"{mark}{self.run.client:27} {self.run.scenario:13} {found.library or '-':13} "
            f"{versions:20} {found.confidence:.2f}  {'; '.join(found.evidence)}"
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Results of one evaluation method.

    Figures cover `nameless` runs only; runs that send their name are right by construction.
    """

    title: str
    judged: tuple[Judged, ...]

    @property
    def nameless(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.judged if one.run.software is None)

    @property
    def named(self) -> tuple[Judged, ...]:
        """The nameless runs for which a library is named."""
        return tuple(one for one in self.nameless if one.verdict.library is not None)

    @property
    def right(self) -> float:
        return share(self.nameless, lambda one: one.is_right_library)

    @property
    def wrong(self) -> float:
        return share(self.nameless, lambda one: one.is_wrong_library)

    @property
    def ranges(self) -> float:
        return share(self.named, lambda one: one.is_right_range)

    @property
    def width(self) -> float:
        return median(one.width for one in self.nameless if one.is_right_library)


TITLES = (
    "each version held out",
    "each version held out, client ids of applications",
    "versions never recorded, some under foreign names and settings",
    "versions never recorded, client ids of applications",
)


@cache
def rounds() -> tuple[Round, ...]:
    """Held-out and unseen versions, each with the recorded client ids and with an application's
    client id; in the order of TITLES.
    """
    known, others = read_runs(), read_runs(UNSEEN)
    table = build_table(known)
    judged = (
        each_held_out(known),
        each_held_out(known, own_ids=False),
        unseen(table, others),
        unseen(table, others, own_ids=False),
    )
    return tuple(Round(title, tuple(one)) for title, one in zip(TITLES, judged, strict=True))


@cache
def strangers() -> tuple[Judged, ...]:
    """Nameless runs with application client ids, identified without their library in the table; any
    name is wrong.
    """
    runs = read_runs()
    nameless = [run for run in runs if run.software is None]
    tables = {
        library: build_table(run for run in runs if run.library != library)
        for library in {run.library for run in runs}
    }
    return tuple(_judged(run, tables[run.library], own_ids=False) for run in nameless)


def each_held_out(runs: Iterable[RecordedRun], own_ids: bool = True) -> Iterator[Judged]:
    """Identify each run with a table that lacks its version of its library.

    Uses the recorded client ids or an application's.
    """
    runs = list(runs)
    for library, version in sorted({(run.library, run.version) for run in runs}):
        table = build_table(run for run in runs if (run.library, run.version) != (library, version))
        for run in runs:
            if (run.library, run.version) == (library, version):
                yield _judged(run, table, own_ids)


def unseen(
    table: LibraryTable, runs: Iterable[RecordedRun], own_ids: bool = True
) -> Iterator[Judged]:
    for run in runs:
        yield _judged(run, table, own_ids)


def _judged(run: RecordedRun, table: LibraryTable, own_ids: bool) -> Judged:
    """Runs that send their name are not identified by behaviour."""
    releases = next(
        (library.releases for library in table.libraries if library.name == run.library),
        (run.version,),
    )
    if run.software is not None:
        return Judged(
            run,
            Identification(
                run.library, (run.library,), run.version, run.version, 1.0, ("calls itself so",)
            ),
            releases,
        )
    client_id_library = table.client_id_library(run.client_ids) if own_ids else None
    return Judged(
        run, identify(replace(run.behaviour, client_id_library=client_id_library), table), releases
    )


def share(judged: Iterable[Judged], is_so: Callable[[Judged], bool]) -> float:
    all_ = list(judged)
    return sum(map(is_so, all_)) / len(all_)


def main() -> None:
    for one in rounds():
        sys.stdout.write(f"{one.title}\n" + "".join(f"{judged}\n" for judged in one.nameless))
        sys.stdout.write(
            f"{one.title}: {len(one.nameless)} nameless runs, library right "
            f"{one.right:.1%}, wrong {one.wrong:.1%}; "
            f"version within the range {one.ranges:.1%} of those named, {one.width:g} "
            "releases in it\n"
        )


if __name__ == "__main__":
    main()
