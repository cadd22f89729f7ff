"""Figures of library identification for docs/reports.md.

`python -m tests.compat.fingerprint.evaluation_page` writes them into the page; a test compares
them.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from tests.compat.fingerprint.evaluation import Judged, Round, rounds, share, strangers

PAGE = Path(__file__).parents[3] / "docs" / "reports.md"
BEGIN, END = (
    "<!-- figures: python -m tests.compat.fingerprint.evaluation_page -->\n",
    "<!-- end of figures -->\n",
)
AIMED_AT = 0.90
"""Target share of nameless runs with the right library."""
DECIDES = 0.9
"""The minimum confidence at which a library decides a state."""
DATED = 0.5
"""A range with a larger share of a library's releases than this is considered uninformative."""


def as_markdown() -> str:
    _, applications, *_ = rounds()
    parts = (
        _rounds(),
        _missed(),
        _libraries(applications),
        _undated(applications),
        _alike(applications),
        _strangers(),
    )
    return "\n\n".join("\n".join(map(_wrap, lines)) for lines in parts) + "\n"


def _wrap(line: str) -> str:
    return line if line.startswith("|") else textwrap.fill(line, 100, break_on_hyphens=False)


def _rounds() -> Iterator[str]:
    yield (
        "| | runs without a name | correct library | wrong library | no library | correct "
        "range, if a library is named | releases in the range (median) | correct library, "
        "including runs with a name |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for one in rounds():
        none, all_ = (
            1 - one.right - one.wrong,
            share(one.judged, lambda judged: judged.is_right_library),
        )
        shares = f"{one.right:.1%} | {one.wrong:.1%} | {abs(none):.1%} | {one.ranges:.1%}"
        yield (
            f"| {one.title} | {len(one.nameless)} | {shares} | {one.width:g} | {all_:.1%} of "
            f"{len(one.judged)} |"
        )


def _missed() -> Iterator[str]:
    titles = [f"{one.title} ({one.right:.1%})" for one in rounds() if one.right < AIMED_AT]
    yield f"The target is {AIMED_AT:.0%} of the runs without a name. " + (
        f"Missed by: {'; '.join(titles)}." if titles else "All reach it."
    )


def by_library(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: one.run.library):
        found.setdefault(one.run.library, []).append(one)
    return found


def _libraries(one: Round) -> Iterator[str]:
    yield "By library, each version held out, with client ids of applications:"
    yield ""
    yield (
        "| | runs without a name | correct library | releases in the range (median) | "
        "releases in all | ranges without an upper end |"
    )
    yield "|---|---|---|---|---|---|"
    for library, runs in by_library(one.nameless).items():
        right = [run for run in runs if run.is_right_library]
        is_open = share(right, lambda run: run.verdict.version_high is None)
        yield (
            f"| {library} | {len(runs)} | {share(runs, _is_right):.1%} | {_width(right):g} | "
            f"{len(runs[0].releases)} | {is_open:.0%} |"
        )


def _is_right(one: Judged) -> bool:
    return one.is_right_library


def _width(right: list[Judged]) -> float:
    return median(run.width for run in right)


def undated(one: Round) -> dict[str, list[Judged]]:
    """By library, the correctly identified runs, for libraries with an uninformative range."""
    right = by_library(run for run in one.nameless if run.is_right_library)
    return {
        library: runs
        for library, runs in right.items()
        if _width(runs) > DATED * len(runs[0].releases)
    }


def _undated(one: Round) -> Iterator[str]:
    yield (
        "Libraries whose version is hardly narrowed down (most ranges contain more than half "
        f"of the releases): {', '.join(undated(one))}."
    )


def alike(one: Round) -> dict[tuple[str, str], list[Judged]]:
    """By pair of libraries, the runs of either that were not named because both were possible."""
    pairs: dict[tuple[str, str], list[Judged]] = {}
    for run in _unnamed(one):
        for other in {*run.verdict.candidates} - {run.run.library}:
            pairs.setdefault((min(other, run.run.library), max(other, run.run.library)), []).append(
                run
            )
    return dict(sorted(pairs.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def _unnamed(one: Round) -> list[Judged]:
    return [run for run in one.nameless if run.verdict.library is None]


def _alike(one: Round) -> Iterator[str]:
    yield (
        "Pairs of libraries that could not be distinguished in that table, one of the two "
        "being the correct one (a run may be in several pairs):"
    )
    yield ""
    yield "| | runs | scenarios |"
    yield "|---|---|---|"
    for pair, runs in alike(one).items():
        yield (
            f"| {', '.join(pair)} | {len(runs)} | "
            f"{', '.join(sorted({run.run.scenario for run in runs}))} |"
        )
    yield ""
    alone = Counter(
        run.run.library
        for run in _unnamed(one)
        if not {*run.verdict.candidates} - {run.run.library}
    )
    yield (
        "No library named, although no other recorded library is similar: " + _counted(alone) + "."
    )
    yield ""
    wrong = Counter(
        f"{run.run.library} for {run.verdict.library}"
        for run in one.nameless
        if run.is_wrong_library
    )
    yield "Identified as another library: " + _counted(wrong) + "."


def _strangers() -> Iterator[str]:
    told = strangers()
    named, sure = share(told, lambda run: run.is_wrong_library), share(told, _is_sure_and_wrong)
    yield (
        f"With the library of a run removed from the recording, {named:.1%} of the "
        f"{len(told)} runs are identified as another library that sends similar requests, "
        f"{sure:.1%} "
        f"with a confidence that decides a state ({DECIDES:g}). Refused requests are "
        "reported all the "
        "same, because they are counted directly."
    )


def _is_sure_and_wrong(one: Judged) -> bool:
    return one.is_wrong_library and one.verdict.confidence >= DECIDES


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in sorted(counts.items())) or "none"


def main() -> None:
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    PAGE.write_text(before + begin + as_markdown() + end + after, "utf-8")


if __name__ == "__main__":
    main()
