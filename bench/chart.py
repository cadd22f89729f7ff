"""The ratios as an SVG bar chart, with whiskers from the smallest to the largest round."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bench.measurements import Comparison

WIDTH, LABELS, RIGHT = 860, 300, 60
TOP, ROW, BAR = 60, 26, 16
LESS, MORE, INK, GRID = "#2a7f62", "#c8553d", "#222222", "#cccccc"


def svg(comparisons: Sequence[Comparison], title: str) -> str:
    """A self-contained SVG. Bars above 1 (more CPU time than the other server) are red."""
    most = max([1.0, *(one.ratios[-1] for one in comparisons)])
    step = 0.25 if most <= 2 else 0.5 if most <= 4 else 1.0 if most <= 10 else 10.0
    ticks = [step * n for n in range(int(most / step) + 2)]
    height = TOP + ROW * len(comparisons) + 20

    def x(ratio: float) -> float:
        return LABELS + (WIDTH - LABELS - RIGHT) * ratio / ticks[-1]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in ticks:
        parts.append(_vertical(x(tick), height, INK if tick == 1 else GRID))
        parts.append(f'<text x="{x(tick):.1f}" y="{TOP - 10}" text-anchor="middle">{tick:g}</text>')
    for number, one in enumerate(comparisons):
        parts += _bar(
            one, TOP + ROW * number, x(0), x(one.ratios[0]), x(one.ratio), x(one.ratios[-1])
        )
    return "\n".join([*parts, "</svg>", ""])


def _vertical(x: float, height: int, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 12}" stroke="{colour}"/>'


def _bar(
    one: Comparison, top: int, zero: float, least: float, middle: float, most: float
) -> list[str]:
    centre, baseline = top + BAR / 2, top + BAR - 4
    return [
        f'<text x="{LABELS - 10}" y="{baseline}" text-anchor="end">{escape(one.row)}, '
        f"{escape(one.codec)}</text>",
        f'<rect x="{zero:.1f}" y="{top}" width="{middle - zero:.1f}" height="{BAR}" '
        f'fill="{LESS if one.ratio <= 1 else MORE}"/>',
        f'<line x1="{least:.1f}" y1="{centre:g}" x2="{most:.1f}" y2="{centre:g}" stroke="{INK}"/>',
        f'<text x="{most + 6:.1f}" y="{baseline}">{one.ratio:.2f}</text>',
    ]
