"""Plots as HTML text and SVG graphics, without scripts, fonts or external resources.

Horizontal lengths are percentages, so that a plot fits a phone or a sheet of paper and text keeps
its size. Information given by colour is also given by a word, a number or the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape

from reports.page.markup import text

HEIGHT = 150
"""Pixels between zero and the highest tick."""
TOP = 12
"""Pixels above the highest tick, for half a line of text and labels."""
BELOW = 24
"""Pixels for the dates."""
COLOURS = 8
"""CSS classes c0 to c7, alternating dark and light."""
MIN_COLUMNS = 7
"""Minimum number of days in a plot, so that a single day does not fill its width."""
MAX_TICKS = 4
MAX_DOTS = 40
"""Maximum number of days with dots on a line or gaps between columns."""


@dataclass(frozen=True, slots=True)
class Bar:
    """`parts` are sizes with their CSS classes; `note` gives them in words."""

    label: str
    parts: Sequence[tuple[float, str]]
    note: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars, the longest as wide as the plot, each below its text."""
    most = max((sum(size for size, _ in row.parts) for row in rows), default=0) or 1
    drawn = "".join(
        f"<li><span>{text(row.label)}</span> <b>{text(row.note)}</b>{_bar(row, most)}</li>"
        for row in rows
    )
    return _figure(title, f'<ul class="bars">{drawn}</ul>')


def _bar(row: Bar, most: float) -> str:
    drawn, left = "", 0.0
    for size, colour in row.parts:
        width = size / most * 100
        drawn += (
            f'<rect class="{colour}" x="{left:.2f}%" width="{width:.2f}%" height="12"/>'
            if size
            else ""
        )
        left += width
    return f'<svg aria-hidden="true" width="100%" height="12">{drawn}</svg>'


def columns(
    title: str, unit: str, days: Sequence[date], series: Sequence[tuple[str, Sequence[float]]]
) -> str:
    """One stacked column per calendar day, and a legend in the same order."""
    calendar, places = _calendar(days)
    totals = [sum(values[place] for _, values in series) for place in range(len(days))]
    ticks = _ticks(max(totals, default=0))
    floors = dict.fromkeys(days, 0.0)
    drawn = ""
    for number, (_, values) in enumerate(series):
        path = ""
        for day, value in zip(days, values, strict=True):
            if value:
                path += _column(
                    calendar[day],
                    floors[day] / ticks[-1],
                    value / ticks[-1],
                    0.8 if places <= MAX_DOTS else 1,
                )
                floors[day] += value
        drawn += f'<path class="c{number % COLOURS}" d="{path}"/>'
    inner = (
        f'<svg y="{TOP}" width="100%" height="{HEIGHT}" viewBox="0 0 {places} {HEIGHT}" '
        f'preserveAspectRatio="none" overflow="visible">{drawn}</svg>'
    )
    legend = [
        f"<li>{_swatch(number)}{text(name)} <b>{_span(values)}</b></li>"
        for number, (name, values) in enumerate(series)
    ]
    words = f"{title}: {len(series)} kinds, {_span(totals)} in all."
    shown = _plot(title, words, unit, ticks, inner + _dates(calendar, places, is_point=False))
    return _figure(title, shown + f'<ul class="legend">{"".join(reversed(legend))}</ul>')


def _column(place: int, floor: float, size: float, width: float) -> str:
    top = HEIGHT * (1 - floor - size)
    return f"M{place + (1 - width) / 2:g} {top:.1f}h{width:g}v{HEIGHT * size:.1f}h-{width:g}z"


def _span(values: Sequence[float]) -> str:
    """The first and the last value."""
    return (
        ""
        if not values
        else f"{values[0]:g}"
        if len(values) == 1
        else f"{values[0]:g} → {values[-1]:g}"
    )


def _swatch(number: int) -> str:
    return (
        f'<svg aria-hidden="true" width="14" height="14"><rect class="c{number % COLOURS}" '
        'width="14" height="14"/></svg> '
    )


def line(
    title: str,
    unit: str,
    days: Sequence[date],
    values: Sequence[float],
    today: date,
    zero: date | None,
) -> str:
    """Values by day, and a dashed line from the last one towards `zero`.

    The plot is at most twice as long as the known days.
    """
    calendar, _ = _calendar(days)
    known = days[-1].toordinal() - days[0].toordinal()
    ahead = (
        min(zero.toordinal() - days[0].toordinal(), max(1, known) * 2)
        if zero and zero > days[-1]
        else known
    )
    width = max(ahead, 1) if known else MIN_COLUMNS - 1
    ticks = _ticks(max(values, default=0))

    def at(place: float, value: float) -> tuple[float, float]:
        return place / width * 100, HEIGHT * (1 - value / ticks[-1])

    points = [at(calendar[day], value) for day, value in zip(days, values, strict=True)]
    drawn = _polyline("line", points)
    if zero and zero > days[-1]:
        left = 1 - (ahead - known) / (zero - days[-1]).days
        drawn += _polyline("ahead", [points[-1], at(ahead, values[-1] * left)])
    inner = (
        f'<svg y="{TOP}" width="100%" height="{HEIGHT}" viewBox="0 0 100 {HEIGHT}" '
        f'preserveAspectRatio="none" overflow="visible">{drawn}</svg>'
    )
    if len(points) <= MAX_DOTS:
        inner += "".join(
            f'<circle class="dot" cx="{x:.2f}%" cy="{TOP + y:.1f}" r="3.5"/>' for x, y in points
        )
    now = today.toordinal() - days[0].toordinal()
    if ahead > known and 0 < now < width:
        inner += _mark(now / width * 100)
    calendar = {days[0] + timedelta(days=place): place for place in range(ahead + 1)}
    words = f"{title}: from {values[0]:g} on {days[0]} to {values[-1]:g} on {days[-1]}."
    return _figure(
        title, _plot(title, words, unit, ticks, inner + _dates(calendar, width, is_point=True))
    )


def _polyline(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.2f},{y:.1f}" for x, y in points)}"/>'


def _mark(x: float) -> str:
    anchor = "end" if x > 50 else "start"
    rule = f'<line class="today" x1="{x:.2f}%" x2="{x:.2f}%" y1="{TOP}" y2="{TOP + HEIGHT}"/>'
    return (
        f'{rule}<text x="{x:.2f}%" dx="{-5 if x > 50 else 5}" y="{TOP + 10}" '
        f'text-anchor="{anchor}">today</text>'
    )


def _calendar(days: Sequence[date]) -> tuple[dict[date, int], int]:
    """The position of each day from first to last, including days without traffic, and the number
    of positions.
    """
    first = days[0]
    length = days[-1].toordinal() - first.toordinal() + 1
    return {first + timedelta(days=place): place for place in range(length)}, max(
        length, MIN_COLUMNS
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from zero to at least `most`; integers, since they count applications."""
    rough = max(most, 1) / MAX_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = max(1, next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough))
    return [step * number for number in range(math.ceil(max(most, 1) / step) + 1)]


def _plot(title: str, words: str, unit: str, ticks: Sequence[float], inner: str) -> str:
    """`inner` with a labelled axis on the left and horizontal grid lines."""
    axis, rules = "", ""
    for tick in ticks:
        y = TOP + HEIGHT * (1 - tick / ticks[-1])
        axis += f'<text x="100%" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        rules += (
            f'<line class="{"rule" if tick else "axis"}" x1="0" x2="100%" y1="{y:.1f}" '
            f'y2="{y:.1f}"/>'
        )
    height = TOP + HEIGHT + BELOW
    left = (
        '<svg class="ticks" aria-hidden="true" '
        f'width="{max(len(f"{tick:,g}") for tick in ticks) * 9}" height="{height}">{axis}</svg>'
    )
    named = f"<title>{escape(title)}</title><desc>{escape(words)}</desc>"
    right = (
        f'<svg role="img" xmlns="http://www.w3.org/2000/svg" width="100%" height="{height}" '
        f'overflow="visible">{named}{rules}{inner}</svg>'
    )
    return f'<p class="unit">{escape(unit)}</p><div class="plot">{left}<div>{right}</div></div>'


def _dates(calendar: dict[date, int], places: int, is_point: bool) -> str:
    """The first and the last day, and one between if there is room."""
    days = list(calendar)
    shown = (
        [days[0]]
        if len(days) == 1
        else [days[0], days[-1]]
        if len(days) < 5
        else [days[0], days[len(days) // 2], days[-1]]
    )
    return "".join(
        _date(day, (calendar[day] + (0 if is_point else 0.5)) / places * 100) for day in shown
    )


def _date(day: date, x: float) -> str:
    anchor, at = (
        ("start", 0.0) if x < 20 else ("end", min(x + 8, 100.0)) if x > 80 else ("middle", x)
    )
    return f'<text x="{at:.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="{anchor}">{day}</text>'


def _figure(title: str, content: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{content}</figure>"
