"""Formats the result of a run: one line per fault, and optionally a chart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tests.peers.chaos.run import Outcome, Recovery

WIDTH, LABELS, RIGHT = 940, 290, 200
TOP, ROW, BAR = 84, 26, 16
#: Colors that color-blind readers can distinguish.
DOWN, BACK, INK, GRID = "#d98324", "#2b6ca3", "#222222", "#dddddd"

MEANING = """Seconds. `served`: from the fault until the servers reply again. Clients: from then on
until the slowest has recovered. `all`: from the fault until the last client has recovered."""


def summary(outcome: Outcome) -> str:
    """The full report: recovery times, what was stored, and violations, if any."""
    failed = ", ".join(f"{count} of {name}" for name, count in outcome.failed.items())
    lines = (
        [
            table(outcome),
            f"{len(outcome.recoveries)} faults; "
            f"no time for {outcome.skipped_faults} further planned ones.",
        ]
        if outcome.recoveries
        else []
    )
    lines.append(
        f"{outcome.records} records; reported to their producers as failed: {failed or 'none'}; "
        f"{outcome.hidden_copies} duplicates hidden from readers; "
        f"{outcome.unused_offsets} offsets without a record; "
        f"{outcome.queries} comparisons of committed offsets; {outcome.epochs} leader epochs."
    )
    if not outcome.complaints:
        return "\n".join([*lines, "ALL CHECKS PASSED"])
    return "\n".join([*lines, f"FAILED CHECKS, {len(outcome.complaints)}:", *outcome.complaints])


def table(outcome: Outcome) -> str:
    """One line per fault, and the maximum of each column below."""
    if not outcome.recoveries:
        return ""
    kinds = sorted(
        {_kind(name) for one in outcome.recoveries for name in one.clients}, reverse=True
    )
    times = [
        [one.began, one.served, *_slowest(one, kinds), one.served + max(one.clients.values())]
        for one in outcome.recoveries
    ]
    longest = [max(column) for column in zip(*times, strict=True)]
    rows = [
        ["", "", "", *(kind for kind, _ in kinds), ""],
        ["at", "fault", "served", *(name for _, name in kinds), "all"],
        *(
            [f"{row[0]:.1f}", _fault_text(one), *_formatted(row[1:])]
            for one, row in zip(outcome.recoveries, times, strict=True)
        ),
        ["", "longest", *_formatted(longest[1:])],
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    rule = "-" * len(lines[-1])
    return "\n".join([MEANING, *lines[:2], rule, *lines[2:-1], rule, lines[-1]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Only the fault's column is left-aligned."""
    cells = [
        cell.ljust(width) if at == 1 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _formatted(seconds: Iterable[float]) -> list[str]:
    return [f"{one:.1f}" for one in seconds]


def _slowest(recovery: Recovery, kinds: Iterable[tuple[str, str]]) -> list[float]:
    return [
        max(seconds for name, seconds in recovery.clients.items() if _kind(name) == kind)
        for kind in kinds
    ]


def _kind(name: str) -> tuple[str, str]:
    """Kind and library of a client; all members of a group are one."""
    if name.startswith("member-"):
        return "group", name.removeprefix("member-").rpartition("-")[0]
    return "producer", name.removeprefix("producer-")


def _fault_text(one: Recovery) -> str:
    return f"{one.fault.event}, {one.fault.duration:.1f} s"


def draw_svg(recoveries: Sequence[Recovery], title: str) -> str:
    """An SVG bar chart with one bar per fault.

    It shows the time without servers, then the time until the last client recovered, and that
    client's name.
    """
    longest = max((one.served + max(one.clients.values()) for one in recoveries), default=1.0)
    height = TOP + ROW * len(recoveries) + 12
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if longest / step <= 12)

    def x(seconds: float) -> float:
        return LABELS + (WIDTH - LABELS - RIGHT) * seconds / longest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
        '<text x="12" y="44">Seconds from the fault: '
        f'<tspan fill="{DOWN}">■</tspan> until the servers reply again, '
        f'<tspan fill="{BACK}">■</tspan> then until the last client has recovered</text>',
    ]
    for tick in range(0, int(longest) + 1, step):
        parts.append(
            f'<line x1="{x(tick):.1f}" y1="{TOP - 6}" x2="{x(tick):.1f}" y2="{height - 8}" '
            f'stroke="{GRID}"/>'
        )
        parts.append(f'<text x="{x(tick):.1f}" y="{TOP - 10}" text-anchor="middle">{tick}</text>')
    for number, one in enumerate(recoveries):
        top, last = TOP + ROW * number, max(one.clients, key=lambda name: one.clients[name])
        back = one.clients[last]
        parts += [
            f'<text x="{LABELS - 10}" y="{top + BAR - 4}" text-anchor="end">'
            f"{escape(_fault_text(one))}</text>",
            f'<rect x="{x(0):.1f}" y="{top}" width="{x(one.served) - x(0):.1f}" '
            f'height="{BAR}" fill="{DOWN}"/>',
            f'<rect x="{x(one.served):.1f}" y="{top}" width="{x(back) - x(0):.1f}" '
            f'height="{BAR}" fill="{BACK}"/>',
            # A white outline keeps the grid from crossing the text.
            f'<text x="{x(one.served + back) + 6:.1f}" y="{top + BAR - 4}" stroke="#ffffff" '
            'stroke-width="4" paint-order="stroke">'
            f"{one.served + back:.1f} {escape(' '.join(reversed(_kind(last))))}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
